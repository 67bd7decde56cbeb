//! The shape of published curves of one contended word: flat in a socket; a second one costs nothing where its CPUs ask again at once,
//! and half as much again where they come back after a while. `docs/simulated-truth.md` has all points.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use haltkick_sim::lines::{Lines, Need, Requested, Transfer};
use haltkick_sim::machine::{Machine, presets};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Completes { request: u64 },
    Wants(u32),
}

/// Nanoseconds between two atomic operations anywhere, when `cpus` of `machine` do one each `after_ns`, or as fast as they can.
fn between_operations_ns(machine: &Machine, cpus: &[u32], after_ns: u64) -> f64 {
    const OPERATIONS: u64 = 20_000;
    let mut lines = Lines::new(machine, 64);
    let mut events: BinaryHeap<_> = cpus.iter().map(|&cpu| Reverse((0, Event::Wants(cpu)))).collect();
    let (mut done, mut end_ps) = (0, 0);
    let after_ps = machine.costs.rmw_ps + 1000 * after_ns;
    while let Some(Reverse((now_ps, event))) = events.pop()
        && done < OPERATIONS
    {
        match event {
            Event::Wants(cpu) if lines.has(now_ps, cpu, 0, Need::Write) => {
                lines.hit(now_ps, cpu, 0, Need::Write);
                done += 1;
                events.push(Reverse((now_ps + after_ps, Event::Wants(cpu))));
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
                done += 1;
                events.push(Reverse((now_ps + after_ps, Event::Wants(served.cpu))));
                if let Some(Transfer { request, completes_ps }) = served.next {
                    events.push(Reverse((completes_ps, Event::Completes { request })));
                }
            }
        }
        end_ps = now_ps;
    }
    end_ps as f64 / 1000.0 / done as f64
}

#[test]
fn a_second_socket_costs_only_those_who_come_back_late() {
    let machine = presets().iter().find(|preset| preset.name == "broadwell-2s").unwrap().machine();
    let cores = machine.topology.cores();
    let by_core: Vec<u32> = (0..cores).flat_map(|core| [core, core + cores]).collect();
    let (one, both) = (&by_core[..by_core.len() / 2], &by_core[..]);
    for (after_ns, few, most) in [(3, 0.9, 1.15), (600, 1.3, 2.2)] {
        let alone = between_operations_ns(&machine, one, after_ns);
        let ratio = between_operations_ns(&machine, both, after_ns) / alone;
        assert!(
            (few..most).contains(&ratio),
            "{after_ns} ns: {alone} ns in a socket, {ratio} times that in two"
        );
    }
    let few = between_operations_ns(&machine, &one[..8], 3);
    let ratio = between_operations_ns(&machine, one, 3) / few;
    assert!((0.9..1.1).contains(&ratio), "flat in a socket: {few} ns, {ratio}");
}
