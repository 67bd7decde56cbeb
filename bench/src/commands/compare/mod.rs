//! `haltkick compare`: two directories, or two arms, cell by cell; a loss that is surely beyond the threshold is a
//! regression.

mod cell;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analysis::attempts;
use crate::analysis::comparable::{Better, Comparable};
use crate::analysis::holm;
use crate::analysis::likeness;
use crate::analysis::recorded::Recorded;
use crate::analysis::summary::Comparison;
use crate::cli::{CompareArgs, Format};
use crate::commands::report;
use crate::experiment::measure::Measure;
use crate::experiment::place::Role;
use crate::record::Record;
use crate::record::linux::LinuxRecord;
use crate::results::manifest::Manifest;
use crate::show::table;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::nearest;
use crate::text::output;
use cell::{Cell, Run, Setting, Values};

/// What `compare --format json` prints.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct Compared {
    /// "haltkick.comparison".
    pub(crate) schema: String,
    /// 1.
    pub(crate) schema_version: u32,
    /// A slow-down beyond this share is a regression.
    pub(crate) threshold: f64,
    /// What stands between the two sides, where `--anyway` was given; else there is nothing.
    pub(crate) differences: Vec<String>,
    /// Throughput of B over that of A, or of kernels the figures by which the experiment compares them.
    pub(crate) cells: Vec<Comparison>,
    /// For each cell the chance of a loss as great as this, or greater, if the true one were the threshold; null without figures,
    /// and for figures of which nobody knows whether more or less is better.
    pub(crate) p_values: Vec<Option<f64>>,
    /// Cells of which it is known whether more or less is better.
    #[serde(skip)]
    pub(crate) told: usize,
    /// Whether there are enough runs for any cell to be called a regression, however much it had lost.
    pub(crate) can_tell: bool,
    /// Indices of the cells that regressed: those whose p-values Holm's procedure rejects, at 2.5 % for all together.
    pub(crate) regressions: Vec<usize>,
}

/// One side: a directory and perhaps one of its arms.
struct Side<R> {
    path: PathBuf,
    arm: Option<String>,
    manifest: Manifest,
    records: Vec<R>,
}

pub(crate) fn compare(args: &CompareArgs) -> Result<Exit> {
    let [a, b] = [&args.baseline, &args.candidate].map(|text| directory_and_arm(text));
    let has_kernels = |path: &Path| Manifest::read(path).map(|manifest| !manifest.kernels.is_empty());
    match (has_kernels(&a.0)?, has_kernels(&b.0)?) {
        (false, false) => compare_records::<Record>(a, b, args),
        (true, true) => compare_records::<LinuxRecord>(a, b, args),
        (first, _) => {
            let (ours, kernels) = if first { (&b.0, &a.0) } else { (&a.0, &b.0) };
            Err(Failure::usage(format!(
                "{} holds runs of our own guest and {} of kernels: compare directories of the same experiment",
                ours.display(),
                kernels.display()
            )))
        }
    }
}

fn compare_records<R: Comparable>(
    a: (PathBuf, Option<String>),
    b: (PathBuf, Option<String>),
    args: &CompareArgs,
) -> Result<Exit> {
    let (a, b) = (side::<R>(a)?, side::<R>(b)?);
    check_same_experiment(&a, &b)?;
    let differences = differences(&a, &b, args.anyway)?;
    let compared = compare_sides(&a, &b, args.threshold, differences)?;
    show(&compared, args.format)?;
    Ok(match () {
        () if !compared.regressions.is_empty() => Exit::Regression,
        () if compared.can_tell => Exit::Done,
        // No all-clear: there could not have been an alarm.
        () => Exit::Untrusted,
    })
}

/// What stands between two directories: refused, unless it is to be compared anyway.
fn differences<R: Comparable>(a: &Side<R>, b: &Side<R>, anyway: bool) -> Result<Vec<String>> {
    if a.path == b.path {
        return Ok(vec![]);
    }
    let mut differences = likeness::differences(&a.records, &b.records);
    differences.extend(other_programs(a, b));
    if a.arm.is_none() {
        differences.extend(likeness::cells_of_one(&a.records, &b.records));
    }
    let message = format!(
        "{} (first) and {} (second) cannot be compared: {}",
        a.path.display(),
        b.path.display(),
        differences.join("; ")
    );
    match differences.is_empty() {
        true => Ok(differences),
        false if anyway => {
            output::talk(&format!("warning: {}", message.replace("cannot be", "are")));
            Ok(differences)
        }
        false => Err(Failure::usage(format!("{message}; --anyway does"))),
    }
}

