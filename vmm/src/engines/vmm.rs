//! A run by our own VMM from start to end: build the guests, start a scheduler, supervise, collect.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use haltkick_hypercalls::WorkloadFlags;
use haltkick_sim::board::Watching;

use crate::engines::meddler::Meddler;
use crate::explain::{self, Scene};
use crate::guest::placement::Placement;
use crate::guest::tsc::GuestTsc;
use crate::host::cgroup;
use crate::host::clock::{Clock, Moment, Ticks, TscRate, process_cpu_time};
use crate::host::error::{Known, RunError};
use crate::host::pmu::Pmu;
use crate::host::switch_probe::Reported;
use crate::image::file::Image;
use crate::machine::build::Machine;
use crate::machine::{PvBackend, Wanted};
use crate::observe::notes::Notes;
use crate::observe::trace::{self, About, AboutGuest};
use crate::observe::{Instruments, Where};
use crate::run::asked::{Chosen, Engine, OurGuest, Run, boot_block, pool_bytes, says_started};
use crate::run::collect::{self, Facts, GuestFacts};
use crate::run::outcome::{AnyOutcome, Ended, Found, NOTHING_ELSE_RUNS};
use crate::run::supervise::{LiveView, PassWindow, Supervisor};
use crate::sched::deschedule::Plan;
use crate::sched::guest_run::{GuestRun, Shared};
use crate::sched::hints::{PreemptedSource, Watcher};
use crate::sched::quota::{Purse, Quota};
use crate::sched::run_delay::ONE_THREAD_PER_VCPU;
use crate::sched::simulated::Simulated;
use crate::sched::starts::Starts;
use crate::sched::{Sched, Scheduler, on_threads};

/// Close watchers of a run on a simulated machine.
#[derive(Default)]
pub(crate) struct Watched<'w> {
    pub(crate) window: Option<&'w mut dyn PassWindow>,
    pub(crate) witness: Option<Watching>,
}

