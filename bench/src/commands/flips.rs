//! `haltkick flips`: whether a comparison on a simulated machine depends on what is guessed of that machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use haltkick_vmm::machines::{Guess, Machine};

use crate::analysis::flips::{Alone, Flips, Point, Robustness, is_flipped, robustness, suspects};
use crate::cli::{FlipsArgs, Format};
use crate::commands::bench;
use crate::experiment::flips;
use crate::experiment::overrides::Overrides;
use crate::results::directory::{self, Directory};
use crate::settings::machines;
use crate::show;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

/// Most things that are changed by themselves once the comparison has flipped.
const MOST_ALONE: usize = 4;
/// How the directory calls the machine itself, and machines like it.
const NOMINAL: &str = "nominal";

/// A machine to be simulated, and how it differs from the one that was asked for.
struct Variant {
    name: String,
    machine: Machine,
    figures: BTreeMap<String, f64>,
    choices: BTreeMap<String, String>,
}

pub(crate) fn flips(args: &FlipsArgs) -> Result<Exit> {
    if args.settings.given("engine").is_some_and(|engine| engine.text() != "sim") {
        return Err(Failure::usage("--engine: only a simulated machine has guesses: leave it out"));
    }
    let Some(name) = args.settings.given("machine").map(|machine| machine.text().to_owned()) else {
        return Err(Failure::usage("--machine: name one of `haltkick list machines`, or a file"));
    };
    let machine = machines::find(&name).map_err(|error| Failure::usage(format!("--machine: {error}")))?;
    if args.arm == args.baseline {
        return Err(Failure::usage(format!("{} is compared with itself: give two arms", args.arm.name)));
    }
    let output = Directory::anew(args.output.as_deref(), "flips")?;
    let variants = variants(&machine, args.points as usize)?;
    let mut points = simulate(args, &output, "points", &variants)?;
    let nominal = points.remove(0);
    let robustness = robustness(&nominal, &points);
    let suspects = suspects(&nominal, &points, MOST_ALONE);
    let alone = match robustness {
        Robustness::Flips => alone(args, &output, &machine, &nominal, &suspects)?,
        Robustness::Robust | Robustness::Undetermined => vec![],
    };
    let answer = Flips {
        schema: "haltkick.flips".into(),
        schema_version: 1,
        arm: args.arm.name.clone(),
        baseline: args.baseline.name.clone(),
        machine: name,
        seeds: args.seeds,
        robustness,
        nominal,
        points,
        alone,
    };
    conclude(&answer, &output, args.format)
}

/// The machine itself, then machines like it.
fn variants(machine: &Machine, points: usize) -> Result<Vec<Variant>> {
    let mut variants = vec![variant(machine, NOMINAL.into(), &[], &[])?];
    for (number, difference) in machines::differences(machine, points).into_iter().enumerate() {
        let figures: Vec<_> = difference.figures.iter().map(|(guess, value)| (guess, *value)).collect();
        variants.push(variant(machine, format!("point-{:02}", number + 1), &figures, &difference.choices)?);
    }
    Ok(variants)
}

fn variant(
    machine: &Machine,
    name: String,
    figures: &[(&Guess, f64)],
    choices: &[(&str, &str)],
) -> Result<Variant> {
    let varied = machine.varied(figures, choices);
    let varied = varied.map_err(|error| Failure::internal(format!("a machine of {name}: {error}")))?;
    let own = machine.chosen().into_iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
    let chosen = choices.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Ok(Variant {
        name,
        machine: varied,
        figures: figures.iter().map(|(guess, value)| (guess.key.clone(), *value)).collect(),
        choices: own.chain(chosen).collect(),
    })
}

/// Each suspect by itself.
fn alone(
    args: &FlipsArgs,
    output: &Path,
    machine: &Machine,
    nominal: &Point,
    suspects: &[(String, String)],
) -> Result<Vec<Alone>> {
    let guesses = machine.guesses();
    let of = |(number, (key, value)): (usize, &(String, String))| {
        let name = format!("alone-{}", number + 1);
        let figure = guesses.iter().find(|guess| guess.key == *key).zip(value.parse().ok());
        match figure {
            Some(figure) => variant(machine, name, &[figure], &[]),
            None => variant(machine, name, &[], &[(key, value)]),
        }
    };
    let variants = suspects.iter().enumerate().map(of).collect::<Result<Vec<_>>>()?;
    let points = simulate(args, output, "alone", &variants)?;
    let each = points.into_iter().zip(suspects).map(|(point, (key, value))| Alone {
        key: key.clone(),
        value: value.clone(),
        flips: is_flipped(nominal, &point),
        ratio: point.ratio,
    });
    Ok(each.collect())
}

/// Runs both arms on all of them, into a directory of `output`.
fn simulate(args: &FlipsArgs, output: &Path, name: &str, variants: &[Variant]) -> Result<Vec<Point>> {
    let files = output.join("machines");
    std::fs::create_dir_all(&files)
        .map_err(|error| Failure::internal(format!("{}: {error}", files.display())))?;
    let path_of = |variant: &Variant| files.join(format!("{}.toml", variant.name));
    for variant in variants {
        directory::write_whole(&path_of(variant), variant.machine.text.as_bytes())?;
    }
    let paths: Vec<PathBuf> = variants.iter().map(path_of).collect();
    let source = flips::source([&args.arm, &args.baseline], &paths, args.seeds, &args.settings);
    let (summary, _) = bench::run_in(source, &Overrides::default(), args.jobs, &output.join(name))?;
    let point = |(variant, path): (&Variant, &PathBuf)| {
        let is_of = |setting: &BTreeMap<String, String>| {
            setting.get("machine").is_some_and(|machine| Path::new(machine) == path)
        };
        let compared = summary.comparisons.iter().find(|comparison| is_of(&comparison.setting));
        let ratio = compared.and_then(|comparison| comparison.ratio.clone());
        Point::new(variant.figures.clone(), variant.choices.clone(), ratio)
    };
    Ok(variants.iter().zip(&paths).map(point).collect())
}

fn conclude(answer: &Flips, path: &Path, format: Format) -> Result<Exit> {
    let json = output::to_indented_json(answer)?;
    directory::write_whole(&path.join("flips.json"), &json)?;
    match format {
        Format::Table => output::data(&show::flips::text(answer))?,
        Format::Json => output::data(&json)?,
    }
    output::talk(&format!("results: {}", path.display()));
    Ok(Exit::Done)
}
