//! `haltkick worst`: what losing the CPU costs at each instruction of a lock.

mod places;
mod progress;
mod replay;
mod screen;
mod sets;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use haltkick_vmm::worst::{Cut, Effect, Kind, Scope};
use haltkick_vmm::{Entry, FILE_PREFIX, Image, Run};

use crate::analysis::worst::{Parts, SourcePlace};
use crate::cli::{Format, PointsChoice, TakeChoice, WorstArgs};
use crate::commands::{guest_image, interrupt};
use crate::experiment::user_defaults;
use crate::host::cpulist;
use crate::results::directory;
use crate::results::preemption::{Preemption, Then};
use crate::settings::{Settings, Supply};
use crate::show;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;
use crate::text::timestamp;

use screen::Screened;

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
    kind: Kind,
    /// Seeds differ in how busy the lock is, too: some code is reached only where few vCPUs want it.
    varies_load: bool,
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
    asked.kind = kind(args.length.0, args.take == TakeChoice::Pcpu);
    asked.varies_load = args.find_bugs && args.settings.given("think").is_none();
    if args.take == TakeChoice::Pcpu && asked.run.host.is_some() {
        return Err(Failure::usage("--take: a model of a host's scheduler loses no pCPU: leave --host out"));
    }
    asked.scope = scope(&asked.run, args.length.0, args.points == PointsChoice::Every);
    let screened = screen::screen(args, &asked, &output)?;
    conclude(args, &screened, &output)?;
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
        Ok(Self {
            settings,
            image,
            run,
            scope,
            kind: Kind::Exit,
            varies_load: false,
            stop: interrupt::catch()?,
        })
    }

    /// The run with another seed.
    fn seeded(&self, seed: u64) -> Run {
        let mut run = self.run.clone();
        run.guests[0].seed = seed;
        if let (Some(think), Some(ours)) = (self.think_us(seed), run.guests[0].ours_mut()) {
            ours.think = Duration::from_micros(think);
        }
        run
    }

    /// Time between sections that a seed has instead of the one that was asked for, in microseconds.
    fn think_us(&self, seed: u64) -> Option<u64> {
        let number = seed.wrapping_sub(self.run.guests[0].seed) as usize;
        self.varies_load.then(|| [None, Some(10), Some(40)][number % 3]).flatten()
    }

    /// Time lost by `cuts`, and its causes, over the time that a vCPU was off. The time of a pCPU that was taken away is not lost.
    fn lost(&self, effect: &Effect, cuts: &[Cut]) -> (f64, Parts) {
        let off_ns = self.kind.length().as_nanos().max(1_000_000) as f64;
        let taken = |cut: &Cut| if let Kind::Taken(time) = cut.kind { time } else { Duration::ZERO };
        let taken_ns = cuts.iter().map(taken).sum::<Duration>().as_nanos() as f64;
        let lost = (effect.late_ns as f64 * self.run.cpus.len() as f64 - taken_ns) / off_ns;
        let idle = (effect.idle_ns as f64 - taken_ns) / off_ns;
        let vmm = effect.vmm_ns as f64 / off_ns;
        (lost, Parts { idle, vmm, guest: lost - idle - vmm })
    }
}

impl Asked {
    /// The file that has `cuts`, of which each has its place, done again with `seed`.
    fn file(&self, scope: Scope, seed: u64, cuts: &[(Cut, &SourcePlace)], came_to: String) -> Preemption {
        let mut thens = cuts.iter().map(|(cut, place)| {
            let line = place.line.as_deref().unwrap_or("no line");
            let place = format!("{} ({line}): {}", place.function, place.instruction);
            Then { place, vcpu: cut.vcpu, instructions: cut.instructions }
        });
        let mut file = Preemption::new(&self.image);
        if let Some(first) = thens.next() {
            (file.place, file.vcpu, file.instructions) = (first.place, first.vcpu, first.instructions);
        }
        let kind = cuts.first().map_or(Kind::Exit, |(cut, _)| cut.kind);
        let mut settings = Preemption::settings_of(&self.settings);
        settings.extend(self.think_us(seed).map(|us| ("think".to_owned(), format!("{us}us"))));
        Preemption {
            for_ns: kind.length().as_nanos() as u64,
            takes_pcpu: matches!(kind, Kind::Taken(_)),
            span_ns: scope.span.as_nanos() as u64,
            horizon_ns: scope.horizon.as_nanos() as u64,
            seed,
            came_to,
            settings,
            then: thens.collect(),
            ..file
        }
    }
}

/// Event that befalls a vCPU for `length`.
fn kind(length: Duration, takes_pcpu: bool) -> Kind {
    match (length.is_zero(), takes_pcpu) {
        (true, _) => Kind::Exit,
        (false, true) => Kind::Taken(length),
        (false, false) => Kind::Off(length),
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

fn conclude(args: &WorstArgs, screened: &Screened, output: &Path) -> Result<()> {
    let answer = &screened.answer;
    let json = serde_json::to_string_pretty(answer)
        .map_err(|error| Failure::internal(format!("the answer as JSON: {error}")))?;
    let json = json + "\n";
    directory::write_whole(&output.join("worst.json"), &json)?;
    directory::write_whole(&output.join("report.html"), show::worst::page(answer, &screened.map))?;
    match args.format {
        Format::Table => output::data(&show::worst::text(answer, args.top))?,
        Format::Json => output::data(&json)?,
    }
    output::talk(&format!("results: {0}, report: {0}/report.html", output.display()));
    Ok(())
}
