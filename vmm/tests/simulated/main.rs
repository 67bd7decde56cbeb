//! Whole guests on simulated machines: nothing here needs `/dev/kvm`, or more than one CPU of the host, and nothing depends on how
//! busy that is.

mod curves;
mod cuts;
mod folding;
mod limits;
mod profile;
mod several;
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use haltkick_vmm::machines::Machine;
use haltkick_vmm::{
    ByActivity, Cause, Ended, Engine, HowOften, Image, Instruments, Outcome, Run, RunError, Sched, Shape,
    Share, Target, Timeline, VcpuOutcome, VirtualTime, Where, run,
};
use support::{
    Settings, count, deschedule, dies_with_its_place, done, event, forms, found, ms, panics, simulated,
    start, start_until, sum, us, violates_exclusion, watched, within,
};

fn small() -> Run {
    simulated("ivybridge-ex-4s", 4, 2)
}

/// The sum over all activities, of sleeping vCPUs too.
fn total(by: &ByActivity) -> u64 {
    sum(by) + by.halted
}

#[test]
fn runs_depend_on_their_seeds_and_on_nothing_else() {
    let random = deschedule(Target::Random, HowOften::PerSecond(20_000.0), us(100), None);
    let alone = [("qspinlock", true, None), ("ticket", false, Some(random)), ("mutex/packed", true, None)]
        .map(|(lock, pv, off)| small().form(lock, pv).deschedule(off).window(us(2000)));
    let pair = several::pair(small().form("qspinlock", true), small().seed(9).form("mcs", false));
    let hosted = several::hosted("linux-7.3", 2, "qspinlock", true).window(us(10_000));
    for (number, config) in alone.into_iter().chain([pair, hosted]).enumerate() {
        let all = |config: &Run| format!("{:#?}", several::outcomes(found(config).guests));
        let first = all(&config);
        assert!(first.contains("acquisitions") && first.contains("buckets"));
        assert_eq!(all(&config), first, "{number}: twice the same");
        assert_ne!(all(&config.seed(2)), first, "{number}: another seed");
    }
}

#[test]
fn every_form_of_every_lock_excludes_on_64_pcpus() {
    let forms = forms();
    let excludes = |number: usize| {
        let (lock, pv) = &forms[number];
        // Both ratios for every lock would take minutes; its two forms get one each.
        let ratio = 1 + number as u32 % 2;
        let config = simulated("skylake-8s", 64, ratio).form(lock.clone(), *pv).window(us(200));
        // The holder may be off for the whole of a window that is no longer than a slice.
        let outcome = start_until(&config, |outcome| outcome.acquisitions() > 0);
        assert_eq!(outcome.lost_updates, (lock != "none").then_some(0), "{lock} pv {pv} ratio {ratio}");
        assert_eq!(outcome.vcpus.len(), 64 * ratio as usize);
    };
    // By itself each is done by one CPU of the host: as many at a time as it has.
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                numbers.take_while(|number| *number < forms.len()).for_each(&excludes);
            });
        }
    });
    assert!(forms.len() > 30, "{} forms are too few for the image", forms.len());
}

#[test]
fn timelines_add_up_to_what_the_books_say_of_the_window() {
    for (lock, pv) in [("tas", false), ("qspinlock", true)] {
        let config = simulated("ivybridge-ex-4s", 4, 3).form(lock, pv).hold(us(20));
        let outcome = done(&config);
        let window_ns = outcome.window.as_nanos() as u64;
        let time_ns = |vcpu: &VcpuOutcome, doing| -> u64 {
            let timeline = vcpu.timeline.as_ref().expect("each vCPU has one");
            assert_eq!(timeline.bin_ns(), 100_000, "half a slice");
            timeline.of(doing, window_ns).map(u64::from).sum()
        };
        for vcpu in &outcome.vcpus {
            assert_eq!(Some(time_ns(vcpu, Where::Running)), vcpu.run_ns);
            let off_ns: u64 = Timeline::OFF.iter().map(|doing| time_ns(vcpu, *doing)).sum();
            // A nanosecond is lost where a turn begins or ends.
            let most = 4 * (vcpu.preemptions + vcpu.waits.unwrap_or(0) + 1);
            let all_ns = time_ns(vcpu, Where::Running) + off_ns;
            assert!(all_ns.abs_diff(window_ns) <= most, "{lock}: {all_ns} of {window_ns} ns");
        }
        let all = |doing| outcome.vcpus.iter().map(|vcpu| time_ns(vcpu, doing)).sum::<u64>();
        let books = outcome.preempted_ns.expect("it is attributed");
        let [holder, head, waiter, other, _, asleep] = Timeline::OFF;
        let noted = [holder, head, waiter, other, asleep].map(all);
        assert_eq!(noted, [books.holder, books.head, books.waiter, books.other, books.halted], "{lock}");
        assert!(if pv { books.halted > 0 } else { books.holder > 0 }, "{lock}: {books:?}");
    }
}

