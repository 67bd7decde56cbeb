//! Descheduling on purpose, and what limits it: the end of the slice, directed yields.
//! At named points of the slow paths exclusion and progress must survive each. A vCPU that waits for one lock while it holds another
//! counts as a holder: others wait for it.

use std::time::Duration;

use haltkick_vmm::{ByActivity, HowOften, Image, Run, Sched, Target};

use libtest_mimic::Trial;
use support::{Settings, apply, config, deschedule, done, exits, mostly_holding, ms, named, sum, trial, us};

#[apply(trial)]
fn every_injected_holder_preemption_is_attributed_to_the_holder(sched: Sched) {
    let length = ms(2);
    let deschedule = deschedule(Target::Holder, HowOften::PerSecond(200.0), length, None);
    let outcome = done(&mostly_holding().sched(sched).deschedule(deschedule).window(ms(300)));
    let injected = outcome.injected.expect("nothing is known of what was injected");
    // The lock's own record of its holder decides which vCPU is stopped; the guest reports what it was doing.
    assert!(injected.holder > 0 && injected.holder == sum(&injected), "{injected:?}");
    let lost = outcome.lost_ns.expect("nothing is known of what was lost");
    assert!(lost.holder > 0, "nobody lost anything to a holder that was off for 2 ms");
    if let (Some(preemptions), Some(off)) = (outcome.preemptions, outcome.preempted_ns) {
        assert!(preemptions.holder >= injected.holder, "{preemptions:?} < {injected:?}");
        // Each was off for its time at least, but for those that the end of the window cut short.
        let vcpus = outcome.vcpus.len() as u64;
        let least = injected.holder.saturating_sub(vcpus) * length.as_nanos() as u64;
        assert!(off.holder >= least, "{} ns off in {} injections", off.holder, injected.holder);
        assert!(lost.holder <= off.holder * (vcpus - 1), "{} ns lost, {} off", lost.holder, off.holder);
    }
}

#[apply(trial)]
fn a_directed_yield_runs_exactly_the_vcpu_that_it_names() {
    let cpus: Vec<_> = config().cpus.into_iter().take(1).collect();
    // Two, which take turns: one that is named although it has had more than others is not next.
    let outcome = done(&config().vcpus(2).cpus(cpus).lock("none").workload("selftest-yield").pv(false));
    let yields = outcome.acquisitions();
    assert!(yields > 0, "nobody yielded");
    let not_named: u64 = outcome
        .times
        .iter()
        .filter(|(name, _)| name == "not-named")
        .flat_map(|(_, times)| times.spans())
        .filter(|span| span.low == 1)
        .map(|span| span.count)
        .sum();
    // A slice may end after a vCPU has named another one and before it yields.
    let preemptions: u64 = outcome.vcpus.iter().map(|vcpu| vcpu.preemptions).sum();
    assert!(not_named <= preemptions, "{not_named} of {yields} ran unnamed, {preemptions} slices ended");
    let handed = outcome.handed.expect("the VMM knows whom it ran");
    assert!(handed + preemptions >= yields, "{yields} yields, {handed} handed over");
}

#[apply(trial)]
fn a_kick_hands_its_pcpu_to_the_woken_vcpu_on_request() {
    let outcome = done(&config().kick_yields(true).spin_threshold(us(2)));
    let handed = outcome.handed.expect("the VMM knows whom it ran");
    let kicks: u64 = outcome.vcpus.iter().map(|vcpu| vcpu.kicks.unwrap_or(0)).sum();
    // One that has had more than others are ready to bear is woken without it.
    assert!(handed <= kicks && handed > kicks / 2, "{kicks} sleepers kicked, {handed} handed over");
}

#[apply(trial)]
fn a_lock_that_minds_its_slice_gives_the_rest_back() {
    let outcome = done(&mostly_holding().lock("slice-tas").slice_margin(us(500)));
    assert!(exits(&outcome, "yield") > 0, "no slice was given back");
    let heedless = done(&mostly_holding().lock("slice-tas").slice_margin(Duration::ZERO));
    assert_eq!(exits(&heedless, "yield"), 0, "a slice was given back for no reason");
}

