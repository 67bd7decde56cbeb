//! Cuts of a run, without copies of the process, which a test with threads cannot make.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use haltkick_vmm::worst::{Attempt, Baseline, Cut, Effect, Kind, Occurrence, Scope, replay, survey};
use haltkick_vmm::{Image, Run};
use support::{Settings, ms, simulated, us};

static NEVER: AtomicBool = AtomicBool::new(false);

fn draining(ratio: u32, lock: &str, pv: bool) -> Run {
    simulated("skylake-8s", 4, ratio).form(lock, pv).drain(true)
}

fn surveyed_in(run: &Run, span: Duration, horizon: Duration, every: bool) -> Baseline {
    let scope = Scope { span, horizon, every };
    survey(run, &Image::embedded(), scope, &NEVER).expect("the lock holds")
}

fn surveyed(run: &Run) -> Baseline {
    surveyed_in(run, us(1000), us(3000), false)
}

fn replayed(run: &Run, baseline: &Baseline, cut: Cut) -> Effect {
    match replay((run, &Image::embedded()), baseline, &[cut], &NEVER) {
        Ok(Attempt::Held(effect, _)) => effect,
        other => panic!("{other:?}"),
    }
}

fn cut(run: &Run, baseline: &Baseline, at: &Occurrence, kind: Kind) -> Effect {
    replayed(run, baseline, Cut::new(at.vcpu, at.instructions, kind))
}

/// Some occurrences that lie far apart.
fn some(baseline: &Baseline) -> impl Iterator<Item = &Occurrence> {
    baseline.occurrences.iter().step_by(baseline.occurrences.len() / 5)
}

#[test]
fn a_cut_that_does_nothing_changes_nothing() {
    // A native queue comes to a few sections or to many at ratio 2, by chance.
    for (lock, pv, ratio) in [("qspinlock", true, 2), ("ticket", false, 1), ("mutex/packed", true, 3)] {
        let run = draining(ratio, lock, pv);
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
    let run = draining(1, "ticket", false);
    let baseline = surveyed(&run);
    let mut holders = baseline.occurrences.iter().filter(|at| at.holds);
    let at = holders.nth(100).expect("somebody takes the lock");
    let length = ms(1);
    let effect = cut(&run, &baseline, at, Kind::Off(length));
    // Four CPUs do nothing for a millisecond, and for the time that the fourth one takes to wake up. It has not said yet that its
    // wait is over.
    assert!((1_000_000..1_350_000).contains(&effect.late_ns), "{effect:?}");
    assert!(effect.longest_wait_ns[0] > 1_000_000 && effect.blocked_ns[0] > 3_500_000, "{effect:?}");
    assert_eq!(effect, cut(&run, &baseline, at, Kind::Off(length)), "twice the same");
    // One of the four is idle, and three spin.
    let guest_ns = effect.late_ns * 4 - effect.idle_ns - effect.vmm_ns;
    assert!((1_000_000..1_400_000).contains(&effect.idle_ns), "{effect:?}");
    assert!((2_700_000..3_900_000).contains(&guest_ns), "{effect:?}");
}

#[test]
fn a_pcpu_that_is_taken_away_runs_no_other_vcpu() {
    let run = draining(2, "tas", false);
    let baseline = surveyed(&run);
    // It waits, so that nothing depends on it.
    let at = baseline.occurrences.iter().find(|at| !at.holds && at.waiting > 0).expect("somebody waits");
    let length = ms(1);
    let [off, taken] = [Kind::Off(length), Kind::Taken(length)].map(|kind| cut(&run, &baseline, at, kind));
    assert!(off.idle_ns.abs() < 300_000, "another vCPU runs there: {off:?}");
    assert!((950_000..1_400_000).contains(&taken.idle_ns), "no vCPU runs there: {taken:?}");
}

#[test]
fn a_window_that_closes_at_a_cut_ends_the_work() {
    let run = draining(2, "qspinlock", true);
    let baseline = surveyed(&run);
    let at = baseline.occurrences.iter().filter(|at| at.holds).nth(20).expect("somebody takes the lock");
    let cut = Cut::new(at.vcpu, at.instructions, Kind::Off(ms(1)));
    let [goes_on, closes] = [false, true].map(|closes| replayed(&run, &baseline, Cut { closes, ..cut }));
    assert!(!goes_on.censored && closes.censored, "{goes_on:?} {closes:?}");
}

#[test]
fn time_at_a_lock_does_not_depend_on_the_points_tried() {
    let run = draining(1, "mcs", false);
    let [some, every] =
        [false, true].map(|every| surveyed_in(&run, us(500), us(1500), every).exposure.values().sum::<f64>());
    // Four CPUs spin for more than a third of the time. What comes behind the last access of all is in one sum alone.
    assert!(some > 0.3 && (some / every - 1.0).abs() < 0.05, "{some} and {every}");
}

#[test]
fn a_cut_too_late_to_be_compared_is_not_reached() {
    let run = draining(1, "ticket", false);
    let surveyed_over = |span, horizon| surveyed_in(&run, span, horizon, false);
    let (short, long) = (surveyed_over(us(1000), us(1000)), surveyed_over(us(1500), us(500)));
    let late = long.occurrences.iter().find(|at| at.at > us(1200)).expect("the lock is taken all the time");
    let at = Cut::new(late.vcpu, late.instructions, Kind::Exit);
    let found = replay((&run, &Image::embedded()), &short, &[at], &NEVER);
    assert!(matches!(found, Ok(Attempt::Unreached)), "{found:?}");
}
