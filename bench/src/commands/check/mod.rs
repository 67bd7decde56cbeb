//! `haltkick check`: a lock object under torture, and a verdict.
//!
//! The guest is that of all commands, with its oracle and watchdog; the runs differ: they are many, short, and each of
//! another kind. The order is shuffled by seed, so that also a short check has tried some of everything.

mod torture;
mod verdict;

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use haltkick_vmm::{Engine, FILE_PREFIX, Image, Needs, Run, RunError, Span};
use rand::{SeedableRng as _, rngs::ChaCha8Rng};

use crate::cli::CheckArgs;
use crate::commands::{guest_image, interrupt};
use crate::host::cpulist::{self, CpuList};
use crate::measure::calibrate::Calibration;
use crate::measure::engine;
use crate::settings::{Settings, Supply, Value};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;
use torture::Trial;
use verdict::Tried;

/// Headers that lock objects are written to: for users who have only this program.
const HEADERS: [&str; 2] = [haltkick_vmm::HEADER, include_str!("../../../../include/haltkick.rs")];

pub(crate) fn check(args: &CheckArgs) -> Result<Exit> {
    match (&args.print_header, &args.object) {
        (Some(language), _) => {
            output::data(HEADERS[usize::from(language == "rust")])?;
            Ok(Exit::Done)
        }
        // Without the oracle, two vCPUs in one section or a lost update would go unnoticed.
        (None, Some(_)) if args.settings.given("oracle").is_some_and(|oracle| !oracle.is_on()) => {
            Err(Failure::usage("--oracle off: the lock needs its exclusion checker; leave the option out"))
        }
        (None, Some(object)) => torment(args, object),
        (None, None) => Err(Failure::usage("no object file is given")),
    }
}

fn torment(args: &CheckArgs, object: &Path) -> Result<Exit> {
    let image =
        guest_image::load(args.image.guest.as_deref(), [&*format!("{FILE_PREFIX}{}", object.display())])?;
    let entry = image.locks.last().expect("it was linked").clone();
    let mut job = Job {
        args,
        object,
        lock: entry.name.clone(),
        image,
        allowed: cpulist::allowed()?,
        least_slice: Cell::new(None),
        rate: None,
    };
    let forms = [(entry.has_native(), false), (entry.has_paravirt(), true)];
    let forms: Vec<bool> = forms.into_iter().filter(|(has, _)| *has).map(|(_, pv)| pv).collect();
    let trials = torture::trials(&entry, &forms);
    let probe = job.of_trial(&trials[0], 1)?;
    guest_image::check_trust(&args.image, &job.image, std::iter::once(&probe.engine))?;
    // Each trial asks for what it uses.
    let runs: Vec<Run> = trials.iter().filter_map(|trial| job.of_trial(trial, 1).ok()).collect();
    guest_image::confine(&Needs::of(&runs))?;
    let stop = interrupt::catch()?;
    let engine = engine::kvm(&job.image, &stop, None);
    job.rate = Some(match probe.work_rate {
        Some(rate) => rate,
        None => Calibration::measure(&engine, &probe, &job.image, 1)?.work_rate,
    });
    let mut tried = Tried::of(&entry, &forms);
    tried.cases.plan(trials.iter().map(|trial| trial.name.as_str()));
    let begin = Instant::now();
    let ended = job.torture(&trials, &engine, &mut tried);
    let suite = format!("haltkick check {}", object.display());
    let is_text = tried.cases.print(&suite, args.format)?;
    match ended {
        Ok(()) => {
            if is_text {
                output::data(&tried.verdict(object, begin.elapsed()))?;
            }
            Ok(if tried.gaps().is_empty() { Exit::Done } else { Exit::Untrusted })
        }
        Err(failure) => {
            if is_text && failure.exit == Exit::Interrupted {
                output::data(&tried.so_far(object))?;
            }
            Err(failure)
        }
    }
}