#[test]
fn holders_heads_waiters_and_anyone_are_taken_off_on_purpose() {
    for target in [Target::Holder, Target::Head, Target::Waiter, Target::Random] {
        let how_often = HowOften::PerSecond(20_000.0);
        let deschedule = deschedule(target, how_often, us(100), None);
        let config = small().pv(false).deschedule(deschedule).hold(us(5)).think(us(5)).window(us(2000));
        let hit = |injected: &ByActivity| match target {
            Target::Holder => injected.holder,
            Target::Head => injected.head,
            Target::Waiter => injected.waiter,
            _ => total(injected),
        };
        // In a short window none may be met at what it is looked for at.
        let injected = |outcome: &Outcome| outcome.injected.expect("asked for");
        let injected = injected(&start_until(&config, |outcome| hit(&injected(outcome)) > 0));
        let hit = hit(&injected);
        assert_eq!(total(&injected), hit, "{target:?}: nobody else was hit: {injected:?}");
    }
}

#[test]
fn a_vcpu_descheduled_on_purpose_is_marked() {
    // As many vCPUs as pCPUs, and no slice ends: a vCPU is off only by injection.
    let off = deschedule(Target::Random, HowOften::PerSecond(5_000.0), us(100), None);
    let config = simulated("skylake-8s", 2, 1).deschedule(off).form("tas", false);
    let config = config.workload("selftest-preempted").slice(Duration::from_secs(1)).window(us(2000));
    assert!(done(&config).acquisitions() > 0, "no vCPU was ever seen marked");
}

#[test]
fn a_vcpu_that_goes_on_is_looked_at_within_its_later_slices() {
    // An arrival each 4 ms on each of two pCPUs, and slices of a millisecond that nothing ends.
    let how_often = HowOften::PerSecond(500.0);
    let deschedule = deschedule(Target::Holder, how_often, us(10), None);
    let config = simulated("skylake-8s", 2, 1).deschedule(deschedule).form("tas", false);
    let config = config.slice(us(1000)).hold(us(1)).think(us(3)).window(us(60_000));
    let injected: u64 =
        (1..=3).map(|seed| total(&done(&config.clone().seed(seed)).injected.expect("asked for"))).sum();
    // Ninety, give or take ten; a vCPU that is looked at in its first slice alone gets a few.
    assert!(injected > 45, "{injected} in 180 ms of two pCPUs, with some 90 arrivals");
}

#[test]
fn who_tells_others_to_drop_translations_pays_for_each_if_modelled() {
    let pages = |invalidation: &str, cpus: u32| {
        let mut config = simulated("ivybridge-ex-4s", cpus, 1).memory_bytes(16 << 20).pv(false);
        let Engine::Sim(machine) = &config.engine else { panic!("it is simulated") };
        let machine = machine.varied(&[], &[("invalidation", invalidation)]).expect("there is such a choice");
        config.engine = Engine::Sim(Arc::new(machine));
        let config = config.lock("none").workload("selftest-page-fault").window(us(2000));
        done(&config).acquisitions() as f64
    };
    let alone = pages("kicks", 1) / pages("free", 1);
    assert!((alone - 1.0).abs() < 0.01, "there is no other: {alone}");
    let of_eight = pages("kicks", 8) / pages("free", 8);
    assert!(of_eight < 0.9, "seven kicks each: {of_eight}");
}

#[test]
fn page_faults_are_counted_and_leave_nothing_behind_under_every_scheme() {
    for (lock, counter) in
        [("mmap-sem", "pgfault"), ("speculative", "speculative_pgfault"), ("per-vma", "vma_lock_success")]
    {
        let config = small().workload("fault-many").form(lock, true).memory_bytes(16 << 20).think(us(0));
        let outcome = done(&config);
        let (faults, served) = (event(&outcome, "pgfault"), event(&outcome, counter));
        assert!(faults > 0 && (1..=faults).contains(&served), "{lock}: {served} of {faults} faults");
        // Workloads that check their remains at the end.
        done(&config.clone().workload("selftest-memory"));
        panics(start(&config.workload("selftest-leak")), "4 pages and 1 areas leaked");
    }
    let without = small().form("none", false).memory_bytes(16 << 20);
    let refused = done(&without.clone().workload("selftest-shootdown").window(us(4000)));
    assert!(refused.acquisitions() > 0, "nobody was refused by a translation that was dropped");
    // Private address spaces have no other CPU to ask.
    let private = done(&without.workload("fault-many").think(us(0)));
    assert!(event(&private, "pgfault") > 0 && event(&private, "tlb_remote_flush") == 0);
}