/// Runs the guests of `run`, of which each takes from the image what `chosen` says, all at the same time. `start_tsc`: when the run began.
#[allow(
    clippy::too_many_lines,
    reason = "these are its steps in order, and what each makes lives until the last one"
)]
pub(super) fn run(
    run: &Run,
    image: &Image,
    chosen: &[Chosen],
    stop: &AtomicBool,
    instruments: &Instruments,
    (start_tsc, watched): (u64, Watched<'_>),
) -> Result<Found, RunError> {
    let Watched { window, mut witness } = watched;
    let workload = image.workloads[chosen[0].workload as usize].workload_flags();
    if workload.has(WorkloadFlags::IS_MEDDLED_WITH) && run.engine.is_simulated() {
        let interrupts = workload.has(WorkloadFlags::INTERRUPTS);
        let meddler = Meddler::new((run.our(0), image), interrupts, witness)?;
        witness = Some(Rc::new(RefCell::new(meddler)));
    }
    let vcpus: u32 = run.guests.iter().map(|guest| guest.vcpus).sum();
    let trace_sections = if instruments.trace { trace::sections_per_vcpu(vcpus) } else { 0 };
    let clock = match run.engine {
        Engine::Sim(_) => Clock::Simulated(instruments.virtual_time.clone().unwrap_or_default()),
        _ => Clock::Host,
    };
    // A simulated machine counts from its start.
    let cpu_at_start = if run.engine.is_simulated() { Duration::ZERO } else { process_cpu_time() };
    let notes = notes(run, instruments, vcpus, clock.moment());
    let machines =
        run.ours().zip(chosen).map(|(asked, chosen)| machine(asked, image, *chosen, trace_sections));
    let mut machines = machines.collect::<Result<Vec<_>, _>>()?;
    let vcpus: Vec<_> = machines.iter_mut().map(|machine| std::mem::take(&mut machine.vcpus)).collect();
    let shown = LiveView::begin(run, instruments, &vcpus);
    for (asked, machine) in run.ours().zip(&machines) {
        check_governor(asked, machine)?;
    }
    let hinted: Vec<_> = run.ours().zip(&machines).map(|(asked, machine)| hints(asked, machine)).collect();
    if run.inherits_quota() {
        cgroup::needs_quota()?;
    }
    let guests = guest_runs(run, &machines, &hinted, image, &clock, &notes);
    let plan = run.deschedule.as_ref().map(|deschedule| {
        Plan::new(deschedule, chosen[0].point, run.cpus.len(), run.rules.slice, run.guests[0].seed)
    });
    let scheduler: Box<dyn Scheduler + '_> = match run.engine.machine() {
        Some(machine) => {
            let machine = (machine, run.cpus.as_slice(), run.guests[0].seed);
            let host = run.modelled_host();
            Box::new(Simulated::new(
                (run.rules, host.as_ref(), run.schedule.as_ref()),
                &guests,
                vcpus,
                plan,
                machine,
                (stop, witness),
            ))
        }
        None => on_threads(run.rules, &run.cpus, &guests, vcpus, plan),
    };
    let pmu = counters(run);
    let memories: Vec<_> = machines.iter().map(|machine| &machine.memory).collect();
    let mut supervisor = Supervisor::new(run, &guests, (image, &memories), &*scheduler, &pmu, stop);
    supervisor.shown = shown;

    let (verdict, stopped) = std::thread::scope(|scope| {
        scheduler.start(scope, &run.cpus);
        let verdict = supervisor.supervise(window);
        let stopped = (clock.now_ns(), clock.tsc());
        guests.iter().for_each(GuestRun::stop);
        scheduler.interrupt();
        (verdict, stopped)
    });
    let (passed, observed) = supervisor.into_observed(&notes);
    let is_broken = scheduler.is_broken();
    let schedule = scheduler.repeated();
    let mut finished = scheduler.finish();
    let to_start = guests[0].tsc.rate().nanoseconds(Ticks(passed.started_tsc.saturating_sub(start_tsc)));
    let mut ended = Vec::new();
    for (index, observed) in observed.into_iter().enumerate() {
        let mut finished: Vec<_> = finished.extract_if(.., |vcpu| vcpu.guest == index).collect();
        for (vcpu, preempted) in finished.iter_mut().zip(&observed.preempted) {
            if let (Where::Running, &Some(preempted)) = (vcpu.whereabouts.at, preempted) {
                vcpu.whereabouts = preempted;
            }
        }
        let (machine, guest) = (&machines[index], &guests[index]);
        let seen = seen(run.our(index), image, chosen[index], machine);
        let (preempted_source, finished) = (&hinted[index].1, &finished[..]);
        let facts = Facts { seen, machine, preempted_source, guest, observed, finished, start_tsc };
        ended.push(end_of(&facts, (is_broken, &verdict), stopped)?);
    }
    let switches = run.has_vcpu_threads().then(|| switches_of(&hinted));
    let about = About::new(about_guests(run), &run.cpus, image, guests[0].window.times(), switches.as_ref());
    let tsc_offsets: Vec<u64> = guests.iter().map(|guest| guest.tsc.of_host(0)).collect();
    let run_delay = match run.rules.sched {
        _ if run.engine.is_simulated() => Err(NOTHING_ELSE_RUNS.into()),
        Sched::Vmm => guests[0].run_delays.sum(),
        Sched::Host => Err(ONE_THREAD_PER_VCPU.into()),
    };
    drop(guests);
    let (profile, trace) = notes.finish(image, &memories, &tsc_offsets, about, clock.moment());
    Ok(Found {
        started: Ok(to_start.into()),
        cpu_before: Ok(passed.cpu_at_open.saturating_sub(cpu_at_start)),
        cpu_time: passed.cpu_time,
        windows: passed.windows,
        run_delay,
        pmu: pmu.read(),
        schedule,
        profile,
        trace,
        guests: ended,
    })
}

fn seen<'a>(asked: OurGuest<'a>, image: &'a Image, chosen: Chosen, machine: &'a Machine) -> GuestFacts<'a> {
    GuestFacts {
        asked,
        image,
        memory: &machine.memory,
        chosen,
        patched_sites: machine.patched_sites,
        tsc_khz: machine.tsc_khz,
        decided: machine.decided.clone(),
    }
}

