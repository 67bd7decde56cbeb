//! Locks that a head has closed to newcomers while it is off its pCPU.

use haltkick_vmm::{ClosedByHeads, HowOften, Outcome, Target};
use support::{Settings, deschedule};

use super::{done, small, us};

/// A run in which heads that forbid stealing are taken off for `off_us` and sections take `hold_us`.
fn planted(off_us: u64, hold_us: u64) -> Outcome {
    let head = deschedule(Target::Head, HowOften::Probability(0.05), us(off_us), Some("head-spinning"));
    done(&small().lock("qspinlock-points").pv(true).deschedule(head).hold(us(hold_us)).window(us(40_000)))
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
fn a_planted_absence_of_a_head_lands_in_its_bucket() {
    // The lock is free for all of it but a short section, and the head may wait for a pCPU afterwards.
    for (off_us, hold_us, least_us, most_us) in [(3_000, 1, 2_800, 4_500), (800, 1, 700, 2_000)] {
        let outcome = planted(off_us, hold_us);
        let (closed, injected) = (closed(&outcome), outcome.injected.expect("it was asked for").head);
        let found = between(closed, least_us, most_us);
        assert!(injected > 3 && found + 1 >= injected, "{found} of {injected} x {off_us} us: {closed:?}");
        assert_eq!(between(closed, most_us, u64::MAX / 1000), 0, "longer than planted: {closed:?}");
    }
}

#[test]
fn a_lock_that_is_held_meanwhile_is_not_free() {
    // A section of 600 us has begun when the head goes; what is left of it is no loss.
    let outcome = planted(1_000, 600);
    let closed = closed(&outcome);
    assert!(closed.absences > 3, "{closed:?}");
    assert!(closed.free.sum < closed.off_ns * 9 / 10, "{closed:?}");
}

#[test]
fn others_lose_what_they_wait_while_the_lock_is_free() {
    let outcome = planted(3_000, 1);
    let closed = closed(&outcome);
    // All of the other seven ask for it soon, and wait.
    assert!(closed.lost_ns > closed.free.sum * 5 && closed.lost_ns < closed.free.sum * 8, "{closed:?}");
    let native = done(&small().lock("qspinlock-points").pv(false));
    assert!(native.closed.is_err(), "a native queue closes nothing");
}
