//! `haltkick worst`: what losing the CPU costs at each instruction of a lock.

mod places;
mod screen;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use haltkick_vmm::worst::{Attempt, Cut, Effect, Kind, Scope, replay as cut, survey};
use haltkick_vmm::{Entry, Image, LockFlags, Run};

use crate::analysis::worst::{Heat, Parts, Worst};
use crate::cli::{Format, PointsChoice, TakeChoice, WorstArgs};
use crate::commands::{guest_image, interrupt};
use crate::host::cpulist;
use crate::results::directory::{self, Directory};
use crate::results::preemption::Preemption;
use crate::settings::{Settings, Supply};
use crate::show;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

/// vCPUs per pCPU, unless the settings say how many.
const DEFAULT_RATIO: &str = "2";
/// Least time in which instructions are looked for, and least time that an attempt is followed beyond its preemption.
const LEAST_SPAN: Duration = Duration::from_millis(4);
const LEAST_HORIZON: Duration = Duration::from_millis(3);
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
    let round = round(&asked.run);
    let horizon = args.length.0 + LEAST_HORIZON.max(round * 3 / 2);
    let every = args.points == PointsChoice::Every;
    asked.scope = Scope { span: LEAST_SPAN.max(round * 2), horizon, every };
    let output = Directory::anew(args.output.as_deref(), "worst")?;
    let (answer, map, interrupted) = screen::screen(args, &asked, &output)?;
    conclude(args, &answer, &map, &output)?;
    let broken = &answer.broken;
    Ok(match interrupted {
        true => Exit::Interrupted,
        false if broken.iter().any(|broken| !broken.is_stuck) => Exit::GuestFailed,
        false if !broken.is_empty() => Exit::NoProgress,
        false => within(args, answer.most()),
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

fn conclude(args: &WorstArgs, answer: &Worst, map: &[Heat], output: &Path) -> Result<()> {
    let json = output::to_indented_json(answer)?;
    directory::write_whole(&output.join("worst.json"), &json)?;
    directory::write_whole(&output.join("report.html"), show::worst::page(answer, map))?;
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
    asked.kind = kind(Duration::from_nanos(file.for_ns), file.takes_pcpu);
    let mut cuts = vec![Cut { closes: file.closes, ..Cut::new(file.vcpu, file.instructions, asked.kind) }];
    cuts.extend(file.then.iter().map(|then| Cut::new(then.vcpu, then.instructions, asked.kind)));
    if let Some(cut) = cuts.iter().find(|cut| cut.vcpu >= asked.run.guests[0].vcpus) {
        return Err(refuse(format!("there is no vCPU {} in its guest", cut.vcpu)));
    }
    let [span, horizon] = [file.span_ns, file.horizon_ns].map(Duration::from_nanos);
    asked.scope = Scope { span, horizon, every: false };
    let run = asked.seeded(file.seed);
    let baseline = survey(&run, &asked.image, asked.scope, &asked.stop)?;
    match cut((&run, &asked.image), &baseline, &cuts, &asked.stop)? {
        Attempt::Held(effect, state) => {
            let same = came_to(&effect) == file.came_to;
            let lost = asked.lost(&effect, &cuts);
            let text = match args.format {
                Format::Table => show::worst::replayed(&file.place, lost, &effect, state.as_deref()),
                Format::Json => show::worst::replayed_json(lost, &effect, state.as_deref(), same)?,
            };
            output::data(&text)?;
            if same {
                return Ok(within(args, lost.sum()));
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

/// The result of an attempt, as files tell it.
fn came_to(effect: &Effect) -> String {
    format!("{:016x}", effect.fingerprint)
}

/// Settings of a context, over those that were given.
type Changes = &'static [(&'static str, &'static str)];

/// Contexts that the bug finder tries besides the one that was asked for, one seed each. Some code of a lock is reached only where few
/// vCPUs want it, where several locks are used, or where a head gives up spinning before its lock is released.
const CONTEXTS: [Changes; 5] = [
    &[("think", "10us")],
    &[("spin-threshold", "5us")],
    &[("think", "40us"), ("spin-threshold", "5us")],
    &[("think", "5us/exponential")],
    &[("locks", "16"), ("think", "200ns"), ("spin-threshold", "5us")],
];
const WITH_READERS: [Changes; 2] = [&[("read-share", "50%")], &[("read-share", "50%"), ("think", "10us")]];

/// Plan of the attempts.
struct Asked {
    image: Image,
    run: Run,
    scope: Scope,
    kind: Kind,
    /// Settings and runs: those that were asked for, then those of further contexts. Seeds take them in turn.
    contexts: Vec<(Settings, Run)>,
    stop: Arc<AtomicBool>,
}

impl Asked {
    /// The run that `settings` mean, checked for what can be tried.
    fn new(args: &WorstArgs, settings: Settings) -> Result<Self> {
        let image = guest_image::load(args.guest.as_deref(), settings.locks())?;
        let run = resolved(&settings, &image)?;
        let scope = Scope { span: Duration::ZERO, horizon: Duration::ZERO, every: false };
        let stop = interrupt::catch()?;
        let contexts = vec![(settings, run.clone())];
        Ok(Self { image, run, scope, kind: Kind::Exit, contexts, stop })
    }

    /// Seeds differ in their context, too. What `given` says stays as it is.
    fn vary(&mut self, given: &Settings) -> Result<()> {
        let is_asked = |lock: &&Entry| lock.name == self.run.our(0).ours.lock;
        let has_readers = |lock: &Entry| lock.lock_flags().has(LockFlags::HAS_READERS);
        let readers = self.image.locks.iter().find(is_asked).is_some_and(has_readers);
        let more = WITH_READERS.iter().filter(|_| readers);
        for changes in CONTEXTS.iter().chain(more) {
            if changes.iter().any(|(name, _)| given.given(name).is_some()) {
                continue;
            }
            let settings =
                self.contexts[0].0.clone().with(changes.iter().copied()).map_err(Failure::internal)?;
            // A context that the lock does not allow is left out.
            if let Ok(run) = resolved(&settings, &self.image) {
                self.contexts.push((settings, run));
            }
        }
        Ok(())
    }

    fn context(&self, seed: u64) -> &(Settings, Run) {
        let number = seed.wrapping_sub(self.run.guests[0].seed) as usize;
        &self.contexts[number % self.contexts.len()]
    }

    /// The run with another seed, in its context.
    fn seeded(&self, seed: u64) -> Run {
        let mut run = self.context(seed).1.clone();
        run.guests[0].seed = seed;
        run
    }

    /// Causes of the time lost by `cuts`, over the time that a vCPU was off. The time of a pCPU that was taken away is not lost.
    fn lost(&self, effect: &Effect, cuts: &[Cut]) -> Parts {
        // An exit has no length, and counts as a millisecond.
        let length = Some(self.kind.length()).filter(|length| !length.is_zero());
        let off_ns = length.unwrap_or(Duration::from_millis(1)).as_nanos() as f64;
        let taken = |cut: &Cut| if let Kind::Taken(time) = cut.kind { time } else { Duration::ZERO };
        let taken_ns = cuts.iter().map(taken).sum::<Duration>().as_nanos() as f64;
        let lost = (effect.late_ns as f64 * self.run.cpus.len() as f64 - taken_ns) / off_ns;
        let idle = (effect.idle_ns as f64 - taken_ns) / off_ns;
        let vmm = effect.vmm_ns as f64 / off_ns;
        Parts { idle, vmm, guest: lost - idle - vmm }
    }
}

/// The run that `settings` mean, checked for what can be tried.
fn resolved(settings: &Settings, image: &Image) -> Result<Run> {
    let allowed = cpulist::allowed()?;
    let supply = Supply { image, allowed: &allowed };
    let mut run = settings.resolve(supply)?;
    check(&run, image)?;
    if settings.given("warmup").is_none() {
        run.warmup = round(&run) * 2;
    }
    run.drain = true;
    haltkick_vmm::check_guests(&run, image)?;
    Ok(run)
}

/// Time in which each vCPU has had a turn.
fn round(run: &Run) -> Duration {
    run.rules.slice * run.guests[0].vcpus.div_ceil(run.cpus.len() as u32)
}

/// Refuses what no preemption can be tried in.
fn check(run: &Run, image: &Image) -> Result<()> {
    let ours = run.our(0).ours;
    let is_asked = |lock: &&Entry| lock.name == ours.lock;
    let is_lock_free = image.locks.iter().find(is_asked).is_some_and(Entry::is_lock_free);
    if is_lock_free {
        return Err(Failure::usage("--lock: no vCPU holds or awaits this lock: take another one"));
    }
    let refused = [
        (run.guests.len() > 1, "vm", "preemptions are tried in one guest"),
        (run.deschedule.is_some(), "deschedule", "this command takes vCPUs off by itself"),
        (run.schedule.is_some(), "schedule", "this command takes vCPUs off by itself"),
        (ours.shape.work().is_some(), "work", "preemptions are tried in a run without an end"),
        (!ours.oracle, "oracle", "a lock is watched while vCPUs are taken off"),
    ];
    let refused = refused.into_iter().find(|(holds, ..)| *holds);
    refused
        .map_or(Ok(()), |(_, flag, why)| Err(Failure::usage(format!("--{flag}: {why}: leave --{flag} out"))))
}
