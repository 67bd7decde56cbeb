//! A guest starts, runs, is counted, and ends: when its work is done, when asked to, or under the watchdog.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use haltkick_vmm::{MAX_WINDOWS, RunError, Sched, Shape, ShapeFlags, allowed_cpus};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use support::{
    Check, PATIENCE, Settings, apply, config, done, exits, found, ms, nested, run_ns, skip, start, trial, us,
};

/// Few machines of tests have a PMU: that all of it is null with a reason must do no harm.
#[apply(trial)]
fn cache_events_are_counted_or_it_is_said_why_not() {
    match found(&config().pmu(true)).pmu {
        Ok(counted) => assert_eq!(counted.len(), 3, "{counted:?}"),
        Err(reason) => assert!(reason.0.contains("perf_event_open"), "{reason}"),
    }
}

#[apply(trial)]
fn a_given_work_rate_is_used_and_a_measured_one_ignores_slices() -> Check {
    let given = done(&config().work_rate(12_345));
    assert_eq!(given.work_rate, 12_345);
    let measured = done(&config());
    assert!(measured.work_rate > 0, "no rate was measured");
    if nested() {
        return Ok(()); // An emulator does next to nothing in slices of 50 us.
    }
    // Slices that are shorter than a probe of the calibration could be: it must find the same CPU all the same.
    let slice = us(50);
    let mut rates = vec![];
    for _ in 0..5 {
        match start(&config().slice(slice)) {
            Err(RunError::SliceTooShort(reason)) => return skip(reason),
            ended => rates.push(ended.unwrap().work_rate),
        }
    }
    let best = rates.iter().copied().max().unwrap_or(0) as f64 / measured.work_rate as f64;
    assert!(
        (0.7..1.4).contains(&best),
        "slices of 50 us gave {rates:?} iterations, one of {:?} {}",
        config().rules.slice,
        measured.work_rate
    );
    Ok(())
}

#[apply(trial)]
fn waits_that_have_not_ended_when_the_window_closes_are_known() {
    let vcpus = 16;
    let base = config().vcpus(vcpus).form("ticket", false);
    let outcome = done(&base);
    let pending = outcome.pending_waits.clone().unwrap();
    assert!(
        !pending.is_empty() && pending.len() <= vcpus as usize,
        "{} of 16 vCPUs wait for a FIFO lock on two pCPUs when the window closes",
        pending.len()
    );
    let whole_run = (base.warmup + base.window + PATIENCE).as_nanos() as u64 / 1000 * outcome.tsc_khz / 1000;
    assert!(pending.iter().all(|ticks| *ticks < whole_run), "{pending:?} ticks");
    let free = done(&base.lock("none")).pending_waits.unwrap();
    assert!(free.len() <= vcpus as usize / 2, "{} wait for nothing", free.len());
    let unknown = done(&config().workload("hand-off")).pending_waits;
    assert!(unknown.is_err(), "{unknown:?} of a workload that does not say");
}

/// A boot takes as long as many slices. A host may stand still for a window, but not for five in a row.
#[apply(trial)]
fn the_vcpu_that_boots_the_guest_has_its_turns_like_the_others() {
    let short = config()
        .cpus(config().cpus[..1].to_vec())
        .vcpus(8)
        .form("none", false)
        .warmup(ms(1))
        .window(if nested() { config().window } else { ms(40) });
    let mut seen = Vec::new();
    for _ in 0..5 {
        let outcome = done(&short);
        let mean = outcome.acquisitions() / 8;
        seen.push((outcome.vcpus[0].acquisitions, mean));
        if outcome.vcpus[0].acquisitions > mean / 4 {
            return;
        }
    }
    panic!("sections of vCPU 0, and of all in the mean, in five short windows: {seen:?}")
}

#[apply(trial)]
fn work_is_timed_on_every_vcpu_that_runs_long_enough(sched: Sched) {
    let outcome = done(&config().sched(sched).form("none", false));
    let timed = outcome.work.iter().flatten().count();
    assert_eq!(timed, outcome.work.len(), "vCPUs that timed their work");
    // A twelfth of the work per section is what a wrong rate looks like; a host's other guests may take half.
    let promised = config().work_rate(outcome.work_rate / 12).sched(sched);
    let off = done(&promised);
    let speeds: Vec<f64> = off.work.iter().flatten().map(|speed| speed.over_promised).collect();
    assert!(speeds.iter().all(|speed| *speed > 3.0), "{speeds:?} of a twelfth of the work");
}