#[apply(trial)]
fn every_instrumented_lock_is_stopped_at_its_points() -> Vec<Trial> {
    let mut trials = vec![];
    for (lock, pv, points) in INSTRUMENTED {
        for point in points.split(' ') {
            let form = if pv { "pv" } else { "native" };
            let title = format!("{lock}_{form}_excludes_when_stopped_at_{}", point.replace('-', "_"));
            trials.push(named(title, move || excludes_when_stopped(lock, pv, point)));
        }
    }
    trials
}

/// The points that each form of an instrumented lock passes.
const INSTRUMENTED: [(&str, bool, &str); 4] = [
    ("qspinlock-points", false, "node-claimed tail-published pending-set handed-over"),
    (
        "qspinlock-points",
        true,
        "node-claimed tail-published halted-published handed-over successor-hashed head-spinning head-hashed \
         slow-seen entry-removed slow-released before-sleep",
    ),
    ("ticket-points", true, "halted-published slow-released before-sleep"),
    ("owner-yield-points", true, "node-claimed tail-published handed-over"),
];

/// In this many runs most vCPUs may pass the point; in those after them none may.
const PATIENT: u64 = 3;

/// Steers the races of the literature: each vCPU that passes the point may lose its CPU there, for longer than a slice.
fn excludes_when_stopped(lock: &str, pv: bool, point: &str) {
    // Only the first that finds the lock held passes here, so there must be times without other waiters.
    let vcpus = if point == "pending-set" { 2 } else { config().guests[0].vcpus };
    let injected = stopped_at(point, us(1500), &config().vcpus(vcpus).form(lock, pv));
    let image = Image::embedded();
    let doing = image.points.iter().find(|entry| entry.name == point).expect("no such point");
    let doing = Target::of_point(doing);
    let as_told = match doing {
        Some(Target::Holder) => injected.holder,
        Some(Target::Head) => injected.head,
        Some(Target::Waiter) => injected.waiter,
        _ => sum(&injected),
    };
    assert!(as_told > 0 && as_told == sum(&injected), "stopped at {point}: {injected:?}");
}

/// Each vCPU waits for one lock, as the holder of another one of its own.
fn holding() -> Run {
    let (lock_count, hold) = (config().guests[0].vcpus + 1, us(5));
    config().workload("selftest-holding").lock_count(lock_count).hold(hold).spin_threshold(us(2))
}

#[apply(trial)]
fn a_waiter_that_holds_another_lock_is_a_holder_when_off() {
    // Only the inner lock comes to these. What the point itself says, waiter, head or neither, is less than that.
    for point in ["tail-published", "head-spinning", "slow-released"] {
        let injected = stopped_at(point, us(500), &holding().lock("qspinlock-points"));
        assert_eq!(injected.holder, sum(&injected), "stopped at {point}: {injected:?}");
    }
    // Slices end wherever they do: in the inner queue most of the time.
    for (lock, pv) in [("qspinlock", true), ("qspinlock", false), ("ticket", false), ("tas", false)] {
        let outcome = done(&holding().form(lock, pv).slice(us(200)));
        assert!(outcome.acquisitions() > 0, "{lock}, pv {pv}: no section was completed");
        let preemptions = outcome.preemptions.expect("the VMM knows its own preemptions");
        assert!(preemptions.holder > 0, "{lock}, pv {pv}: {preemptions:?}");
        assert!(preemptions.waiter == 0 && preemptions.head == 0, "{lock}, pv {pv}: {preemptions:?}");
    }
}

/// The activities of vCPUs that were stopped at `point`. It may be passed rarely: another seed and a longer window follow until one was
/// stopped there, and after some runs every vCPU that passes is.
fn stopped_at(point: &str, length: Duration, run: &Run) -> ByActivity {
    for seed in 1..=50 {
        let chance = HowOften::Probability(if seed <= PATIENT { 0.2 } else { 1.0 });
        let stop = deschedule(Target::Random, chance, length, Some(point));
        let run = run.clone().deschedule(stop).seed(seed).spin_threshold(us(2));
        let outcome = done(&run.window(ms(40) * seed.min(25) as u32));
        let injected = outcome.injected.expect("nothing is known of what was injected");
        if sum(&injected) > 0 {
            return injected;
        }
    }
    panic!("nobody was ever stopped at {point}")
}
