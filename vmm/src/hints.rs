//! Who writes the `preempted` flag that the guest reads.
//!
//! Under the VMM's scheduler the VMM does, exactly (see `account`). Under the host's, KVM does where it can; where it
//! does not, a BPF program may (see `switch_probe`); else nobody does, and the run says why.

use crate::config::PreemptedBy;
use crate::memory::Memory;
#[cfg(feature = "bpf")]
use crate::switch_probe::SwitchProbe;

/// Who writes the flag under the host's scheduler.
#[derive(Debug)]
pub(crate) enum Hints {
    /// KVM, in the steal-time record.
    Kvm,
    /// The BPF program, in a map of its own.
    #[cfg(feature = "bpf")]
    Bpf(SwitchProbe),
    /// Nobody; says why.
    Nobody(String),
}

impl Hints {
    /// What `wanted` comes to on this host, where `refused` is why KVM does not keep the steal-time record, if so.
    pub(crate) fn choose(wanted: PreemptedBy, refused: Option<String>, memory: &Memory) -> Self {
        match (wanted, refused) {
            (PreemptedBy::Kvm, None) => Self::Kvm,
            (PreemptedBy::Kvm, Some(reason)) => Self::Nobody(reason),
            (PreemptedBy::Auto, None) if kvm_sets_the_flag() => Self::Kvm,
            (PreemptedBy::Auto, refused) => {
                let kvm =
                    refused.unwrap_or_else(|| "this KVM keeps the record but never sets the flag".into());
                Self::by_bpf(memory).unwrap_or_else(|bpf| Self::Nobody(format!("{kvm}; {bpf}")))
            }
            (PreemptedBy::Bpf, _) => Self::by_bpf(memory).unwrap_or_else(Self::Nobody),
        }
    }

    #[cfg(feature = "bpf")]
    fn by_bpf(memory: &Memory) -> Result<Self, String> {
        let probe = SwitchProbe::attach().map_err(refusal)?;
        memory.map_flags(probe.flags()).map_err(refusal)?;
        Ok(Self::Bpf(probe))
    }

    #[cfg(not(feature = "bpf"))]
    fn by_bpf(_: &Memory) -> Result<Self, String> {
        Err(WITHOUT_BPF.into())
    }

    /// The calling thread runs `vcpu` from now on.
    pub(crate) fn runs_here(&self, vcpu: u32) {
        #[cfg(feature = "bpf")]
        if let Self::Bpf(probe) = self {
            // It fails when the map is full, which has room for all vCPUs. Then this one's flag stays clear.
            let _ = probe.watch(crate::signal::Thread::current().id(), vcpu);
        }
        #[cfg(not(feature = "bpf"))]
        let _ = vcpu;
    }

    /// Whether the guest finds the flags in the BPF program's map.
    pub(crate) fn is_bpf(&self) -> bool {
        !matches!(self, Self::Kvm | Self::Nobody(_))
    }
}

/// Whether a BPF program can write the flag on this host, by attaching one for a moment.
///
/// # Errors
/// Why not, in one line.
pub fn bpf_can_write_flags() -> Result<(), String> {
    #[cfg(feature = "bpf")]
    return SwitchProbe::attach().map(drop).map_err(refusal);
    #[cfg(not(feature = "bpf"))]
    return Err(WITHOUT_BPF.into());
}

#[cfg(feature = "bpf")]
fn refusal(error: std::io::Error) -> String {
    let advice = match error.kind() {
        std::io::ErrorKind::PermissionDenied => ": run as root, or with CAP_BPF and CAP_PERFMON",
        _ => "",
    };
    format!("a BPF program on sched_switch cannot be had{advice} ({error})")
}

#[cfg(not(feature = "bpf"))]
const WITHOUT_BPF: &str = "this haltkick was built without the feature `bpf`";

/// Whether this host's KVM sets the flag: those for VMX and SVM do; PVM, which exits where KVM does not take a vCPU for
/// preempted, does not.
fn kvm_sets_the_flag() -> bool {
    let loaded = |module: &str| std::fs::exists(format!("/sys/module/{module}")).unwrap_or(false);
    (loaded("kvm_intel") || loaded("kvm_amd")) && !loaded("kvm_pvm")
}
