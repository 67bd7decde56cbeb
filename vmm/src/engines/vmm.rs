//! A run from start to end: build the guest, start a scheduler, supervise, collect.

use std::sync::atomic::AtomicBool;

use haltkick_hypercalls::{LockFlags, MAX_LOCKS, WorkloadFlags};

use crate::engines::qemu;
use crate::explain::{self, Scene};
use crate::host::affinity;
use crate::host::clock::{GuestTsc, now_ns, read_tsc};
use crate::host::error::RunError;
use crate::host::pmu::Pmu;
use crate::image::file::{Entry, Image};
use crate::machine::build::{Chosen, Machine, pool_bytes};
use crate::observe::instruments::Instruments;
use crate::observe::trace::{self, About};
use crate::observe::watch::Watch;
use crate::run::beside;
use crate::run::collect::{self, Facts};
use crate::run::config::{Engine, MOST_LINES, PvBackend, RunConfig, Sched};
use crate::run::outcome::Outcome;
use crate::run::readings::Readings;
use crate::run::supervise::Supervisor;
use crate::sched::Scheduler;
use crate::sched::account::Place;
use crate::sched::deschedule::{Deschedule, Plan};
use crate::sched::guest_run::GuestRun;

/// Runs one guest to the end of its window.
///
/// `stop` is polled: setting it (from a signal handler) ends the run with [`RunError::Interrupted`].
///
/// # Errors
/// Every way in which a run can end without an outcome, see [`RunError`].
pub fn run(config: &RunConfig, image: &Image, stop: &AtomicBool) -> Result<Outcome, RunError> {
    run_with_readings(config, image, stop, &Instruments::default(), &mut Readings::default())
}

/// Like [`run`], and fills in `readings`, whether the run succeeds or fails. Guests beside the first have theirs in
/// [`Outcome::beside`]; if one of them fails, the run does.
///
/// # Errors
/// As [`run`].
pub fn run_with_readings(
    config: &RunConfig,
    image: &Image,
    stop: &AtomicBool,
    instruments: &Instruments,
    readings: &mut Readings,
) -> Result<Outcome, RunError> {
    let several = !config.beside.is_empty();
    let (mut first, mut beside) = (None, Vec::new());
    for ended in run_guests(config, image, stop, instruments)? {
        let named = |source| RunError::Guest { name: ended.name.clone(), source: Box::new(source) };
        match ended.result.map_err(|error| if several { named(error) } else { error }) {
            Err(error) => {
                *readings = ended.readings;
                return Err(error);
            }
            Ok(outcome) if first.is_none() => {
                *readings = ended.readings;
                first = Some(outcome);
            }
            Ok(outcome) => beside.push(outcome),
        }
    }
    let first = first.expect("a run has a guest");
    Ok(Outcome { beside, ..first })
}

/// How a guest of a run ended.
#[derive(Debug)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// What it found out; a failure of one leaves the others' outcomes.
    pub result: Result<Outcome, RunError>,
    /// What was seen of it besides.
    pub readings: Readings,
}

/// Refuses what cannot be run, as far as that can be told before anything is created.
///
/// # Errors
/// [`RunError::Usage`], and what the host lacks for guests of this size.
pub fn check_guests(config: &RunConfig, image: &Image) -> Result<(), RunError> {
    let configs: Vec<&RunConfig> = std::iter::once(config).chain(&config.beside).collect();
    choose(&configs, image).map(drop)
}

/// What each of the guests that are to run together takes from the image.
fn choose(configs: &[&RunConfig], image: &Image) -> Result<Vec<Chosen>, RunError> {
    beside::check(configs)?;
    let chosen = configs.iter().map(|config| check(config, image)).collect::<Result<Vec<_>, _>>()?;
    let pools = configs.iter().zip(&chosen).map(|(config, chosen)| pool_bytes(config, image, *chosen));
    beside::check_memory(pools.sum(), beside::available_memory())?;
    Ok(chosen)
}

