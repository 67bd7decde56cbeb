//! Properties that a machine is to have.

use crate::machine::capabilities::KernelHalts;
use crate::machine::pv_backend::PvBackend;
use crate::machine::ring::Ring;

/// Properties that a machine is to have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Number of vCPUs.
    pub(crate) vcpus: u32,
    /// Privilege ring of the guest.
    pub(crate) ring: Ring,
    /// How vCPUs sleep and are woken.
    pub(crate) pv_backend: PvBackend,
    /// Whether it is the VMM that schedules, which must see every sleep.
    pub(crate) vmm_schedules: bool,
    /// How vCPUs halt and pause in KVM's hands.
    pub(crate) halts: KernelHalts,
    /// The lock that the call sites are rewritten for; `None`: they stay as built.
    pub(crate) patch: Option<Patch>,
    /// Memory for the guest's memory manager.
    pub(crate) pool_bytes: u64,
    /// Length of each vCPU's ring of trace records; 0: none.
    pub(crate) trace_sections: u64,
}

/// A lock that call sites are rewritten for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patch {
    /// Its number in the image.
    pub(crate) lock: usize,
    /// Whether its paravirtual form.
    pub(crate) pv: bool,
}
