//! A run from start to end: build the guest, start a scheduler, supervise, collect.

use std::sync::atomic::AtomicBool;

use haltkick_hypercalls::{FAULTS_PAGES, HAS_NATIVE, HAS_PARAVIRT, MAX_LOCKS, SERVES_FAULTS};

use crate::clock::{now_ns, read_tsc};
use crate::collect::{self, Facts};
use crate::config::{RunConfig, Sched};
use crate::deschedule::{Deschedule, Plan};
use crate::error::RunError;
use crate::explain::{self, Scene};
use crate::guest_run::GuestRun;
use crate::image::{Entry, Image};
use crate::machine::{Chosen, Machine};
use crate::outcome::Outcome;
use crate::readings::Readings;
use crate::sched::{Scheduler, affinity};
use crate::supervise::Supervisor;

/// Runs one guest to the end of its window.
///
/// `stop` is polled: setting it (from a signal handler) ends the run with [`RunError::Interrupted`].
///
/// # Errors
/// Every way in which a run can end without an outcome, see [`RunError`].
pub fn run(config: &RunConfig, image: &Image, stop: &AtomicBool) -> Result<Outcome, RunError> {
    run_with_readings(config, image, stop, &mut Readings::default())
}

/// Like [`run`], and fills in `readings`, whether the run succeeds or fails.
///
/// # Errors
/// As [`run`].
pub fn run_with_readings(
    config: &RunConfig,
    image: &Image,
    stop: &AtomicBool,
    readings: &mut Readings,
) -> Result<Outcome, RunError> {
    let start_tsc = read_tsc();
    let chosen = check(config, image)?;
    let mut machine = Machine::new(config, image, chosen)?;
    let vcpus = std::mem::take(&mut machine.vcpus);
    let guest = GuestRun::new(config, &machine.memory, image, machine.tsc_khz);
    let plan = config
        .deschedule
        .as_ref()
        .map(|deschedule| Plan::new(deschedule, chosen.point, config.cpus.len(), config.slice, config.seed));
    let scheduler = Scheduler::new(config, &guest, vcpus, plan);
    let mut supervisor = Supervisor::new(config, &guest, &scheduler, stop);

    let (verdict, (stopped_ns, stopped_tsc)) = std::thread::scope(|scope| {
        scheduler.start(scope, &config.cpus);
        let verdict = supervisor.supervise();
        let stopped = (now_ns(), read_tsc());
        guest.stop();
        scheduler.interrupt();
        (verdict, stopped)
    });
    let observed = supervisor.observed;
    let finished = scheduler.finish();
    readings.console = guest.console();
    // A failure inside a vCPU's thread explains what the supervisor saw only the end of.
    let verdict = guest.take_failure().map_or(verdict, Err);
    let facts = Facts {
        config,
        image,
        machine: &machine,
        guest: &guest,
        lock: chosen.lock,
        observed,
        finished: &finished,
        start_tsc,
    };
    let result = verdict.and_then(|()| collect::outcome(&facts));
    if let Err(error) = &result {
        let (machine, finished) = (&machine, &finished);
        let locks = config.lock_count;
        let scene = Scene { image, machine, locks, finished, error, stopped_ns, stopped_tsc };
        readings.explanation = explain::explain(&scene);
    }
    result
}

/// Checks everything that can be checked before anything is created.
fn check(config: &RunConfig, image: &Image) -> Result<Chosen, RunError> {
    let usage = |text: String| Err(RunError::Usage(text));
    if config.vcpus == 0 {
        return usage("a guest needs at least 1 vCPU".into());
    }
    if config.cpus.is_empty() {
        return usage("a run needs at least one pCPU".into());
    }
    let allowed = affinity::allowed_cpus();
    if let Some(cpu) = config.cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        return usage(format!("CPU {cpu} does not exist or is not allowed here; allowed: {allowed:?}"));
    }
    if config.lock_count == 0 || config.lock_count > MAX_LOCKS {
        return usage(format!("a run has 1 to {MAX_LOCKS} locks, not {}", config.lock_count));
    }
    let find =
        |what: &str, entries: &[Entry], name: &str| match entries.iter().position(|entry| entry.name == name)
        {
            Some(index) => Ok(index),
            None => {
                let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
                Err(RunError::Usage(format!("there is no {what} `{name}`; there are: {}", names.join(", "))))
            }
        };
    let lock = find("lock", &image.locks, &config.lock)?;
    let workload = find("workload", &image.workloads, &config.workload)?;
    let (form, flag) = if config.pv { ("paravirtual", HAS_PARAVIRT) } else { ("native", HAS_NATIVE) };
    if image.locks[lock].flags & flag == 0 {
        let with: Vec<_> =
            image.locks.iter().filter(|lock| lock.flags & flag != 0).map(|lock| lock.name.as_str()).collect();
        return usage(format!(
            "lock `{}` has no {form} form; these have one: {}",
            config.lock,
            with.join(", ")
        ));
    }
    check_kind(image, lock, workload)?;
    if config.sched == Sched::Host && !config.grace.is_zero() {
        return usage(
            "only the VMM's own scheduler can grant a grace: use --sched vmm, or no --grace".into(),
        );
    }
    if config.sched == Sched::Host && config.kick_yields {
        return usage("only the VMM's own scheduler can run whom a kick names: use --sched vmm".into());
    }
    if config.grace > config.slice {
        return usage(format!("a grace of {:?} is longer than the slice, {:?}", config.grace, config.slice));
    }
    let point = match &config.deschedule {
        Some(deschedule) => check_deschedule(deschedule, &image.locks[lock], image)?,
        None => None,
    };
    Ok(Chosen { lock: lock as u32, workload: workload as u32, point })
}

/// The number of the point where to deschedule, if it is to be at one.
fn check_deschedule(deschedule: &Deschedule, lock: &Entry, image: &Image) -> Result<Option<u32>, RunError> {
    deschedule.check(lock, image).map_err(RunError::Usage)?;
    let position = |name: &str| image.points.iter().position(|point| point.name == name);
    Ok(deschedule.at.as_deref().and_then(position).map(|point| point as u32))
}

/// A workload that takes page faults compares ways to serve them, and nothing else can be done with those.
fn check_kind(image: &Image, lock: usize, workload: usize) -> Result<(), RunError> {
    let faults = image.workloads[workload].flags & FAULTS_PAGES != 0;
    let fits = |lock: &Entry| {
        (lock.flags & SERVES_FAULTS != 0) == faults || lock.is_lock_free() && lock.flags & SERVES_FAULTS != 0
    };
    if fits(&image.locks[lock]) {
        return Ok(());
    }
    let fitting: Vec<_> =
        image.locks.iter().filter(|lock| fits(lock)).map(|lock| lock.name.as_str()).collect();
    Err(RunError::Usage(format!(
        "workload `{}` cannot be run with lock `{}`; these go with it: {}",
        image.workloads[workload].name,
        image.locks[lock].name,
        fitting.join(", ")
    )))
}
