//! Loops that stand for work.

use crate::cpu::state::Cpu;
use crate::machine::work_loop::{ROUND, WorkLoop};

use super::{Board, Memory};

impl<M: Memory> Board<M> {
    /// Work is time: the loop that the CPU has come to is over, or as much of it as fits.
    pub(super) fn work(&mut self, slot: u32, cpu: &mut Cpu, instruction_ps: u64, end_ps: u64) {
        let head = cpu.rip();
        let work = self.loops[&head];
        let place = &mut self.slots[slot as usize];
        let round_ps = ROUND * instruction_ps;
        let fit = (end_ps.saturating_sub(place.at_ps) / round_ps).max(1);
        // A counter of zero goes round once, and on from below.
        let left = cpu.general(work.left);
        let rounds = if left == 0 { 1 } else { left.min(fit) };
        let left = left.wrapping_sub(rounds);
        cpu.set_general(work.product, WorkLoop::after(cpu.general(work.product), rounds));
        cpu.set_general(work.left, left);
        cpu.add_instructions(rounds * ROUND);
        place.at_ps += rounds * round_ps;
        let at_ps = place.at_ps;
        self.worked_ps += rounds * ROUND * self.fabric.machine.costs.instruction_ps;
        if left == 0 {
            cpu.set_rip(work.end);
        }
        self.spend(slot, head, false, at_ps);
    }
}