/// Of two experiments with kernels: initial RAM disks that are not the same. Kernels may be others, since they are what is compared.
fn other_programs<R>(a: &Side<R>, b: &Side<R>) -> Vec<String> {
    let mut differences = Vec::new();
    for this in &a.manifest.kernels {
        let Some(that) = b.manifest.kernels.iter().find(|that| that.name() == this.name()) else { continue };
        if this.initrd_sha256 != that.initrd_sha256 {
            differences.push(format!("other initial RAM disks of {}", this.name()));
        }
        if this.kernel_sha256 != that.kernel_sha256 {
            output::talk(&format!("{}: the second has another kernel than the first", this.name()));
        }
    }
    differences
}

fn compare_sides<R: Comparable>(
    a: &Side<R>,
    b: &Side<R>,
    threshold: f64,
    differences: Vec<String>,
) -> Result<Compared> {
    let of_measure = match (&a.arm, &b.arm) {
        (None, None) => arm_by_arm,
        (Some(_), Some(_)) => two_arms,
        _ => return Err(Failure::usage("name an arm on both sides (DIR:ARM), or on neither")),
    };
    let measures = R::measures(&a.manifest.outline, &a.records);
    let cells = in_order(a, measures.iter().flat_map(|of| of_measure(a, b, of)).collect());
    if cells.is_empty() {
        let (a, b) = (a.path.display(), b.path.display());
        return Err(Failure::usage(format!("{a} and {b} have no cell in common: nothing to compare")));
    }
    let limit = 1.0 - threshold;
    let (p_values, least): (Vec<_>, Vec<_>) = cells.iter().map(|cell| cell.p_values(limit)).unzip();
    let told = cells.iter().filter(|cell| cell.better.is_some()).count();
    Ok(Compared {
        schema: "haltkick.comparison".into(),
        schema_version: 1,
        threshold,
        differences,
        cells: cells.into_iter().map(|cell| cell.shown).collect(),
        told,
        can_tell: !holm::rejected(&least).is_empty(),
        regressions: holm::rejected(&p_values),
        p_values,
    })
}

fn directory_and_arm(text: &str) -> (PathBuf, Option<String>) {
    match text.rsplit_once(':') {
        Some((path, arm)) if !Path::new(text).exists() => (PathBuf::from(path), Some(arm.to_owned())),
        _ => (PathBuf::from(text), None),
    }
}

fn side<R: Recorded>((path, arm): (PathBuf, Option<String>)) -> Result<Side<R>> {
    let (manifest, records) = report::read(&path)?;
    if let Some(arm) = &arm
        && !manifest.outline.arms.contains(arm)
    {
        let arms: Vec<&str> = manifest.outline.arms.iter().map(String::as_str).collect();
        return Err(Failure::usage(format!("{}: {}", path.display(), nearest::unknown("arm", arm, &arms))));
    }
    Ok(Side { path, arm, manifest, records: attempts::last(&records) })
}

fn check_same_experiment<R>(a: &Side<R>, b: &Side<R>) -> Result<()> {
    let (x, y) = (&a.manifest.outline.experiment, &b.manifest.outline.experiment);
    if x == y {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{} holds experiment '{x}' and {} holds '{y}': compare directories of the same experiment",
        a.path.display(),
        b.path.display()
    )))
}

/// Each arm of B against the same arm of A. The runs are not paired: the two ran at different times.
fn arm_by_arm<R: Comparable>(a: &Side<R>, b: &Side<R>, of: &Measure) -> Vec<Cell> {
    let (below, above) = (rates(a, of, None), rates(b, of, None));
    let of = (of, better(a, b, of));
    let cell = |(key, above): (&Key, &Vec<Run>)| {
        Some(Values::of_groups(above, below.get(key)?).cell(of, &key.0, &key.1, &key.1))
    };
    above.iter().filter_map(cell).collect()
}