/// Runs a guest and those beside it, all at the same time, and says how each ended, in that order. A profile and a trace
/// are of all of them together; the first has them.
///
/// # Errors
/// What concerns all of them: settings that make no sense, what the host lacks, a request to stop.
pub fn run_guests(
    config: &RunConfig,
    image: &Image,
    stop: &AtomicBool,
    instruments: &Instruments,
) -> Result<Vec<Ended>, RunError> {
    let start_tsc = read_tsc();
    let configs: Vec<&RunConfig> = std::iter::once(config).chain(&config.beside).collect();
    let mut chosen = choose(&configs, image)?;
    let vcpus: u32 = configs.iter().map(|config| config.vcpus).sum();
    let trace_sections = if instruments.trace { trace::sections_per_vcpu(vcpus) } else { 0 };
    chosen.iter_mut().for_each(|chosen| chosen.trace_sections = trace_sections);
    let watch = Watch::new(instruments, config, vcpus);
    if let Engine::Qemu(accelerator) = config.engine {
        let (outcome, readings) = qemu::run(config, image, chosen[0], accelerator, stop, instruments)?;
        return Ok(vec![Ended { name: config.name.clone(), result: Ok(outcome), readings }]);
    }
    let machines = configs.iter().zip(&chosen).map(|(config, chosen)| Machine::new(config, image, *chosen));
    let mut machines = machines.collect::<Result<Vec<_>, _>>()?;
    let vcpus = machines.iter_mut().map(|machine| std::mem::take(&mut machine.vcpus)).collect();
    let guests = guest_runs(&configs, &machines, image, &watch);
    let plan = config.deschedule.as_ref().map(|deschedule| {
        Plan::new(deschedule, chosen[0].point, config.cpus.len(), config.slice, config.seed)
    });
    let scheduler = Scheduler::new(config, &guests, vcpus, plan);
    let pmu = Pmu::open(config);
    let mut supervisor = Supervisor::new(&configs, &guests, &scheduler, &pmu, stop);

    let (verdict, stopped) = std::thread::scope(|scope| {
        scheduler.start(scope, &config.cpus);
        let verdict = supervisor.supervise();
        let stopped = (now_ns(), read_tsc());
        guests.iter().for_each(GuestRun::stop);
        scheduler.interrupt();
        (verdict, stopped)
    });
    let observed = supervisor.into_observed(&watch);
    let is_broken = scheduler.is_broken();
    let mut finished = scheduler.finish();
    let mut ended = Vec::new();
    for (index, observed) in observed.into_iter().enumerate() {
        let (config, machine, guest) = (configs[index], &machines[index], &guests[index]);
        let mut of_guest: Vec<_> = finished.extract_if(.., |vcpu| vcpu.guest == index).collect();
        for (vcpu, since_ns) in of_guest.iter_mut().zip(&observed.preempted_since) {
            if let (Place::Running, &Some(since_ns)) = (vcpu.place, since_ns) {
                vcpu.place = Place::Preempted { since_ns };
            }
        }
        let facts = Facts {
            config,
            image,
            machine,
            guest,
            lock: chosen[index].lock,
            workload: chosen[index].workload,
            observed,
            finished: &of_guest,
            pmu: &pmu,
            start_tsc,
        };
        // A failure inside a vCPU's thread explains what the supervisor saw only the end of.
        let failure = guest.take_failure();
        let result = match (failure, &verdict) {
            (Some(failure), _) if is_broken => return Err(failure),
            (Some(failure), _) => Err(failure),
            (None, Err(_)) => return Err(RunError::Interrupted),
            (None, Ok(())) => collect::outcome(&facts),
        };
        let readings = readings_of(&facts, result.as_ref().err(), stopped);
        ended.push(Ended { name: config.name.clone(), result, readings });
    }
    let about = About::new(&configs, image, guests[0].window.times(), switches_of(&machines));
    let tsc_offsets: Vec<u64> = guests.iter().map(|guest| guest.tsc.of_host(0)).collect();
    drop(guests);
    let memories: Vec<_> = machines.iter().map(|machine| &machine.memory).collect();
    let (profile, trace) = watch.finish(image, &memories, &tsc_offsets, about);
    (ended[0].readings.profile, ended[0].readings.trace) = (profile, trace);
    Ok(ended)
}

fn guest_runs<'a>(
    configs: &[&RunConfig],
    machines: &'a [Machine],
    image: &'a Image,
    watch: &'a Watch,
) -> Vec<GuestRun<'a>> {
    let mut first_vcpu = 0;
    let guests = configs.iter().zip(machines).enumerate().map(|(index, (config, machine))| {
        let place = (index, first_vcpu);
        first_vcpu += config.vcpus;
        let tsc = GuestTsc::new(machine.tsc_khz, machine.tsc_offset);
        let mut guest = GuestRun::new(config, (&machine.memory, &machine.watcher), image, tsc, place, watch);
        guest.halts_in_kernel = matches!(machine.pv_backend, PvBackend::Kvm | PvBackend::Ipi);
        guest
    });
    guests.collect()
}