#[apply(trial)]
fn a_fixed_amount_of_work_is_done_to_the_last_section() {
    let mix = |go_on| Shape {
        work_sections: 1003,
        long_hold_ns: 20_000,
        long_one_in: 10,
        nested_one_in: 2,
        flags: ShapeFlags::NONE.with_if(go_on, ShapeFlags::GO_ON),
        ..Shape::default()
    };
    for (sched, go_on, lock) in
        [(Sched::Vmm, false, "qspinlock"), (Sched::Vmm, true, "tas"), (Sched::Host, false, "qspinlock")]
    {
        let base = config().sched(sched).form(lock, lock == "qspinlock").lock_count(4);
        let outcome = done(&base.shape(mix(go_on)).workload("mixed").window(PATIENCE));
        assert_eq!(outcome.acquisitions(), 1003);
        // Every second section on average has another inside; a tenth is far below that.
        let entered: u64 = outcome.entered.iter().sum();
        assert!(entered * 10 > outcome.acquisitions() * 11, "{lock}: {entered} entered: none nested");
        assert_eq!(exits(&outcome, "work_done"), 1, "the end of the work was not told once");
        assert!(
            outcome.completion == Some(outcome.window) && outcome.window < PATIENCE,
            "completion {:?}, window {:?}",
            outcome.completion,
            outcome.window
        );
        let run = run_ns(&outcome);
        let in_locks = outcome.lock_cpu.map_or(0, |time| time.as_nanos() as u64);
        assert_eq!((in_locks > 0), (sched == Sched::Vmm), "in locks: {:?}", outcome.lock_cpu);
        // A section that begins before the window opens and one that is the last may be counted with their whole length.
        assert!(in_locks <= run + 10_000_000, "{in_locks} ns in locks, {run} ns on pCPUs");
    }
    // Work that does not fit into the window is told apart.
    let mix = Shape { work_sections: u64::MAX, ..Shape::default() };
    let outcome = done(&config().shape(mix).workload("mixed"));
    assert!(outcome.completion.is_none(), "done in {:?}", outcome.completion);
}

#[apply(trial)]
fn a_window_doubles_until_enough_sections_are_done_in_it() {
    // Twelve sections and what lies between them take 48 ms at least, however fast the host.
    let (hold, window) = (ms(2), ms(20));
    let base = config().vcpus(1).hold(hold).think(hold).window(window);
    let once = found(&base);
    assert_eq!(once.windows, 1);
    let (started, cpu_before) = (once.started.clone().unwrap(), once.cpu_before.clone().unwrap());
    assert!(!started.is_zero() && !cpu_before.is_zero(), "a start takes time: {started:?}, {cpu_before:?}");
    let enough = found(&base.clone().min_sections(12));
    let windows = enough.windows;
    let enough = enough.outcome().unwrap();
    assert!(enough.acquisitions() >= 12 && !enough.start_up.is_zero(), "{}", enough.acquisitions());
    assert!(windows > 1 && windows.is_power_of_two(), "{windows} windows");
    assert!(enough.window >= window * windows, "{:?}", enough.window);
    let never = found(&base.min_sections(u64::MAX));
    assert_eq!(never.windows, MAX_WINDOWS);
}

#[apply(trial)]
fn threads_that_somebody_moves_off_their_cpus_are_noticed(sched: Sched) -> Check {
    if allowed_cpus().len() < 2 {
        return skip("there is one CPU");
    }
    let (first, second) = (allowed_cpus()[0], allowed_cpus()[1]);
    let config = config().cpus(vec![first]).vcpus(2).sched(sched);
    assert!(done(&config).pinning_lost.is_none(), "noticed where nobody moved anything");
    let done = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| move_threads(first, second, &done));
        let outcome = start(&config);
        done.store(true, Ordering::Relaxed);
        outcome
    })?;
    let lost = outcome.pinning_lost.unwrap_or_else(|| panic!("not noticed under {sched:?}"));
    assert!(lost.contains(&format!("[{first}]")) && lost.contains(&format!("[{second}]")), "{lost}");
    Ok(())
}

/// Moves threads of this process that may only use CPU `from` to CPU `to`, until all is `done`: each when it is seen for the
/// second time, and so not while it looks whether its pinning took effect.
fn move_threads(from: u32, to: u32, done: &AtomicBool) {
    let only = |cpu: u32| {
        let mut set = CpuSet::new();
        set.set(cpu as usize);
        set
    };
    let mut seen = HashSet::new();
    while !done.load(Ordering::Relaxed) {
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let threads = tasks.filter_map(|task| Pid::from_raw(task.file_name().to_str()?.parse().ok()?));
        let pinned = threads.filter(|thread| sched_getaffinity(Some(*thread)).ok() == Some(only(from)));
        let pinned: HashSet<_> = pinned.collect();
        for thread in pinned.intersection(&seen) {
            _ = sched_setaffinity(Some(*thread), &only(to));
        }
        seen = pinned;
        std::thread::sleep(ms(20));
    }
}
