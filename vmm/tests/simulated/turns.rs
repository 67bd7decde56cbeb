//! When vCPUs' turns on simulated pCPUs begin and end: slice extensions, how many expire and who asks for them, and what is lost while a
//! head that has closed its lock to newcomers is off its pCPU.

use std::sync::Arc;

use haltkick_vmm::machines::Machine;
use haltkick_vmm::{ClosedByHeads, Engine, Graces, HowOften, Outcome, Run, Shape, ShapeFlags, Target};

use support::{Settings, deschedule, done, found, run_ns, simulated, us};

use super::small;

#[test]
fn changes_of_vcpus_take_what_the_machine_says_and_turns_the_rest() {
    // Two vCPUs that never sleep share a pCPU, so that it goes from one turn straight to the next.
    let config = simulated("ivybridge-ex-4s", 1, 2).form("tas", false).window(us(40_000));
    let found = found(&config);
    let cpu_ns = found.cpu_time.as_nanos() as u64;
    let outcome = found.outcome().expect("it comes to its end");
    let costs = &config.engine.machine().expect("a machine").costs.guest;
    let changes: u64 = outcome.vcpus.iter().map(|vcpu| vcpu.preemptions).sum();
    assert!(changes > 100, "{changes}");
    let run_ns = run_ns(&outcome);
    // When the window opens and closes, a change may be under way.
    let edges_ns = 2 * (costs.switch_ps + costs.exit_ps) / 1000;
    assert!(
        cpu_ns.abs_diff(run_ns) < edges_ns,
        "turns began and ended at the same times for both: {cpu_ns}, {run_ns}"
    );
    // Each change takes a fifth more or less, at random.
    let change_ns = (40_000_000 - run_ns) as f64 / changes as f64;
    let expected_ns = (costs.switch_ps + costs.exit_ps / 2) as f64 / 1000.0;
    assert!((change_ns / expected_ns - 1.0).abs() < 0.1, "{change_ns} ns a change, and not {expected_ns}");
}

#[test]
fn a_machine_says_where_vcpus_wake_up() {
    let run = |choice: &str| {
        // Four CPUs of each socket for eight vCPUs, which sleep and wake up.
        let mut config = simulated("ivybridge-ex-4s", 60, 1).form("futex-mutex", true).think(us(20));
        let machine = config.engine.machine().expect("a machine");
        let text = format!("{}\n[model]\nplacement = \"{choice}\"\n", machine.text);
        config.engine = Engine::Sim(Arc::new(Machine::parse("test", &text).expect("a machine")));
        let pcpus: Vec<u32> = (0..16).map(|cpu| cpu / 4 * 15 + cpu % 4).collect();
        let found = found(&config.vcpus(8).cpus(pcpus).window(us(4000)));
        let outcome = found.outcome().expect("it comes to its end");
        outcome.acquisitions()
    };
    let (last, lowest) = (run("last"), run("lowest"));
    assert_eq!(run("last"), last);
    assert_ne!(last, lowest);
}

/// Test-and-set by 8 vCPUs on 4 pCPUs, sections of 20 us, and slices that may be 5 us longer.
fn sections_of_20_us() -> Run {
    simulated("skylake-8s", 4, 2)
        .form("tas", false)
        .hold(us(20))
        .think(us(20))
        .slice(us(200))
        .grace(us(5))
        .window(us(60_000))
}

fn graces(run: &Run) -> Graces {
    done(run).graces.expect("slices may be extended")
}

#[test]
fn an_extension_expires_unless_the_rest_of_the_section_is_shorter() {
    let Graces { granted, expired, .. } = graces(&sections_of_20_us());
    // A slice ends anywhere in a section: three quarters have more than 5 of their 20 us left.
    let share = expired as f64 / granted as f64;
    assert!(granted > 100 && (0.6..0.9).contains(&share), "{expired} of {granted}");
    // With an extension that is long enough no slice ends in a section.
    let outcome = done(&sections_of_20_us().grace(us(100)));
    let Graces { granted, expired, .. } = outcome.graces.expect("slices may be extended");
    let holders = outcome.preemptions.expect("the VMM knows its own preemptions").holder;
    assert!(granted > 100 && granted > expired && holders <= expired, "{holders}: {expired} of {granted}");
}

