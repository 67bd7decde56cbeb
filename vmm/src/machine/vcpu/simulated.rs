//! A vCPU of a simulated machine: the registers of a CPU, while no pCPU has them.

use haltkick_sim::Cpu;

/// See the module.
pub(crate) struct SimulatedVcpu {
    /// Index in the guest.
    pub(super) id: u32,
    /// `None` while it is on a pCPU.
    pub(super) cpu: Option<Box<Cpu>>,
}

impl SimulatedVcpu {
    /// Number `id`, which is to begin with this.
    pub(crate) fn new(id: u32, cpu: Cpu) -> Self {
        Self { id, cpu: Some(Box::new(cpu)) }
    }
}
