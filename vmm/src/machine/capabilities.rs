//! Capabilities of KVM that are switched on or off for one VM.

use std::time::Duration;

use kvm_bindings::{
    KVM_CAP_HALT_POLL, KVM_CAP_X86_DISABLE_EXITS, KVM_X86_DISABLE_EXITS_HLT, KVM_X86_DISABLE_EXITS_PAUSE,
    kvm_enable_cap,
};
use kvm_ioctls::VmFd;

use crate::host::error::{RunError, system};

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

/// How long KVM polls for a wake-up before it lets a halted vCPU of this VM sleep. Where it cannot be set, it stays as it is.
pub(crate) fn set_halt_poll(vm: &VmFd, length: Duration) {
    let nanoseconds = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    _ = enable(vm, KVM_CAP_HALT_POLL, nanoseconds);
}

/// Enables the capabilities that `halts` needs of the VM as a whole, before it has vCPUs.
pub(crate) fn configure(vm: &VmFd, halts: KernelHalts) -> Result<(), RunError> {
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