#[test]
fn a_vcpu_that_always_claims_a_lock_gets_only_its_share() {
    // Twice the share of the others, if extensions were not charged.
    let liar = small().form("none", false).workload("selftest-liar").slice(us(200)).grace(us(200));
    let outcome = done(&liar.window(us(60_000)));
    let Graces { granted, expired, .. } = outcome.graces.expect("slices may be extended");
    // The window may open or close in one.
    assert!(granted > 10 && granted.abs_diff(expired) <= 1, "{expired} of {granted}");
    let run: Vec<u64> = outcome.vcpus.iter().filter_map(|vcpu| vcpu.run_ns).collect();
    let fair = run.iter().sum::<u64>() as f64 / run.len() as f64;
    assert!((run[0] as f64) < fair * 1.3, "the liar's is the first: {run:?}");
}

#[test]
fn sections_that_ask_for_no_extension_get_none() {
    let mixed = |only_short_ask| {
        let mix = Shape {
            long_hold_ns: 20_000,
            long_one_in: 2,
            flags: ShapeFlags::NONE.with_if(only_short_ask, ShapeFlags::ONLY_SHORT_ASK),
            ..Shape::default()
        };
        graces(&sections_of_20_us().workload("mixed").hold(us(1)).shape(mix).window(us(240_000)))
    };
    let (all, short) = (mixed(false), mixed(true));
    // Long ones are twenty of twenty-one parts of the time in sections.
    assert!(all.granted > 100 && short.granted * 5 < all.granted, "{} and {}", all.granted, short.granted);
    // One in twenty of some forty; a quarter is far above.
    assert!(short.expired * 4 <= short.granted, "{} of {}", short.expired, short.granted);
}

/// A run in which heads that forbid stealing are taken off for `off_us` and sections take `hold_us`.
fn planted(off_us: u64, hold_us: u64) -> Outcome {
    let head = deschedule(Target::Head, HowOften::Probability(0.05), us(off_us), Some("head-spinning"));
    done(&small().form("qspinlock-points", true).deschedule(head).hold(us(hold_us)).window(us(40_000)))
}

fn closed(outcome: &Outcome) -> &ClosedByHeads {
    outcome.closed.as_ref().expect("a paravirtual qspinlock under the VMM's scheduler")
}

/// Free times of at least `least_us` and less than `most_us`.
fn between(closed: &ClosedByHeads, least_us: u64, most_us: u64) -> u64 {
    let in_it = |span: &haltkick_vmm::TicksSpan| span.low >= least_us * 1000 && span.high < most_us * 1000;
    closed.free.spans().filter(in_it).map(|span| span.count).sum()
}

#[test]
fn a_heads_absence_is_free_time_unless_the_lock_is_held() {
    // The lock is free for all of it but a short section, and the head may wait for a pCPU afterwards.
    for (off_us, least_us, most_us) in [(3_000, 2_800, 4_500), (800, 700, 2_000)] {
        let outcome = planted(off_us, 1);
        let (closed, injected) = (closed(&outcome), outcome.injected.expect("it was asked for").head);
        let found = between(closed, least_us, most_us);
        assert!(injected > 3 && found + 1 >= injected, "{found} of {injected} x {off_us} us: {closed:?}");
        assert_eq!(between(closed, most_us, u64::MAX / 1000), 0, "longer than planted: {closed:?}");
        if off_us == 3_000 {
            // All of the other seven ask for it soon, and wait.
            let lost = closed.lost_ns as f64 / closed.free.sum as f64;
            assert!((5.0..8.0).contains(&lost), "{lost} vCPUs wait: {closed:?}");
        }
    }
    // A section of 600 us has begun when the head goes; what is left of it is no loss.
    let outcome = planted(1_000, 600);
    let closed = closed(&outcome);
    assert!(closed.absences > 3 && closed.free.sum < closed.off_ns * 9 / 10, "{closed:?}");
    let native = done(&small().form("qspinlock-points", false));
    assert!(native.closed.is_err(), "a native queue closes nothing");
}