/// What both sides say is better.
fn better<R: Comparable>(a: &Side<R>, b: &Side<R>, of: &Measure) -> Option<Better> {
    R::better(of, &a.records).filter(|better| R::better(of, &b.records) == Some(*better))
}

/// One arm of B against one of A: within blocks if both are in one directory.
fn two_arms<R: Comparable>(a: &Side<R>, b: &Side<R>, of: &Measure) -> Vec<Cell> {
    let (below, above) = (rates(a, of, a.arm.as_deref()), rates(b, of, b.arm.as_deref()));
    let of = (of, better(a, b, of));
    let mut cells = Vec::new();
    for ((setting, arm), above) in &above {
        let Some(((_, baseline), below)) = below.iter().find(|((other, _), _)| other == setting) else {
            continue;
        };
        let values = if a.path == b.path { Values::of_pairs } else { Values::of_groups };
        cells.push(values(above, below).cell(of, setting, arm, baseline));
    }
    cells
}

/// Setting and arm.
type Key = (Setting, String);
type Cells = BTreeMap<Key, Vec<Run>>;

/// What `of` measures of each run that tells it, by setting and arm.
fn rates<R: Recorded>(side: &Side<R>, of: &Measure, only: Option<&str>) -> Cells {
    let mut cells = Cells::new();
    for record in &side.records {
        let Some(place) = record.place().filter(|place| place.role == Role::Arm) else { continue };
        let wanted = only.is_none_or(|arm| arm == place.arm);
        if let Some(rate) = record.rate(of).filter(|_| wanted) {
            let runs = cells.entry((place.setting.clone(), place.arm.clone())).or_default();
            runs.push(((place.block, record.host().identity()), rate));
        }
    }
    cells
}

/// Cells in the order of the experiment file.
fn in_order<R>(side: &Side<R>, mut cells: Vec<Cell>) -> Vec<Cell> {
    let outline = &side.manifest.outline;
    cells.sort_by_key(|Cell { shown, .. }| {
        (outline.rank(&shown.setting), outline.arms.iter().position(|arm| *arm == shown.arm))
    });
    cells
}