/// How a guest ended; an error is one that concerns all of them. `is_broken`: a thread failed that all need. Last the host's clocks when
/// the guests were told to stop.
fn end_of(
    facts: &Facts<'_>,
    (is_broken, verdict): (bool, &Result<(), RunError>),
    (stopped_ns, stopped_tsc): (u64, u64),
) -> Result<Ended, RunError> {
    let guest = facts.guest;
    // A failure inside a vCPU's thread explains what the supervisor saw only the end of.
    let result = match (guest.take_failure(), verdict) {
        (Some(failure), _) if is_broken => return Err(failure),
        (Some(failure), _) => Err(failure),
        (None, Err(_)) => return Err(RunError::Interrupted),
        (None, Ok(())) => collect::outcome(facts)
            .and_then(|outcome| check_left(facts).map(|()| AnyOutcome::Ours(Box::new(outcome)))),
    };
    let stopped_tsc = guest.tsc.of_host(stopped_tsc);
    let explanation = result.as_ref().err().and_then(|error| {
        let GuestFacts { asked, image, chosen, .. } = facts.seen;
        let (machine, finished, locks) = (facts.machine, facts.finished, asked.ours.lock_count);
        let (lock, pv) = (chosen.lock as usize, asked.guest.pv);
        explain::explain(&Scene { image, machine, locks, lock, pv, finished, error, stopped_ns, stopped_tsc })
    });
    let result = result.map_err(|failure| collect::cause(facts, failure));
    let console = guest.shared.as_ref().map(Shared::console).unwrap_or_default();
    Ok(Ended { name: facts.seen.asked.guest.name.clone(), result, explanation, console })
}

/// Fails if vCPUs that have all left their locks have left something behind in them.
fn check_left(facts: &Facts<'_>) -> Result<(), RunError> {
    let left = || explain::left_behind(facts.seen.memory, facts.seen.asked.ours.lock_count);
    match facts.seen.asked.run.drain.then(left).flatten() {
        Some(what) => Err(RunError::LeftBehind(what)),
        None => Ok(()),
    }
}

/// Creates the notes that the threads of a run with `vcpus` vCPUs hand in to.
fn notes(run: &Run, instruments: &Instruments, vcpus: u32, start: Moment) -> Notes {
    let (threads, reported_guests) = match run.has_vcpu_threads() {
        false => (run.cpus.len(), 0),
        true => (vcpus as usize, run.guests.len()),
    };
    Notes::new(instruments, (threads, reported_guests), run.guests[0].seed, start)
}

/// The cache events of the guest, as far as they are asked for and can be told from other guests'.
fn counters(run: &Run) -> Pmu {
    if !run.pmu {
        Pmu::none("not asked for (--pmu on)")
    } else if run.engine.is_simulated() {
        Pmu::none("a simulated machine has no counters")
    } else if run.engine != Engine::Kvm {
        Pmu::none("threads are no guest, which is all that is counted: use --engine kvm")
    } else if run.guests.len() > 1 {
        Pmu::none("several guests run on the same threads: count one at a time")
    } else {
        Pmu::open()
    }
}

fn machine(
    asked: OurGuest<'_>,
    image: &Image,
    chosen: Chosen,
    trace_sections: u64,
) -> Result<Machine, RunError> {
    let wanted = Wanted {
        patch: asked.ours.patch.then_some((chosen.lock as usize, asked.guest.pv)),
        pool_bytes: pool_bytes(asked, image, chosen.workload as usize),
        trace_sections,
        ..asked.machine()
    };
    let boot = |tsc_khz| boot_block(asked, chosen, tsc_khz);
    let placement = || Placement::new(asked.run.numa, &asked.run.cpus);
    match &asked.run.engine {
        Engine::Kvm => Machine::on_kvm(&wanted, &placement(), image, boot),
        Engine::Threads => Machine::on_threads(&wanted, &placement(), image, boot),
        Engine::Sim(machine) => Machine::simulated(&wanted, image, machine.costs.clock_khz, boot),
        Engine::Qemu(_) => unreachable!("QEMU makes its own machine"),
    }
}

