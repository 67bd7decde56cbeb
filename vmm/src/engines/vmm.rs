//! A run from start to end: build the guest, start a scheduler, supervise, collect.

use std::sync::atomic::AtomicBool;

use crate::engines::qemu;
use crate::explain::{self, Scene};
use crate::guest::tsc::GuestTsc;
use crate::host::clock::{now_ns, read_tsc};
use crate::host::error::RunError;
use crate::host::pmu::Pmu;
use crate::host::switches::Reported;
use crate::host::time::TscRate;
use crate::image::file::Image;
use crate::machine::build::Machine;
use crate::machine::in_kernel::PvBackend;
use crate::machine::wanted::Wanted;
use crate::observe::instruments::Instruments;
use crate::observe::notes::Notes;
use crate::observe::trace::{self, About, AboutGuest};
use crate::run::check::choose;
use crate::run::collect::{self, Facts};
use crate::run::config::{Engine, RunConfig};
use crate::run::outcome::Outcome;
use crate::run::readings::Readings;
use crate::run::supervise::Supervisor;
use crate::run::told::{Chosen, boot_block, pool_bytes};
use crate::sched::account::Place;
use crate::sched::deschedule::Plan;
use crate::sched::guest_run::GuestRun;
use crate::sched::hints::{Hints, Watcher};
use crate::sched::{Sched, Scheduler};

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
    let chosen = choose(&configs, image)?;
    let vcpus: u32 = configs.iter().map(|config| config.vcpus).sum();
    let trace_sections = if instruments.trace { trace::sections_per_vcpu(vcpus) } else { 0 };
    let (threads, reported_guests) = match config.sched {
        Sched::Vmm => (config.cpus.len(), 0),
        Sched::Host => (vcpus as usize, configs.len()),
    };
    let notes = Notes::new(instruments, threads, reported_guests, config.seed);
    if let Engine::Qemu(accelerator) = config.engine {
        let (outcome, readings) = qemu::run(config, image, chosen[0], accelerator, stop, instruments)?;
        return Ok(vec![Ended { name: config.name.clone(), result: Ok(outcome), readings }]);
    }
    let machines =
        configs.iter().zip(&chosen).map(|(config, chosen)| machine(config, image, *chosen, trace_sections));
    let mut machines = machines.collect::<Result<Vec<_>, _>>()?;
    let vcpus = machines.iter_mut().map(|machine| std::mem::take(&mut machine.vcpus)).collect();
    let hinted: Vec<_> =
        configs.iter().zip(&machines).map(|(config, machine)| hints(config, machine)).collect();
    let guests = guest_runs(&configs, &machines, &hinted, image, &notes);
    let plan = config.deschedule.as_ref().map(|deschedule| {
        Plan::new(deschedule, chosen[0].point, config.cpus.len(), config.slice, config.seed)
    });
    let scheduler = Scheduler::new(config.rules(), &guests, vcpus, plan);
    let pmu = counters(config);
    let mut supervisor = Supervisor::new(&configs, &guests, &scheduler, &pmu, stop);

    let (verdict, stopped) = std::thread::scope(|scope| {
        scheduler.start(scope, &config.cpus);
        let verdict = supervisor.supervise();
        let stopped = (now_ns(), read_tsc());
        guests.iter().for_each(GuestRun::stop);
        scheduler.interrupt();
        (verdict, stopped)
    });
    let observed = supervisor.into_observed(&notes);
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
            hints: &hinted[index].1,
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
    let switches = (config.sched == Sched::Host).then(|| switches_of(&hinted));
    let about = About::new(about_guests(&configs), &config.cpus, image, guests[0].window.times(), switches);
    let tsc_offsets: Vec<u64> = guests.iter().map(|guest| guest.tsc.of_host(0)).collect();
    drop(guests);
    let memories: Vec<_> = machines.iter().map(|machine| &machine.memory).collect();
    let (profile, trace) = notes.finish(image, &memories, &tsc_offsets, about);
    (ended[0].readings.profile, ended[0].readings.trace) = (profile, trace);
    Ok(ended)
}

