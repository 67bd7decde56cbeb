//! A guest's machine, ready to start: on KVM, with what its kernel side is set to, or in this process. How a vCPU begins, how it
//! is run and why it came back. Here: the properties that a machine is to have, the ring that its guest runs in, how vCPUs sleep and are
//! woken, and which capabilities of KVM are switched on or off for its VM.

pub(crate) mod boot;
pub(crate) mod build;
pub(crate) mod in_kernel;
pub(crate) mod invalidate;
pub(crate) mod ring_probe;
pub(crate) mod vcpu;
pub(crate) mod vm;

use std::time::Duration;

use kvm_bindings::{
    KVM_CAP_HALT_POLL, KVM_CAP_X86_DISABLE_EXITS, KVM_X86_DISABLE_EXITS_HLT, KVM_X86_DISABLE_EXITS_PAUSE,
    kvm_enable_cap,
};
use kvm_ioctls::VmFd;

use crate::host::error::{RunError, system};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) vcpus: u32,
    pub(crate) ring: Ring,
    pub(crate) pv_backend: PvBackend,
    /// Whether it is the VMM that schedules, which must see every sleep.
    pub(crate) vmm_schedules: bool,
    pub(crate) halts: KernelHalts,
    /// The lock that the call sites are rewritten for, by its number in the image, and whether in its paravirtual form; `None`: they
    /// stay as built.
    pub(crate) patch: Option<(usize, bool)>,
    /// Memory for the guest's memory manager.
    pub(crate) pool_bytes: u64,
    /// Length of each vCPU's ring of trace records; 0: none.
    pub(crate) trace_sections: u64,
}

/// The privilege ring that the guest runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// Measure which ring this host's KVM runs natively; ring 0 if both are.
    Auto,
    /// Kernel mode.
    Ring0,
    /// User mode.
    Ring3,
}

/// The ring and the back end of a guest, and why these.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) ring: Ring,
    pub(crate) ring_reason: String,
    pub(crate) pv_backend: PvBackend,
    pub(crate) pv_backend_reason: String,
}

/// Instructions a second below which a ring is called interpreted: a tenth of the slowest emulated CPU seen, five
/// times the fastest interpreter.
const NATIVE_AT_LEAST: f64 = 10e6;

/// Whether a ring of this many instructions a second runs natively.
pub(crate) fn is_native(instructions_per_second: f64) -> bool {
    instructions_per_second >= NATIVE_AT_LEAST
}

/// The reason why ring 0 with this rate is no place for a guest; `None` if it is native.
pub(crate) fn interpreted(rate: f64) -> Option<String> {
    (!is_native(rate)).then(|| format!("ring 0 is interpreted here ({:.1} M instructions/s)", rate / 1e6))
}

/// Picks the ring for `asked`, given how fast ring 0 is.
pub(crate) fn choose_ring(asked: Ring, ring0_rate: Option<f64>) -> (Ring, String) {
    match (asked, ring0_rate.and_then(interpreted)) {
        (Ring::Auto, Some(why)) => (Ring::Ring3, why),
        (Ring::Auto, None) => (Ring::Ring0, "ring 0 is native here".into()),
        (ring, _) => (ring, "asked for".into()),
    }
}

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

/// How vCPUs halt and pause in KVM's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelHalts {
    /// How long KVM polls before it lets a vCPU sleep; `None`: as the host is set up.
    pub poll: Option<Duration>,
    /// Whether a spin loop in ring 0 may end in an exit.
    pub pause_exits: bool,
    /// Whether HLT in ring 0 ends in an exit. If not, the pCPU idles in the guest.
    pub hlt_exits: bool,
}

impl Default for KernelHalts {
    fn default() -> Self {
        Self { poll: None, pause_exits: true, hlt_exits: true }
    }
}

/// Enables the capabilities that `halts` needs of the VM as a whole, before it has vCPUs.
pub(crate) fn apply_halts(vm: &VmFd, halts: KernelHalts) -> Result<(), RunError> {
    if let Some(halt_poll) = halts.poll {
        let nanoseconds = u64::try_from(halt_poll.as_nanos()).unwrap_or(u64::MAX);
        enable(vm, KVM_CAP_HALT_POLL, nanoseconds).map_err(|error| {
            RunError::HostLacks(format!(
                "--halt-poll: this KVM cannot set it for one VM ({error}), see doctor"
            ))
        })?;
    }
    let disabled = [
        ("--pause-exits", halts.pause_exits, KVM_X86_DISABLE_EXITS_PAUSE),
        ("--hlt-exits", halts.hlt_exits, KVM_X86_DISABLE_EXITS_HLT),
    ];
    let possible = vm.check_extension_raw(u64::from(KVM_CAP_X86_DISABLE_EXITS));
    let mut mask = 0;
    for (option, _, bit) in disabled.into_iter().filter(|(_, exits, _)| !exits) {
        if possible & bit as i32 == 0 {
            return Err(RunError::HostLacks(format!("{option} off: this KVM cannot do without these exits")));
        }
        mask |= u64::from(bit);
    }
    if mask != 0 {
        enable(vm, KVM_CAP_X86_DISABLE_EXITS, mask).map_err(system("switch exits off"))?;
    }
    Ok(())
}

pub(crate) fn enable(vm: &VmFd, cap: u32, argument: u64) -> Result<(), kvm_ioctls::Error> {
    vm.enable_cap(&kvm_enable_cap { cap, args: [argument, 0, 0, 0], ..Default::default() })
}
