//! `haltkick worst`: what losing the CPU costs at each instruction of a lock.

mod places;
mod progress;
mod replay;
mod screen;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use haltkick_vmm::worst::Scope;
use haltkick_vmm::{Entry, FILE_PREFIX, Image, Run};

use crate::analysis::worst::Worst;
use crate::cli::{Format, PointsChoice, WorstArgs};
use crate::commands::{guest_image, interrupt};
use crate::experiment::user_defaults;
use crate::host::cpulist;
use crate::results::directory;
use crate::settings::{Settings, Supply};
use crate::show;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;
use crate::text::timestamp;

/// vCPUs per pCPU, unless the settings say how many.
const DEFAULT_RATIO: &str = "2";
/// Least time in which instructions are looked for, and least time that an attempt is followed beyond its preemption.
const LEAST_SPAN: Duration = Duration::from_millis(4);
const LEAST_HORIZON: Duration = Duration::from_millis(3);
/// The longest preemption that is tried.
const LONGEST: Duration = Duration::from_millis(100);

/// Plan of the attempts.
struct Asked {
    /// All that was said, the user's defaults included.
    settings: Settings,
    image: Image,
    run: Run,
    scope: Scope,
    length: Duration,
    stop: Arc<AtomicBool>,
}

pub(crate) fn worst(args: &WorstArgs) -> Result<Exit> {
    if let Some(path) = &args.replay {
        return replay::replay(args, path);
    }
    if args.length.0 > LONGEST {
        return Err(Failure::usage("--for: a preemption lasts 100ms at most"));
    }
    let output = args.output.clone().unwrap_or_else(default_output);
    if output.exists() {
        let output = output.display();
        return Err(Failure::usage(format!("--output: {output} is there already: choose another name")));
    }
    let mut asked = Asked::new(args, settings(args)?)?;
    asked.length = args.length.0;
    asked.scope = scope(&asked.run, args.length.0, args.points == PointsChoice::Every);
    let screened = screen::screen(args, &asked, &output)?;
    conclude(args, &screened.answer, &output)?;
    let broken = &screened.answer.broken;
    Ok(match screened.interrupted {
        true => Exit::Interrupted,
        false if broken.iter().any(|broken| !broken.is_stuck) => Exit::GuestFailed,
        false if !broken.is_empty() => Exit::NoProgress,
        false => Exit::Done,
    })
}

impl Asked {
    /// The run that `settings` mean, checked for what can be tried.
    fn new(args: &WorstArgs, settings: Settings) -> Result<Self> {
        let image = guest_image::load(args.guest.as_deref(), settings.locks())?;
        let allowed = cpulist::allowed()?;
        let supply = Supply { image: &image, allowed: &allowed };
        let mut run = settings
            .resolve(supply)
            .map_err(|wrong| Failure::usage(format!("--{}: {}", wrong.about, wrong.message)))?;
        check(&run, &image)?;
        if settings.given("warmup").is_none() {
            run.warmup = round(&run) * 2;
        }
        run.drain = true;
        haltkick_vmm::check_guests(&run, &image)?;
        let scope = Scope { span: Duration::ZERO, horizon: Duration::ZERO, every: false };
        Ok(Self { settings, image, run, scope, length: Duration::ZERO, stop: interrupt::catch()? })
    }

    /// The run with another seed.
    fn seeded(&self, seed: u64) -> Run {
        let mut run = self.run.clone();
        run.guests[0].seed = seed;
        run
    }

    /// Lost time over the time that the vCPU was off.
    fn lost(&self, late_ns: i64) -> f64 {
        let off_ns = self.length.as_nanos().max(1_000_000) as f64;
        late_ns as f64 * self.run.cpus.len() as f64 / off_ns
    }
}

/// Time in which each vCPU has had a turn.
fn round(run: &Run) -> Duration {
    run.rules.slice * run.guests[0].vcpus.div_ceil(run.cpus.len() as u32)
}

fn scope(run: &Run, length: Duration, every: bool) -> Scope {
    let round = round(run);
    Scope { span: LEAST_SPAN.max(round * 2), horizon: length + LEAST_HORIZON.max(round * 3 / 2), every }
}

/// Refuses what no preemption can be tried in.
fn check(run: &Run, image: &Image) -> Result<()> {
    let refuse = |message: &str| Err(Failure::usage(message));
    let is_asked = |lock: &&Entry| lock.name == run.our(0).ours.lock;
    if image.locks.iter().find(is_asked).is_some_and(Entry::is_lock_free) {
        return refuse("--lock: nobody holds or awaits this lock: take another one");
    }
    if run.guests.len() > 1 {
        return refuse("--vm: preemptions are tried in one guest: leave --vm out");
    }
    let ours = run.our(0).ours;
    if run.deschedule.is_some() {
        return refuse("--deschedule: this command takes vCPUs off by itself: leave --deschedule out");
    }
    if ours.mix.work_sections.is_some() {
        return refuse("--work: preemptions are tried in a run without an end: leave --work out");
    }
    if !ours.oracle {
        return refuse("--oracle: a lock is watched while vCPUs are taken off: leave --oracle out");
    }
    Ok(())
}

/// Settings of the command line, over the user's defaults and those of this command.
fn settings(args: &WorstArgs) -> Result<Settings> {
    let mut given = args.settings.clone();
    if let Some(object) = &args.lock_object {
        given.set("lock", &format!("{FILE_PREFIX}{}", object.display())).map_err(Failure::usage)?;
    }
    if given.given("engine").is_some_and(|engine| engine.text() != "sim") {
        return Err(Failure::usage("--engine: only a simulated machine can be copied: leave it out"));
    }
    if given.given("machine").is_none() {
        return Err(Failure::usage("--machine: name one of `haltkick list machines`, or a file"));
    }
    let defaults = user_defaults::of_user()?;
    defaults.told().iter().for_each(|line| output::talk(line));
    let mut settings = given.over(&defaults.settings);
    settings.set("engine", "sim").map_err(Failure::usage)?;
    if settings.given("ratio").is_none() && settings.given("vcpus").is_none() {
        settings.set("ratio", DEFAULT_RATIO).map_err(Failure::usage)?;
    }
    Ok(settings)
}

fn default_output() -> PathBuf {
    Path::new("experiments-out").join(format!("worst-{}", timestamp::for_file_name(SystemTime::now())))
}

fn conclude(args: &WorstArgs, answer: &Worst, output: &Path) -> Result<()> {
    let json = serde_json::to_string_pretty(answer)
        .map_err(|error| Failure::internal(format!("the answer as JSON: {error}")))?;
    let json = json + "\n";
    directory::write_whole(&output.join("worst.json"), &json)?;
    match args.format {
        Format::Table => output::data(&show::worst::text(answer, args.top))?,
        Format::Json => output::data(&json)?,
    }
    output::talk(&format!("results: {}", output.display()));
    Ok(())
}