#[test]
fn faults_of_a_guest_are_found_and_reported_with_their_place() {
    violates_exclusion(&small().workload("selftest-exclusion"));
    match start(&small().workload("selftest-stack")) {
        Err(RunError::GuestFailed { vcpu: 0, reason }) => assert!(reason.contains("its stack"), "{reason}"),
        other => panic!("{other:?}"),
    }
    dies_with_its_place(&small());
    let (guest, _) = watched(&small().workload("selftest-panic"), &Instruments::default()).expect("a run");
    let verdict = guest.explanation.expect("it is explained").verdict;
    assert!(verdict.cause == Cause::Panic && verdict.vcpu == Some(0), "{verdict:?}");
    assert_eq!(guest.console, "selftest-panic: vCPU 0 is about to panic\n");
}

#[test]
fn a_hang_and_a_lost_kick_are_explained() {
    let long = Duration::from_secs(60);
    for (workload, lock, cause) in [
        ("selftest-hang", "qspinlock", Cause::HolderRuns),
        ("selftest-hang", "mcs", Cause::HolderRuns),
        ("selftest-lost-kick", "qspinlock", Cause::LostWakeUp),
    ] {
        let config = small().workload(workload).form(lock, lock != "mcs").window(long).watchdog(ms(50));
        let (guest, _) = watched(&config, &Instruments::default()).expect("a run");
        assert!(matches!(guest.result, Err(RunError::NoProgress(_))), "{workload}: {:?}", guest.result);
        let story = guest.explanation.expect("it is explained");
        assert_eq!(story.verdict.cause, cause, "{workload}: {story}");
        assert_eq!(story.vcpus.len(), 8);
        if cause == Cause::HolderRuns {
            assert_eq!(story.verdict.vcpu, Some(0), "{story}");
            assert!(story.to_string().contains("selftest"), "where the holder is: {story}");
        }
        if cause == Cause::HolderRuns && lock == "qspinlock" {
            let state = &story.locks[0];
            assert!(state.owner == Some(0) && state.heads.len() + state.waiters.len() > 0, "{state:?}");
            let longest = story.vcpus.iter().filter_map(|vcpu| vcpu.asked_ns).max();
            assert!(longest > Some(25_000_000), "nobody waits for long: {longest:?}");
            let word = state.word.as_ref().map_or("", |word| word.meaning.as_str());
            let queue = state.queue.as_ref().expect("no queue");
            let (first, last) = (queue.vcpus.first().copied(), queue.vcpus.last());
            let is_head = first.is_some_and(|vcpu| state.heads.contains(&vcpu));
            assert!(is_head && queue.from_head, "{queue:?}, {state:?}");
            assert!(last.is_some_and(|vcpu| word.contains(&format!("vCPU {vcpu},"))), "{queue:?}, {word}");
            // A word that says so has an entry, and that one names the head.
            let sleepers = story.sleepers.as_ref().expect("no census");
            let named: Vec<_> = sleepers.entries.iter().map(|entry| (entry.lock, entry.vcpu)).collect();
            let slow = if word.starts_with("held and slow") { vec![(Some(0), first)] } else { vec![] };
            assert_eq!(named, slow, "{word}: {sleepers:?}");
        }
        // MCS keeps its owner in the queue, and waiters never leave: all must be there.
        if lock == "mcs" {
            let mut queue = story.locks[0].queue.clone().expect("no queue");
            assert!(queue.from_head && queue.vcpus[0] == 0, "{queue:?}");
            queue.vcpus.sort_unstable();
            assert_eq!(queue.vcpus, (0..8).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_guest_without_cpu_time_fails_after_a_margin_with_the_reason() {
    // Some milliseconds after the start it is off for a second, and again as soon as it is back: in the margin it has too little
    // CPU time to be called stuck.
    let starving = deschedule(Target::Random, HowOften::PerSecond(100.0), Duration::from_secs(1), None);
    let config = simulated("ivybridge-ex-4s", 1, 1)
        .workload("selftest-hang")
        .form("tas", false)
        .deschedule(starving)
        .window(Duration::from_secs(2));
    match within(Duration::from_secs(120), &config) {
        Err(RunError::NoProgress(said)) => assert!(said.contains("too busy to tell"), "{said}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_shows_its_progress_and_stops_at_once_on_request() {
    let busy = simulated("skylake-8s", 64, 1).pv(false).lock("tas").hold(us(0)).think(us(0));
    let config = busy.window(Duration::from_secs(60));
    let (image, stop, virtual_time) =
        (Image::embedded(), AtomicBool::new(false), Arc::new(VirtualTime::default()));
    let instruments = Instruments { virtual_time: Some(Arc::clone(&virtual_time)), ..Instruments::default() };
    let asked_at = us(1500);
    let result = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(&config, &image, &instruments, &stop));
        while virtual_time.passed() < asked_at && !run.is_finished() {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        run.join().expect("it does not panic")
    });
    assert!(matches!(result, Err(RunError::Interrupted)), "{result:?}");
    assert!(virtual_time.executed() > 10_000, "{} instructions", virtual_time.executed());
    // The supervisor looks every 20 ms of virtual time, which are many seconds of simulation.
    let passed = virtual_time.passed();
    assert!((asked_at..us(15_000)).contains(&passed), "{passed:?}");
}

#[test]
fn a_fixed_amount_of_work_ends_with_the_same_counts_on_threads() {
    for (lock, pv) in [("qspinlock", true), ("mcs", false), ("none", false)] {
        let mix = Shape {
            work_sections: 500,
            nested_one_in: 7,
            long_one_in: 5,
            long_hold_ns: 3000,
            ..Shape::default()
        };
        let config = small()
            .workload("mixed")
            .form(lock, pv)
            .shape(mix)
            .lock_count(3)
            .vcpus(1)
            .hold(us(1))
            .think(us(1))
            .window(Duration::from_secs(60));
        let counts = |outcome: &Outcome| {
            let events = outcome.lock_events.clone();
            (outcome.acquisitions(), outcome.lost_updates, events, count(&outcome.wait), count(&outcome.hold))
        };
        let simulated = done(&config);
        let cpus = support::on(Engine::Threads).cpus[..1].to_vec();
        let real = done(&config.engine(Engine::Threads).cpus(cpus));
        assert_eq!(counts(&simulated), counts(&real), "{lock}");
        assert!(simulated.completion.is_some() && simulated.acquisitions() >= 500, "{lock}");
    }
}

#[test]
fn vcpus_with_equally_long_ways_do_not_keep_in_step() {
    // A vCPU that maps and unmaps took the semaphore again before the one that it had woken came for it, forever, and
    // the others never got as far as to be ready.
    let config = simulated("nehalem-2s", 16, 1)
        .workload("fault-map-touch")
        .lock("speculative-2018")
        .memory_bytes(64 << 20);
    let config = config.hold(us(0)).think(us(0)).slice(us(1000)).warmup(us(1000));
    for seed in 1..4 {
        let outcome = done(&config.clone().seed(seed));
        assert!(outcome.window >= us(1000), "seed {seed}: {:?}", outcome.window);
    }
}

#[test]
fn a_kicked_vcpu_starts_before_its_kicker_is_back_in_the_guest() {
    let config = simulated("nehalem-2s", 2, 1);
    let mut slow = Machine::clone(config.engine.machine().expect("a machine"));
    let us_in_ps = 1_000_000;
    let guest = &mut slow.costs.guest;
    (guest.exit_ps, guest.kick_ps, guest.wake_ps) = (100 * us_in_ps, 20 * us_in_ps, 50 * us_in_ps);
    (guest.scatter_permille, guest.idle) = (0, Vec::new());
    // No vCPU is still on the way to sleep when the token comes.
    let outcome = done(
        &config
            .engine(Engine::Sim(Arc::new(slow)))
            .workload("hand-off")
            .form("none", false)
            .hold(us(500))
            .slice(us(20_000))
            .warmup(us(2_000))
            .window(us(62_000)),
    );
    // The work, half of an exit, the kick, and the way out of the sleep.
    let expected = outcome.window.as_secs_f64() / 620e-6;
    let counted = outcome.acquisitions() as f64;
    assert!((counted / expected - 1.0).abs() < 0.02, "{counted} handoffs, {expected} expected");
}
