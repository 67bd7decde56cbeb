//! Speed that a thread takes from the other thread of its core, by its work and by the model.

use haltkick_sim::machine::{Smt, presets};

use crate::programs::{add, wait_for_flag, work_then_set};
use crate::{Bench, CODE, DATA};

/// Work of the other thread.
#[derive(Clone, Copy)]
enum Sibling {
    Nothing,
    Spins,
    /// It waits for lines, most of the time.
    Stalls,
}

/// Time of a thread with such a sibling.
fn worked_ps(smt: Smt, sibling: Sibling) -> f64 {
    let mut machine = presets().iter().find(|preset| preset.name == "cascadelake-2s").unwrap().machine();
    machine.model.smt = smt;
    let code = [work_then_set(), wait_for_flag(), add()].concat();
    let (waits, adds) = (work_then_set().len(), work_then_set().len() + wait_for_flag().len());
    let mut bench = Bench::of_machine(1, machine, &code);
    let other = bench.machine.topology.siblings(0).next().expect("the core has a second thread");
    bench.start(0, CODE, DATA, 500_000);
    let cpus = match sibling {
        Sibling::Nothing => 1,
        Sibling::Spins => {
            bench.start(other, CODE + waits as u64, DATA, 0);
            2
        }
        Sibling::Stalls => {
            // A core of the other socket wants the same line.
            [other, 30]
                .into_iter()
                .for_each(|slot| bench.start(slot, CODE + adds as u64, DATA + 4096, 10_000));
            3
        }
    };
    bench.finish(cpus)[0].1 as f64
}

#[test]
fn a_sibling_costs_what_the_model_says_of_what_it_does() {
    let over_alone = |smt, sibling| worked_ps(smt, sibling) / worked_ps(smt, Sibling::Nothing);
    let near = |ratio: f64, expected: f64| (ratio / expected - 1.0).abs() < 0.02;
    let spins = [Smt::Busy, Smt::Issue].map(|smt| over_alone(smt, Sibling::Spins));
    assert!(near(spins[0], 1.0), "a parked spinner takes nothing: {spins:?}");
    assert!(near(spins[1], 1.0 / (1.0 - 0.4 * 0.1)), "a tenth of what a busy one takes: {spins:?}");
    let stalls = [Smt::Busy, Smt::Issue].map(|smt| over_alone(smt, Sibling::Stalls));
    assert!(near(stalls[0], 1.0 / 0.6), "a stall takes as much as work: {stalls:?}");
    assert!(stalls[1] < 1.2, "a stall takes nothing: {stalls:?}");
}
