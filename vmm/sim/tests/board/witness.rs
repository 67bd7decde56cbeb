//! Observers of CPUs, which change nothing of what these do.

use std::cell::RefCell;
use std::rc::Rc;

use haltkick_sim::board::{Step, Witness};
use haltkick_sim::{Access, Cpu};

use crate::programs::{add, look_at_the_clock};
use crate::{Bench, CODE, DATA};

/// Steps that a witness has seen; times until which it wants them.
#[derive(Default)]
struct Seen {
    until_ps: u64,
    steps: Vec<Step>,
}

impl Witness for Seen {
    fn wants_steps(&self, at_ps: u64) -> bool {
        at_ps < self.until_ps
    }

    fn step(&mut self, step: &Step) {
        self.steps.push(*step);
    }

    fn stands(&mut self, cpu: &mut Cpu, _: u64) -> Option<u64> {
        cpu.asked_at = u64::MAX;
        None
    }
}

fn watched(program: &[u8], cpus: u32, until_ps: u64) -> (Bench, Rc<RefCell<Seen>>) {
    let seen = Rc::new(RefCell::new(Seen { until_ps, ..Seen::default() }));
    let mut bench = Bench::new("cascadelake-2s", program);
    bench.board.most_ahead_ps = 0;
    bench.board.witness = Some(seen.clone());
    (0..cpus).for_each(|slot| bench.start(slot, CODE, DATA, 100));
    (bench, seen)
}

#[test]
fn a_witness_is_told_of_each_instruction_while_it_wants() {
    /// Longer than the first instruction, which walks the tables.
    const UNTIL_PS: u64 = 600_000;
    let (mut bench, seen) = watched(add(), 2, u64::MAX);
    let ends = bench.finish(2);
    let seen = seen.borrow();
    for (slot, end_ps, _, instructions) in ends {
        let steps: Vec<_> = seen.steps.iter().filter(|step| step.number == slot).collect();
        assert_eq!(steps.len() as u64, instructions, "CPU {slot}");
        assert!(steps.iter().zip(0..).all(|(step, before)| step.instructions == before));
        assert!(
            steps
                .windows(2)
                .all(|pair| pair[0].ended_ps <= pair[1].at_ps && pair[0].at_ps < pair[0].ended_ps)
        );
        let last = steps[steps.len() - 1];
        assert!(last.exits && last.ended_ps == end_ps && steps.iter().filter(|step| step.exits).count() == 1);
        let shared = steps.iter().filter(|step| step.shared == Some(Access::Atomic)).count();
        assert!((50..=100).contains(&shared), "all additions since the other CPU has the line: {shared}");
        assert!(steps.iter().all(|step| matches!(step.shared, None | Some(Access::Atomic)) && !step.clock));
    }
    drop(seen);
    let (mut bench, seen) = watched(look_at_the_clock(), 1, UNTIL_PS);
    bench.finish(1);
    let steps = &seen.borrow().steps;
    assert!(steps.len() > 9 && steps.iter().all(|step| step.at_ps < UNTIL_PS), "{}", steps.len());
    assert_eq!(steps.iter().filter(|step| step.clock).count(), steps.len().div_ceil(3));
}
