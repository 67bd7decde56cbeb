//! The costs of contended lines, held against a curve that they were fitted to and one that they were not: fetch-add on one
//! word by many CPUs at once, with nothing between (perfbook's raw data, as nanoseconds between two operations anywhere).
//!
//! `cargo test --package haltkick-sim --test fetch_add -- --nocapture` prints both tables.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use haltkick_sim::lines::{Lines, Need, Requested, Transfer};
use haltkick_sim::machine::{Machine, Visits, presets};

/// Time of the loop around the instruction.
const LOOP_PS: u64 = 500;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Completes { request: u64 },
    Wants(u32),
}

/// Nanoseconds between two operations anywhere, when `cpus` do nothing else.
fn between_operations_ns(machine: &Machine, cpus: &[u32]) -> f64 {
    const OPERATIONS: u64 = 20_000;
    let mut lines = Lines::new(machine, 64);
    let mut events: BinaryHeap<_> = cpus.iter().map(|&cpu| Reverse((0, Event::Wants(cpu)))).collect();
    let (mut done, mut end_ps) = (0, 0);
    let after_ps = machine.costs.rmw_ps + LOOP_PS;
    while let Some(Reverse((now_ps, event))) = events.pop()
        && done < OPERATIONS
    {
        match event {
            Event::Wants(cpu) if lines.has(cpu, 0, Need::Write) => {
                let sibling_ps =
                    if lines.hit(cpu, 0, Need::Write) { machine.costs.line.sibling_ps } else { 0 };
                done += 1;
                events.push(Reverse((now_ps + sibling_ps + after_ps, Event::Wants(cpu))));
            }
            Event::Wants(cpu) => {
                if let Requested::UnderWay(Transfer { request, completes_ps }) =
                    lines.request(machine, now_ps, (cpu, 0, Need::Write), 0)
                {
                    events.push(Reverse((completes_ps, Event::Completes { request })));
                }
            }
            Event::Completes { request } => {
                let served = lines.complete(machine, now_ps, (0, request));
                lines.hit(served.cpu, 0, Need::Write);
                done += 1;
                events.push(Reverse((now_ps + after_ps, Event::Wants(served.cpu))));
                for Transfer { request, completes_ps } in served.next {
                    events.push(Reverse((completes_ps, Event::Completes { request })));
                }
            }
        }
        end_ps = now_ps;
    }
    end_ps as f64 / 1000.0 / done as f64
}

/// Prints simulated next to measured, and the worst relative error.
fn compare(
    (name, visits): (&str, Visits),
    order: impl Fn(&Machine) -> Vec<u32>,
    cpus: &[usize],
    ns: &[f64],
) -> f64 {
    let mut machine = presets().iter().find(|preset| preset.name == name).unwrap().machine();
    machine.model.visits = visits;
    let order = order(&machine);
    println!("{name}\nCPUs  measured  simulated  error");
    let errors = cpus.iter().zip(ns).map(|(&cpus, measured_ns)| {
        let simulated_ns = between_operations_ns(&machine, &order[..cpus]);
        let error = simulated_ns / measured_ns - 1.0;
        println!("{cpus:4}  {measured_ns:5.1} ns  {simulated_ns:6.1} ns  {:+.0} %", error * 100.0);
        error.abs()
    });
    errors.fold(0.0, f64::max)
}

#[test]
fn the_curve_that_the_costs_were_fitted_to_is_met() {
    let cpus = [1, 2, 4, 8, 16, 28, 56, 80, 112, 160, 224, 320, 384, 420];
    let ns = [4.8, 32.0, 28.0, 25.0, 23.0, 22.0, 24.0, 27.0, 29.0, 30.0, 32.0, 36.0, 36.0, 35.0];
    for (visits, most) in [(Visits::Overlap, 0.25), (Visits::Several, 0.3)] {
        let order = |machine: &Machine| (0..machine.topology.cpus()).collect();
        let worst = compare(("skylake-8s", visits), order, &cpus, &ns);
        assert!(worst < most, "{visits:?}: {worst}");
    }
}

#[test]
fn a_machine_that_nothing_was_fitted_to_is_met_within_a_factor() {
    let cpus = [1, 2, 4, 8, 16, 30, 56, 96, 112, 128, 144, 160];
    let ns = [2.5, 5.6, 6.2, 6.5, 7.2, 8.4, 9.1, 10.3, 11.0, 12.5, 14.3, 17.0];
    let siblings_adjacent = |machine: &Machine| {
        let cores = machine.topology.cores();
        (0..cores).flat_map(|core| [core, core + cores]).collect()
    };
    let worst = compare(("milan-1s", Visits::Overlap), siblings_adjacent, &cpus, &ns);
    assert!(worst < 0.5, "{worst}");
}