/// How many reports of switches got lost, or why there were none in one of the guests.
fn switches_of(machines: &[Machine]) -> Result<u64, &str> {
    machines.iter().map(|machine| machine.watcher.reports().map(|probe| probe.dropped())).sum()
}

fn readings_of(
    facts: &Facts<'_>,
    error: Option<&RunError>,
    (stopped_ns, stopped_tsc): (u64, u64),
) -> Readings {
    let (image, machine, finished) = (facts.image, facts.machine, facts.finished);
    let locks = facts.config.lock_count;
    let explanation = error.and_then(|error| {
        explain::explain(&Scene { image, machine, locks, finished, error, stopped_ns, stopped_tsc })
    });
    Readings { explanation, console: facts.guest.console(), ..Readings::default() }
}

/// Checks vCPUs and pCPUs, of any guest.
pub(crate) fn check_cpus(config: &RunConfig) -> Result<(), RunError> {
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
    Ok(())
}

/// Checks everything that can be checked before anything is created.
fn check(config: &RunConfig, image: &Image) -> Result<Chosen, RunError> {
    let usage = |text: String| Err(RunError::Usage(text));
    check_cpus(config)?;
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
    let (form, has): (_, fn(&Entry) -> bool) =
        if config.pv { ("paravirtual", Entry::has_paravirt) } else { ("native", Entry::has_native) };
    if !has(&image.locks[lock]) {
        let with: Vec<_> =
            image.locks.iter().filter(|lock| has(lock)).map(|lock| lock.name.as_str()).collect();
        return usage(format!(
            "lock `{}` has no {form} form; these have one: {}",
            config.lock,
            with.join(", ")
        ));
    }
    check_kind(image, lock, workload)?;
    check_shape(config, &image.locks[lock])?;
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
        Some(deschedule) => {
            check_deschedule(deschedule, &image.locks[lock], &image.workloads[workload], image)?
        }
        None => None,
    };
    Ok(Chosen { lock: lock as u32, workload: workload as u32, point, trace_sections: 0 })
}

/// What sections touch must fit into the guest.
fn check_shape(config: &RunConfig, lock: &Entry) -> Result<(), RunError> {
    let shape = config.shape;
    if shape.dirty_lines > shape.footprint_lines {
        let (dirty, all) = (shape.dirty_lines, shape.footprint_lines);
        return Err(RunError::Usage(format!("a section cannot write {dirty} of {all} cache lines")));
    }
    let owners = if lock.is_lock_free() { config.vcpus } else { config.lock_count };
    let lines = u64::from(owners) * u64::from(shape.footprint_lines);
    if lines > MOST_LINES {
        return Err(RunError::Usage(format!("{lines} cache lines are too many: {MOST_LINES} at most")));
    }
    if shape.read_percent > 100 || shape.hold_jitter_percent > 100 {
        return Err(RunError::Usage("a share is 100 % at most".into()));
    }
    Ok(())
}

/// The number of the point where to deschedule, if it is to be at one.
fn check_deschedule(
    deschedule: &Deschedule,
    lock: &Entry,
    workload: &Entry,
    image: &Image,
) -> Result<Option<u32>, RunError> {
    deschedule.check(lock, workload, image).map_err(RunError::Usage)?;
    let position = |name: &str| image.points.iter().position(|point| point.name == name);
    Ok(deschedule.at.as_deref().and_then(position).map(|point| point as u32))
}

/// A workload that takes page faults compares ways to serve them, and nothing else can be done with those. One that has
/// structures made of locks takes those that can be parts.
fn check_kind(image: &Image, lock: usize, workload: usize) -> Result<(), RunError> {
    let flags = image.workloads[workload].workload_flags();
    let faults = flags.has(WorkloadFlags::FAULTS_PAGES);
    let fits = |lock: &Entry| {
        let serves = lock.serves_faults() == faults || lock.is_lock_free() && lock.serves_faults();
        serves && (!flags.has(WorkloadFlags::NEEDS_PARTS) || lock.lock_flags().has(LockFlags::IS_PART))
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
