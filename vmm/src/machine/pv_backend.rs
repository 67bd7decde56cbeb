//! By which means vCPUs sleep and are woken.

/// How a vCPU sleeps and is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PvBackend {
    /// The best that works here: `Kvm`, `Ipi`, `Vmm`.
    Auto,
    /// Doorbells: the VMM puts the vCPU to sleep and wakes it.
    Vmm,
    /// In the kernel: HLT, and KVM_HC_KICK_CPU.
    Kvm,
    /// In the kernel: HLT, and an interrupt, as under hypervisors without a hypercall for it.
    Ipi,
}

impl PvBackend {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Vmm => "vmm",
            Self::Kvm => "kvm",
            Self::Ipi => "ipi",
        }
    }
}