/// Refuses a governor that would never hear of stolen time.
fn check_governor(asked: OurGuest<'_>, machine: &Machine) -> Result<(), RunError> {
    match &machine.steal_time_refused {
        Some(reason) if asked.run.has_vcpu_threads() && asked.ours.fold.governor().is_some() => {
            Err(RunError::HostLacks(format!("--fold governor: {reason}; use --sched vmm")))
        }
        _ => Ok(()),
    }
}

/// The watcher of the host's scheduler for a guest, and the writer of its `preempted` flags. Before anything refers to its vCPUs'
/// areas.
fn hints(asked: OurGuest<'_>, machine: &Machine) -> (Watcher, Known<PreemptedSource>) {
    if !asked.run.has_vcpu_threads() {
        return (Watcher::nothing("the VMM's own scheduler knows"), Ok(PreemptedSource::Vmm));
    }
    let reported =
        Reported { vcpus: asked.guest.vcpus, locks: asked.ours.lock_count, pcpus: &asked.run.cpus };
    let mut watcher = if asked.run.attribution {
        Watcher::new(reported, &machine.memory)
    } else {
        Watcher::nothing("not asked for (attribution off)")
    };
    let source = if asked.run.engine == Engine::Threads {
        Err("threads have no hypervisor that could write the flag".into())
    } else {
        let refused = machine.steal_time_refused.clone();
        PreemptedSource::choose(asked.run.preempted_by, refused, &machine.memory, || watcher.for_flags())
    };
    (watcher, source)
}

fn guest_runs<'a>(
    run: &Run,
    machines: &'a [Machine],
    hinted: &'a [(Watcher, Known<PreemptedSource>)],
    image: &'a Image,
    clock: &'a Clock,
    notes: &'a Notes,
) -> Vec<GuestRun<'a>> {
    let mut first_vcpu = 0;
    let mut guests = Vec::new();
    for (index, ((asked, machine), (watcher, _))) in run.ours().zip(machines).zip(hinted).enumerate() {
        let tsc = GuestTsc::new(TscRate::of_khz(machine.tsc_khz), machine.tsc_offset);
        let kept = (asked.run.attribution, !asked.run.has_vcpu_threads());
        let shared = Shared::new(&machine.memory, image, asked.ours.lock_count, kept);
        let mut guest = GuestRun::new(asked.guest.vcpus, tsc, clock, watcher, notes);
        guest.shared = Some(shared);
        if says_started(&asked.run.engine) {
            guest.starts = Starts::said_by(asked.guest.vcpus);
        }
        guest.halts_in_kernel = matches!(machine.decided.pv_backend, PvBackend::Kvm | PvBackend::Ipi);
        guest.presence = asked.guest.presence.map(|presence| (presence, run.window.as_nanos() as u64));
        match asked.guest.quota {
            Some(Quota::Own(quota)) => guest.purse = Some(Purse::new(quota, clock.now_ns())),
            Some(Quota::Inherited) => guest.inherited_quota = cgroup::inherited().as_ref().ok(),
            None => {}
        }
        (guest.index, guest.first_vcpu) = (index, first_vcpu);
        guests.push(guest);
        first_vcpu += asked.guest.vcpus;
    }
    guests
}

fn about_guests(run: &Run) -> Vec<AboutGuest> {
    let about = |asked: OurGuest<'_>| AboutGuest {
        name: asked.guest.name.clone(),
        vcpus: asked.guest.vcpus,
        locks: asked.ours.lock_count,
        workload: asked.ours.workload.clone(),
    };
    run.ours().map(about).collect()
}

/// How many reports of switches got lost, or why there were none in one of the guests.
fn switches_of(hinted: &[(Watcher, Known<PreemptedSource>)]) -> Known<u64> {
    hinted.iter().map(|(watcher, _)| watcher.reports().map(|probe| probe.dropped())).sum()
}