/// The cache events of the guest, as far as they are asked for and can be told from other guests'.
fn counters(config: &RunConfig) -> Pmu {
    if !config.pmu {
        Pmu::none("not asked for (--pmu on)")
    } else if config.engine != Engine::Kvm {
        Pmu::none("threads are no guest, which is all that is counted: use --engine kvm")
    } else if !config.beside.is_empty() {
        Pmu::none("several guests run on the same threads: count one at a time")
    } else {
        Pmu::open()
    }
}

/// The guest's machine, ready to start.
fn machine(
    config: &RunConfig,
    image: &Image,
    chosen: Chosen,
    trace_sections: u64,
) -> Result<Machine, RunError> {
    let wanted = Wanted {
        patch: config.patch.then_some((chosen.lock as usize, config.pv)),
        pool_bytes: pool_bytes(config, image, chosen),
        trace_sections,
        ..config.machine()
    };
    let boot = |tsc_khz| boot_block(config, chosen, tsc_khz);
    match config.engine {
        Engine::Kvm => Machine::on_kvm(&wanted, image, boot),
        Engine::Threads => Machine::on_threads(&wanted, image, boot),
        Engine::Qemu(_) => unreachable!("QEMU makes its own machine"),
    }
}

/// What watches the host's scheduler for a guest, and who writes its `preempted` flags. Before anybody refers to its vCPUs'
/// areas.
fn hints(config: &RunConfig, machine: &Machine) -> (Watcher, Hints) {
    if config.sched == Sched::Vmm {
        let hints = Hints::Nobody("the VMM's own scheduler writes the flag".into());
        return (Watcher::nothing("the VMM's own scheduler knows".into()), hints);
    }
    let reported = Reported { vcpus: config.vcpus, locks: config.lock_count, pcpus: &config.cpus };
    let mut watcher = if config.attribution {
        Watcher::new(reported, &machine.memory)
    } else {
        Watcher::nothing("not asked for (attribution off)".into())
    };
    let hints = if config.engine == Engine::Threads {
        Hints::Nobody("threads have no hypervisor that could write the flag".into())
    } else {
        let refused = machine.steal_time_refused.clone();
        Hints::choose(config.preempted_by, refused, &machine.memory, || watcher.for_flags())
    };
    (watcher, hints)
}

fn guest_runs<'a>(
    configs: &[&RunConfig],
    machines: &'a [Machine],
    hinted: &'a [(Watcher, Hints)],
    image: &'a Image,
    notes: &'a Notes,
) -> Vec<GuestRun<'a>> {
    let mut first_vcpu = 0;
    let mut guests = Vec::new();
    for (index, ((config, machine), (watcher, _))) in configs.iter().zip(machines).zip(hinted).enumerate() {
        let tsc = GuestTsc::new(TscRate::of_khz(machine.tsc_khz), machine.tsc_offset);
        let (memory, place) = (&machine.memory, (index, first_vcpu));
        let mut guest = GuestRun::new(config.work(), (memory, watcher), image, tsc, place, notes);
        guest.halts_in_kernel = matches!(machine.pv_backend, PvBackend::Kvm | PvBackend::Ipi);
        guests.push(guest);
        first_vcpu += config.vcpus;
    }
    guests
}

fn about_guests(configs: &[&RunConfig]) -> Vec<AboutGuest> {
    let about = |config: &&RunConfig| AboutGuest {
        name: config.name.clone(),
        vcpus: config.vcpus,
        locks: config.lock_count,
        workload: config.workload.clone(),
    };
    configs.iter().map(about).collect()
}

/// How many reports of switches got lost, or why there were none in one of the guests.
fn switches_of(hinted: &[(Watcher, Hints)]) -> Result<u64, &str> {
    hinted.iter().map(|(watcher, _)| watcher.reports().map(|probe| probe.dropped())).sum()
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
