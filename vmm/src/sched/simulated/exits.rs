//! Exits of simulated vCPUs.

use haltkick_sim::Event;
use haltkick_sim::machine::Invalidation;

use crate::machine::exits::{Exit, NOT_CARRIED_OUT};
use crate::sched::queue::Task;

use super::{Doing, Simulated, State};

impl<'a> Simulated<'a> {
    /// The exit that an event of the interpreter is to the VMM, and its cost beyond an exit.
    pub(super) fn exit_of(&self, state: &mut State<'a>, cpu: u32, event: Event) -> (Exit, u64) {
        let costs = &self.machine.costs.guest;
        match event {
            Event::Out { port, value, .. } => match Exit::from_hypercall(port, value) {
                Some(exit @ Exit::Kick(_)) => (exit, costs.kick_ps),
                Some(exit) => (exit, 0),
                None => (Exit::Device, 0),
            },
            Event::In { .. } | Event::ReadMsr { .. } => {
                state.board.cpu_mut(cpu).into_iter().for_each(|cpu| cpu.answer(u64::MAX));
                (Exit::Device, 0)
            }
            Event::WriteMsr { .. } | Event::Limit | Event::Stopped | Event::Reached => (Exit::Device, 0),
            Event::Halt => (Exit::Halt, 0),
            Event::ShutDown { .. } => (Exit::Shutdown, 0),
            Event::Hypercall => (Exit::Unexpected { reason: 0, detail: 0 }, 0),
            Event::NotCovered => {
                let at = state.board.cpu(cpu).map_or(0, haltkick_sim::Cpu::rip);
                (Exit::Unexpected { reason: NOT_CARRIED_OUT, detail: at }, 0)
            }
        }
    }

    /// Time of a vCPU that has this number of others drop translations.
    pub(super) fn telling_ps(&self, told: u64) -> u64 {
        match self.machine.model.invalidation {
            Invalidation::Free => 0,
            Invalidation::Kicks => told * self.machine.costs.guest.kick_ps,
        }
    }

    /// vCPUs that have translations to drop get an NMI: those that run at once, the others before they do. Returns how many run.
    pub(super) fn invalidate(&self, state: &mut State<'a>, task: &Task<'a>) -> u64 {
        let Some(shared) = &task.guest.shared else { return 0 };
        let mut told = 0;
        for index in 0..state.slots.len() {
            let slot = &state.slots[index];
            if let Doing::Runs { task: other, .. } = &slot.doing
                && other.guest.index == task.guest.index
                && shared.invalidations.take_pending(other.vcpu.id)
            {
                // The host's interrupt takes the vCPU out of its guest, unless it is out. It comes back with the NMI.
                let (cpu, is_inside) = (slot.cpu, slot.out.is_none());
                let cost_ps = if is_inside { state.scattered(self.machine.costs.guest.exit_ps) } else { 0 };
                state.board.raise_nmi(cpu, cost_ps);
                told += 1;
            }
        }
        (0..task.guest.vcpus).for_each(|vcpu| self.host_wrote(&mut state.board, task.guest, vcpu));
        told
    }
}