struct Job<'a> {
    args: &'a CheckArgs,
    object: &'a Path,
    lock: String,
    image: Image,
    allowed: CpuList,
    /// Shorter slices are too short for this host.
    least_slice: Cell<Option<Span>>,
    /// The work rate of this host, once it is known.
    rate: Option<u64>,
}

/// Slices in which a guest gets to work on every host that was met; 60 us were too short on one.
const SLICE_OF_SLOW_HOSTS: Span = Span(Duration::from_micros(200));

impl Job<'_> {
    /// Runs trials until the time is over, one of each kind in any case.
    fn torture(&self, trials: &[Trial], engine: engine::Engine<'_>, tried: &mut Tried) -> Result<()> {
        let begin = Instant::now();
        let first = self.args.settings.given("seed").map_or(1, Value::to);
        for seed in first.. {
            let (order, kinds) = torture::each_kind_first(trials, &mut ChaCha8Rng::seed_from_u64(seed));
            if seed == first {
                let least = EACH * u32::try_from(kinds).expect("there are few kinds");
                let time = Span(least.max(self.args.time.0));
                output::talk(&format!("{} trials of {kinds} kinds: about {time}", trials.len()));
            }
            for (number, trial) in order.iter().enumerate() {
                if begin.elapsed() >= self.args.time.0 && (seed > first || number >= kinds) {
                    tried.unreached = if seed == first { trials.len() - number } else { 0 };
                    return if tried.runs() > 0 { Ok(()) } else { Err(tried.nothing()) };
                }
                self.make(trial, seed, engine, tried)?;
            }
            if tried.runs() == 0 {
                return Err(tried.nothing());
            }
        }
        Ok(())
    }

    fn make(&self, trial: &Trial, seed: u64, engine: engine::Engine<'_>, tried: &mut Tried) -> Result<()> {
        let run = match self.of_trial(trial, seed) {
            Ok(run) => run,
            // A trial that this host or engine cannot make is left out, and the verdict says so.
            Err(failure) => {
                tried.left_out(trial, failure);
                return Ok(());
            }
        };
        match engine(&run) {
            Ok(seen) => seen.found.outcomes().for_each(|outcome| tried.add(trial, run.our(0), outcome)),
            Err(RunError::SliceTooShort(reason)) if self.least_slice.get().is_none() => {
                output::talk(&format!(
                    "{reason}: from here on, slices of trials are {SLICE_OF_SLOW_HOSTS} at least"
                ));
                self.least_slice.set(Some(SLICE_OF_SLOW_HOSTS));
                return self.make(trial, seed, engine, tried);
            }
            Err(error @ (RunError::Usage(_) | RunError::HostLacks(_) | RunError::SliceTooShort(_))) => {
                tried.left_out(trial, error.into());
            }
            Err(error) => {
                let failure = Failure::from(error);
                if !is_of_the_lock(failure.exit) {
                    tried.cases.skipped(&trial.name, &failure.message);
                    return Err(failure);
                }
                let failure = self.found(trial, seed, &failure);
                tried.cases.failed(&trial.name, &failure.message);
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Settings of a trial. Those of the command line hold for all trials.
    fn settings(&self, trial: &Trial, seed: u64) -> Result<Settings> {
        let seed = seed.to_string();
        let settings = Settings::default().with([("lock", &*self.lock), ("seed", &*seed)]);
        // It is of our own making: to leave it out as if this host lacked something would look like an all-clear.
        let settings = settings.map_err(Failure::usage)?.with(trial.settings());
        let mut settings = settings.unwrap_or_else(|wrong| panic!("{}: {wrong}", trial.name));
        let is_simulated = settings.given("engine").is_some_and(|engine| engine.text() == "sim");
        if let Some(least) = self.least_slice.get().filter(|_| !is_simulated)
            && settings.given("slice").is_some_and(|slice| slice.time() < least.0)
        {
            settings.set("slice", &least.to_string()).map_err(Failure::usage)?;
        }
        Ok(self.args.settings.clone().over(&settings))
    }

    fn of_trial(&self, trial: &Trial, seed: u64) -> Result<Run> {
        let supply = Supply { image: &self.image, allowed: &self.allowed };
        let mut run = self.settings(trial, seed)?.resolve(supply)?;
        if run.engine.is_simulated() {
            run.watchdog = run.watchdog.map(|watchdog| watchdog.min(trial.simulated_patience()));
        } else {
            run.work_rate = run.work_rate.or(self.rate);
        }
        // It cannot say which vCPUs have left.
        run.drain &= !matches!(run.engine, Engine::Qemu(_));
        haltkick_vmm::check_guests(&run, &self.image)?;
        Ok(run)
    }

    /// A trial has found something: what, and how to see it again. A race may take some runs to come again.
    fn found(&self, trial: &Trial, seed: u64, failure: &Failure) -> Failure {
        let settings = self.settings(trial, seed).expect("it was run with them");
        let flags: Vec<String> = settings
            .all_given()
            .filter(|(setting, _)| setting.name != "lock")
            .map(|(setting, value)| format!("--{} {value}", setting.flag.unwrap_or(setting.name)))
            .collect();
        output::talk(&format!(
            "found with {}; to look at it again:\n  haltkick run --lock-object {} {} --no-ideal --repeat {AGAIN}",
            trial.name,
            self.object.display(),
            flags.join(" ")
        ));
        Failure { message: format!("{} is broken: {failure}", self.object.display()), exit: failure.exit }
    }
}

/// Whether a run that ends so says anything of the lock: an interruption and the host's errors do not.
fn is_of_the_lock(exit: Exit) -> bool {
    matches!(exit, Exit::GuestFailed | Exit::NoProgress)
}

/// Mean time of a trial, with its start and its drain, on a busy host.
const EACH: Duration = Duration::from_millis(300);
/// How often the command that shows a fault again makes its run, unless it ends earlier.
const AGAIN: u32 = 20;

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use haltkick_vmm::LockFlags;

    use super::torture::Part;
    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn every_trial_can_be_run_in_slices_that_the_host_bears() {
        let Command::Check(args) = Cli::try_parse_from(["haltkick", "check", "x.o"]).unwrap().command else {
            panic!("it is another command");
        };
        for readers in [false, true] {
            let image = Image::embedded();
            let mut locks = image.locks.iter().filter(|lock| lock.has_paravirt() && !lock.serves_faults());
            let entry = locks.find(|lock| lock.lock_flags().has(LockFlags::HAS_READERS) == readers);
            let entry = entry.unwrap().clone();
            let (object, lock, allowed) = (Path::new("x.o"), entry.name.clone(), CpuList(vec![0, 1]));
            let job =
                Job { args: &args, object, lock, image, allowed, least_slice: Cell::default(), rate: None };
            let run = |trial: &Trial| {
                let supply = Supply { image: &job.image, allowed: &job.allowed };
                let resolved = job.settings(trial, 1).unwrap().resolve(supply);
                let run = resolved.unwrap_or_else(|wrong| panic!("{}: {wrong:?}", trial.name));
                let reads = run.our(0).ours.shape.read_percent > 0;
                assert!(!reads || trial.kind.of == Part::Readers, "{}", trial.name);
                run
            };
            // The shortest slice of the measured trials, and of the simulated ones.
            let shortest = || {
                let runs: Vec<Run> = torture::trials(&entry, &[true]).iter().map(run).collect();
                let (simulated, measured): (Vec<Run>, Vec<Run>) =
                    runs.into_iter().partition(|run| run.engine.is_simulated());
                [measured, simulated].map(|runs| runs.iter().map(|run| run.rules.slice).min().unwrap())
            };
            let [measured, simulated] = shortest();
            assert!(measured < SLICE_OF_SLOW_HOSTS.0, "{measured:?}");
            job.least_slice.set(Some(SLICE_OF_SLOW_HOSTS));
            assert_eq!(shortest(), [SLICE_OF_SLOW_HOSTS.0, simulated]);
        }
    }
}