fn show(compared: &Compared, format: Format) -> Result<()> {
    match format {
        Format::Table => {
            let found = (compared.can_tell, compared.told, &compared.regressions[..]);
            output::data(&table::comparisons(&compared.cells, found, compared.threshold))
        }
        Format::Json => {
            let json = serde_json::to_string_pretty(compared)
                .map_err(|error| Failure::internal(format!("the comparison as JSON: {error}")))?;
            output::data(&format!("{json}\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use haltkick_vmm::Image;

    use super::*;
    use crate::experiment::plan::Plan;
    use crate::experiment::{Experiment, Source};
    use crate::host::cpulist::CpuList;
    use crate::measure::kernels;
    use crate::measure::synthetic::kernels::records as records_of_kernels;
    use crate::measure::synthetic::{Scratch, Shape, Sketch, World};
    use crate::settings::Supply;

    /// Eight blocks of a kernel with three figures of which two are compared, at two numbers of vCPUs.
    fn side_of_kernels(scratch: &Scratch, path: &str, figures: [f64; 3]) -> Side<LinuxRecord> {
        const TEXT: &str = "format = 1\nname = \"k\"\ntitle = \"K\"\nblocks = 8\n\
            [settings]\nkernel = \"kernel\"\ninitrd = \"initrd\"\n[grid]\nvcpus = [2, 4]\n\
            [[arm]]\nname = \"pv\"\n[[arm]]\nname = \"nopvspin\"\nnopvspin = true\n[control]\narm = \"pv\"\n";
        let compare = |of: &str| {
            format!(
                "[[compare]]\nname = \"{of}\"\narm = \"nopvspin\"\nbaseline = \"pv\"\nof = \"figure:{of}\"\n"
            )
        };
        let text = format!("{TEXT}{}{}{}", compare("loop"), compare("wake"), compare("kicks"));
        let source = Source { origin: scratch.path().join("k.toml").display().to_string(), text };
        let experiment = Experiment::parse(source).unwrap();
        let (image, allowed) = (Image::embedded(), CpuList(vec![0, 1]));
        let plan = Plan::new(&experiment, Supply { image: &image, allowed: &allowed }, 1).unwrap();
        let records = records_of_kernels(&plan, |_, block| {
            let scatter = 1.0 + f64::from(block % 5) / 500.0;
            let units = [("loop", "turns/s"), ("wake", "us"), ("kicks", "count")];
            let line = |((name, unit), value): (&(&str, &str), f64)| {
                format!("haltkick: {name}={} {unit}", value * scatter)
            };
            units.iter().zip(figures).map(line).collect()
        });
        let manifest = Manifest { kernels: kernels::files(&plan).unwrap(), ..World::new(1).manifest(&plan) };
        Side { path: path.into(), arm: None, manifest, records }
    }

    #[test]
    fn kernels_are_compared_by_figure_and_the_unit_defines_a_loss() {
        let scratch = Scratch::new("compare-kernels");
        for file in ["kernel", "initrd"] {
            std::fs::write(scratch.path().join(file), file).unwrap();
        }
        let side = |path: &str, figures| side_of_kernels(&scratch, path, figures);
        let before = side("before", [1e4, 50.0, 7.0]);
        // Faster loops are a win, longer waits are a loss, and more kicks are neither.
        for (figures, regressed) in
            [([2e4, 25.0, 70.0], &[][..]), ([5e3, 50.0, 7.0], &["loop"][..]), ([1e4, 75.0, 0.7], &["wake"])]
        {
            let after = side("after", figures);
            let compared = compare_sides(&before, &after, 0.05, vec![]).unwrap();
            assert_eq!((compared.cells.len(), compared.told, compared.can_tell), (3 * 2 * 2, 8, true));
            let of = |cell: &usize| compared.cells[*cell].of.figure().unwrap();
            let found: Vec<&str> = compared.regressions.iter().map(of).collect();
            let expected: Vec<&str> = regressed.iter().flat_map(|name| [*name; 4]).collect();
            assert_eq!(found, expected, "{figures:?}");
            let shown =
                table::comparisons(&compared.cells, (true, compared.told, &compared.regressions), 0.05);
            let shown = anstream::adapter::strip_str(&shown).to_string();
            assert!(
                shown.contains("figure") && shown.contains("4 of 12 cells are no regressions"),
                "{shown}"
            );
        }
        // Another kernel is what is compared; another RAM disk has other programs in it.
        std::fs::write(scratch.path().join("kernel"), "another").unwrap();
        let after = side("after", [1e4, 50.0, 7.0]);
        assert_eq!(differences(&before, &after, false).unwrap(), [""; 0]);
        std::fs::write(scratch.path().join("initrd"), "another").unwrap();
        let after = side("after", [1e4, 50.0, 7.0]);
        let refused = differences(&before, &after, false).unwrap_err().message;
        assert!(
            refused.contains("other initial RAM disks of pv; other initial RAM disks of nopvspin"),
            "{refused}"
        );
    }

    #[test]
    fn two_kernels_of_one_directory_are_compared_within_blocks() {
        let scratch = Scratch::new("compare-arms");
        for file in ["kernel", "initrd"] {
            std::fs::write(scratch.path().join(file), file).unwrap();
        }
        let both = side_of_kernels(&scratch, "both", [1e4, 50.0, 7.0]);
        let side = |arm: &str| Side {
            path: both.path.clone(),
            arm: Some(arm.into()),
            manifest: both.manifest.clone(),
            records: both.records.clone(),
        };
        let compared = compare_sides(&side("pv"), &side("nopvspin"), 0.05, vec![]).unwrap();
        assert_eq!(compared.cells.len(), 3 * 2);
        assert!(compared.cells.iter().all(|cell| cell.per_block == [1.0; 8]), "{:?}", compared.cells);
    }

    fn sketch() -> Sketch {
        let ratios: Vec<String> = (1..=20).map(|ratio| ratio.to_string()).collect();
        let ratios: Vec<&str> = ratios.iter().map(String::as_str).collect();
        Sketch::new().axis("ratio", &ratios).arm("a", "tas").arm("b", "ticket")
    }

    fn side(path: &str, sketch: &Sketch, blocks: u32, world: &World) -> Side<Record> {
        let plan = sketch.plan(blocks);
        let records = world.records(&plan);
        Side { path: path.into(), arm: None, manifest: world.manifest(&plan), records }
    }

    #[test]
    fn other_settings_and_other_hosts_are_compared_only_on_request() {
        let world = || World::new(1);
        let before = side("before", &sketch(), 1, &world());
        let longer = sketch().arm_with("c", "lock = \"mcs\"").head("# longer");
        let after = side("after", &longer, 1, &world().host_id(Some("host-b")));
        let refused = differences(&before, &after, false).unwrap_err();
        assert_eq!(refused.exit, Exit::Usage);
        assert!(
            refused.message.contains("host host-a and host-b; only the second has c, ratio 1"),
            "{refused}"
        );
        assert!(refused.message.ends_with("--anyway does"), "{refused}");
        let insisted = differences(&before, &after, true).unwrap();
        assert_eq!(insisted.len(), 2);
        assert_eq!(compare_sides(&before, &after, 0.05, insisted.clone()).unwrap().differences, insisted);
    }

    #[test]
    fn arms_are_paired_within_a_block_only_on_one_host() {
        let mut both = side("both", &Sketch::new().arm("a", "tas").arm("b", "ticket"), 8, &World::new(1));
        for record in &mut both.records {
            let place = record.place.as_ref().unwrap();
            if place.arm == "b" && place.block < 2 {
                record.host.host_id = Some("host-b".into());
            }
        }
        let side = |arm: &str| Side {
            path: both.path.clone(),
            arm: Some(arm.into()),
            manifest: both.manifest.clone(),
            records: both.records.clone(),
        };
        let compared = compare_sides(&side("a"), &side("b"), 0.05, vec![]).unwrap();
        assert_eq!(compared.cells[0].per_block.len(), 6);
    }

    #[test]
    fn a_loss_that_may_be_within_the_threshold_is_no_regression() {
        // Seven per cent are lost, and the noise leaves it open whether 5 % may be all of it.
        let world =
            |seed, factor: f64| World::new(seed).truth(move |_| 1e6 * factor).shape(Shape::LogNormal(0.02));
        let few = Sketch::new().arm("a", "tas");
        let before = side("before", &few, 8, &world(1, 1.0));
        let after = side("after", &few, 8, &world(2, 0.93));
        let compared = compare_sides(&before, &after, 0.05, vec![]).unwrap();
        let ratio = compared.cells[0].ratio.clone().unwrap();
        assert!(ratio.hodges_lehmann < 0.95 && ratio.interval.unwrap().high > 0.95, "{ratio:?}");
        assert_eq!(compared.regressions, [0; 0]);
        let lost = side("lost", &few, 8, &world(2, 0.85));
        assert_eq!(compare_sides(&before, &lost, 0.05, vec![]).unwrap().regressions, [0]);
    }

    #[test]
    fn where_no_loss_could_be_told_there_is_no_all_clear() {
        let sketch = sketch();
        let world =
            |seed, factor: f64| World::new(seed).truth(move |_| 1e6 * factor).shape(Shape::LogNormal(0.02));
        for (blocks, can_tell) in [(5, false), (7, true)] {
            // Nine tenths are lost.
            let before = side("before", &sketch, blocks, &world(1, 1.0));
            let after = side("after", &sketch, blocks, &world(2, 0.1));
            let compared = compare_sides(&before, &after, 0.05, vec![]).unwrap();
            assert_eq!(compared.cells.len(), 40);
            assert_eq!(
                (compared.can_tell, compared.regressions.len()),
                (can_tell, if can_tell { 40 } else { 0 })
            );
            assert_eq!(blocks as usize >= holm::runs_to_tell(40), can_tell);
        }
    }

    #[test]
    fn forty_losses_of_just_the_threshold_hardly_ever_make_a_regression() {
        let sketch = sketch();
        let mut alarms = 0;
        for seed in 0..20 {
            let world = |seed, factor: f64| {
                World::new(seed).truth(move |_| 1e6 * factor).shape(Shape::LogNormal(0.02))
            };
            let before = side("before", &sketch, 8, &world(seed, 1.0));
            let after = side("after", &sketch, 8, &world(1000 + seed, 0.95));
            let compared = compare_sides(&before, &after, 0.05, vec![]).unwrap();
            assert_eq!(compared.cells.len(), 40);
            alarms += u32::from(!compared.regressions.is_empty());
        }
        assert!(alarms <= 3, "{alarms} of 20 comparisons raised a false alarm");
    }
}
