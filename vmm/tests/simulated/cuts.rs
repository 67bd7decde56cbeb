//! Cuts of a run, without copies of the process, which a test with threads cannot make.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use haltkick_vmm::worst::{Attempt, Baseline, Cut, Effect, Kind, Occurrence, Scope, replay, survey};
use haltkick_vmm::{Image, Run};
use support::{Settings, simulated};

use super::us;

static NEVER: AtomicBool = AtomicBool::new(false);

fn surveyed(run: &Run) -> Baseline {
    let scope = Scope { span: us(1000), horizon: us(3000), every: false };
    survey(run, &Image::embedded(), scope, &NEVER).expect("the lock holds")
}

fn cut(run: &Run, baseline: &Baseline, at: &Occurrence, kind: Kind) -> Effect {
    let cut = Cut { vcpu: at.vcpu, instructions: at.instructions, kind };
    match replay((run, &Image::embedded()), baseline, cut, &NEVER) {
        Ok(Attempt::Held(effect)) => effect,
        other => panic!("{other:?}"),
    }
}

/// Some occurrences that lie far apart.
fn some(baseline: &Baseline) -> impl Iterator<Item = &Occurrence> {
    baseline.occurrences.iter().step_by(baseline.occurrences.len() / 5)
}

#[test]
fn a_cut_that_does_nothing_changes_nothing() {
    for (lock, pv, ratio) in [("qspinlock", true, 2), ("ticket", false, 2), ("mutex/packed", true, 3)] {
        let run = Run { drain: true, ..simulated("skylake-8s", 4, ratio).lock(lock).pv(pv) };
        let baseline = surveyed(&run);
        assert!(baseline.occurrences.len() > 100, "{lock}: {}", baseline.occurrences.len());
        for at in some(&baseline) {
            let effect = cut(&run, &baseline, at, Kind::Nothing);
            assert!(effect.unchanged && effect.late_ns == 0, "{lock}: {at:?}: {effect:?}");
            assert!(!cut(&run, &baseline, at, Kind::Exit).unchanged, "{lock}: {at:?}");
        }
    }
}

#[test]
fn a_holder_that_is_taken_off_makes_all_others_wait() {
    let run = Run { drain: true, ..simulated("skylake-8s", 4, 1).lock("ticket").pv(false) };
    let baseline = surveyed(&run);
    let mut holders = baseline.occurrences.iter().filter(|at| at.holds);
    let at = holders.nth(100).expect("somebody takes the lock");
    let length = Duration::from_millis(1);
    let effect = cut(&run, &baseline, at, Kind::Off(length));
    // Four CPUs do nothing for a millisecond, and for the time that the fourth one takes to wake up. It has not said yet that its
    // wait is over.
    assert!((1_000_000..1_350_000).contains(&effect.late_ns), "{effect:?}");
    assert!(effect.longest_wait_ns[0] > 1_000_000 && effect.blocked_peak == 4, "{effect:?}");
    assert_eq!(effect, cut(&run, &baseline, at, Kind::Off(length)), "twice the same");
}
