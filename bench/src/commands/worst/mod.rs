//! `haltkick worst`: what losing the CPU costs at each instruction of a lock.

mod asked;
mod places;
mod screen;

use std::path::Path;
use std::time::Duration;

use haltkick_vmm::Run;
use haltkick_vmm::worst::{Attempt, Cut, Kind, Scope, replay as cut, survey};

use crate::cli::{Format, PointsChoice, TakeChoice, WorstArgs};
use crate::results::directory::{self, Directory};
use crate::results::preemption::{Preemption, Then};
use crate::settings::Settings;
use crate::show;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

use asked::{Asked, round};
use screen::Screened;

/// vCPUs per pCPU, unless the settings say how many.
const DEFAULT_RATIO: &str = "2";
/// Least time in which instructions are looked for, and least time that an attempt is followed beyond its preemption.
const LEAST_SPAN: Duration = Duration::from_millis(4);
const LEAST_HORIZON: Duration = Duration::from_millis(3);
/// The longest preemption that is tried.
const LONGEST: Duration = Duration::from_millis(100);

pub(crate) fn worst(args: &WorstArgs) -> Result<Exit> {
    if let Some(path) = &args.replay {
        return replay(args, path);
    }
    if args.length.0 > LONGEST {
        return Err(Failure::usage("--for: a preemption lasts 100ms at most"));
    }
    let mut asked = Asked::new(args, settings(args)?)?;
    asked.kind = kind(args.length.0, args.take == TakeChoice::Pcpu);
    if args.find_bugs {
        asked.vary(&args.settings)?;
    }
    if args.take == TakeChoice::Pcpu && asked.run.host.is_some() {
        return Err(Failure::usage("--take: a model of a host's scheduler loses no pCPU: leave --host out"));
    }
    asked.scope = scope(&asked.run, args.length.0, args.points == PointsChoice::Every);
    let output = Directory::anew(args.output.as_deref(), "worst")?;
    let screened = screen::screen(args, &asked, &output)?;
    conclude(args, &screened, &output)?;
    let broken = &screened.answer.broken;
    Ok(match screened.interrupted {
        true => Exit::Interrupted,
        false if broken.iter().any(|broken| !broken.is_stuck) => Exit::GuestFailed,
        false if !broken.is_empty() => Exit::NoProgress,
        false => within(args, screened.answer.most()),
    })
}

/// The exit code for the largest loss.
fn within(args: &WorstArgs, lost: f64) -> Exit {
    if args.at_most.is_some_and(|most| lost > most) { Exit::Regression } else { Exit::Done }
}

/// Event that befalls a vCPU for `length`.
fn kind(length: Duration, takes_pcpu: bool) -> Kind {
    match (length.is_zero(), takes_pcpu) {
        (true, _) => Kind::Exit,
        (false, true) => Kind::Taken(length),
        (false, false) => Kind::Off(length),
    }
}

fn scope(run: &Run, length: Duration, every: bool) -> Scope {
    let round = round(run);
    Scope { span: LEAST_SPAN.max(round * 2), horizon: length + LEAST_HORIZON.max(round * 3 / 2), every }
}

/// Settings of the command line, over those of this command.
fn settings(args: &WorstArgs) -> Result<Settings> {
    let mut settings = args.settings.clone();
    if settings.given("engine").is_some_and(|engine| engine.text() != "sim") {
        return Err(Failure::usage("--engine: only a simulated machine can be copied: leave it out"));
    }
    if settings.given("machine").is_none() {
        return Err(Failure::usage("--machine: name one of `haltkick list machines`, or a file"));
    }
    settings.set("engine", "sim").map_err(Failure::usage)?;
    if settings.given("ratio").is_none() && settings.given("vcpus").is_none() {
        settings.set("ratio", DEFAULT_RATIO).map_err(Failure::usage)?;
    }
    Ok(settings)
}

fn conclude(args: &WorstArgs, screened: &Screened, output: &Path) -> Result<()> {
    let answer = &screened.answer;
    let json = output::to_indented_json(answer)?;
    directory::write_whole(&output.join("worst.json"), &json)?;
    directory::write_whole(&output.join("report.html"), show::worst::page(answer, &screened.map))?;
    match args.format {
        Format::Table => output::data(&show::worst::text(answer, args.top))?,
        Format::Json => output::data(&json)?,
    }
    output::talk(&format!("results: {0}, report: {0}/report.html", output.display()));
    Ok(())
}

/// `haltkick worst --replay`: one preemption, again and from the start.
fn replay(args: &WorstArgs, path: &Path) -> Result<Exit> {
    let refuse = |message: String| Failure::usage(format!("--replay: {}: {message}", path.display()));
    if args.settings.all_given().next().is_some() {
        return Err(refuse("it has all settings: leave the others out".into()));
    }
    let file = Preemption::read(path)?;
    let mut asked = Asked::new(args, file.settings().map_err(refuse)?)?;
    if !file.is_of(&asked.image) {
        return Err(refuse(
            "it was found in another guest image, whose instructions are others: use that haltkick, or --guest".into(),
        ));
    }
    let vcpus = asked.run.guests[0].vcpus;
    if let Some(cut) = cuts_of(&file, asked.kind).iter().find(|cut| cut.vcpu >= vcpus) {
        return Err(refuse(format!("there is no vCPU {} in its guest", cut.vcpu)));
    }
    let [span, horizon] = [file.span_ns, file.horizon_ns].map(Duration::from_nanos);
    asked.scope = Scope { span, horizon, every: false };
    let run = asked.seeded(file.seed);
    let baseline = survey(&run, &asked.image, asked.scope, &asked.stop)?;
    asked.kind = kind(Duration::from_nanos(file.for_ns), file.takes_pcpu);
    let cuts = cuts_of(&file, asked.kind);
    match cut((&run, &asked.image), &baseline, &cuts, &asked.stop)? {
        Attempt::Held(effect, state) => {
            let same = format!("{:016x}", effect.fingerprint) == file.came_to;
            let lost = asked.lost(&effect, &cuts);
            let text = match args.format {
                Format::Table => show::worst::replayed(&file.place, lost, &effect, state.as_deref()),
                Format::Json => show::worst::replayed_json(lost, &effect, state.as_deref(), same)?,
            };
            output::data(&text)?;
            if same {
                return Ok(within(args, lost.0));
            }
            let was = &file.came_to;
            Err(Failure {
                exit: Exit::Untrusted,
                message: format!(
                    "{}: it came to something else then ({was}): another haltkick simulates differently",
                    path.display()
                ),
            })
        }
        Attempt::Broke(broken) => {
            output::data(&format!("{}\n{}", broken.what, broken.explanation))?;
            Ok(if broken.is_stuck { Exit::NoProgress } else { Exit::GuestFailed })
        }
        Attempt::NotCarriedOut(what) => Err(Failure::lacking(what)),
        Attempt::Unreached => Err(refuse("a vCPU never comes to its instruction".into())),
    }
}

/// Preemptions of a file.
fn cuts_of(file: &Preemption, kind: Kind) -> Vec<Cut> {
    let first = Cut { closes: file.closes, ..Cut::new(file.vcpu, file.instructions, kind) };
    let then = file.then.iter().map(|&Then { vcpu, instructions, .. }| Cut::new(vcpu, instructions, kind));
    std::iter::once(first).chain(then).collect()
}
