//! A look at a vCPU's `preempted` flag, and whether it has held since.

use core::sync::atomic::Ordering;

use crate::cpu::percpu::{area, is_marked};

/// A vCPU's `preempted` flag at one look, and the number of times that the vCPU had been marked until then.
pub(crate) struct FlagSnapshot {
    generation: u64,
    /// Whether the vCPU was marked.
    pub(crate) is_set: bool,
}

impl FlagSnapshot {
    /// A first look at vCPU `cpu`'s flag.
    pub(crate) fn of(cpu: usize) -> Self {
        // The generation first. A flag that was set after that belongs to a later generation, which `still_holds` then sees.
        let generation = area(cpu).host.generation.load(Ordering::Acquire);
        Self { generation, is_set: is_marked(cpu) }
    }

    /// Whether `cpu`'s flag has not changed since this look.
    pub(crate) fn still_holds(&self, cpu: usize) -> bool {
        // The flag first, the other way round than in `of`: a vCPU that came back and was marked anew between the two loads
        // has moved its generation, which is counted before the flag is set. Acquire keeps the order; partner: the VMM's
        // release of both when it marks a vCPU.
        is_marked(cpu) == self.is_set && area(cpu).host.generation.load(Ordering::Acquire) == self.generation
    }
}
