//! Back ends in which KVM itself puts vCPUs to sleep: which of them work on this host, and what they need of a VM.
//!
//! A guest in ring 0 halts (`pv_wait`) and wakes others by KVM_HC_KICK_CPU, or by an ordinary interrupt the way a
//! hypervisor without that hypercall has it done. Both need KVM's interrupt controller. Offered is not working: PVM
//! offers the hypercall and never returns from it; KVM answers 0 to a kick that has no effect because the target's
//! local APIC is off. So each is tried, on two vCPUs of the very VM that is to run the guest if it has them, with a
//! time limit.

mod trial;

use std::sync::OnceLock;

use haltkick_hypercalls::BootFlags;
use kvm_bindings::CpuId;

use crate::host::error::RunError;
use crate::host::known::Known;
use crate::machine::pv_backend::PvBackend;
use crate::machine::ring::{self, Ring};
use crate::machine::ring_probe;
use crate::machine::vm::Vm;
use crate::machine::wanted::Wanted;

pub(crate) use trial::{ACCEPT_INTERRUPTS, HYPERCALL, KVM_HC_KICK_CPU, TRIAL_VCPUS, X2APIC_ICR, expect};

/// KVM's first CPUID leaf: the signature. The next one holds the features.
const KVM_SIGNATURE_LEAF: u32 = 0x4000_0000;
const KVM_FEATURES_LEAF: u32 = 0x4000_0001;
/// KVM_FEATURE_PV_UNHALT: a kick ends a HLT even with interrupts off.
const PV_UNHALT: u32 = 1 << 7;
/// KVM_FEATURE_PV_SCHED_YIELD.
const PV_SCHED_YIELD: u32 = 1 << 13;

/// Whether `wanted` leaves it open that vCPUs halt in the kernel.
fn may_halt(wanted: &Wanted) -> bool {
    !wanted.vmm_schedules && wanted.pv_backend != PvBackend::Vmm && wanted.ring != Ring::Ring3
}

/// Refuses settings of halts for vCPUs that do not halt.
pub(crate) fn check(wanted: &Wanted) -> Result<(), RunError> {
    if !may_halt(wanted) && (wanted.halts.poll.is_some() || !wanted.halts.hlt_exits) {
        return Err(RunError::usage(
            "--halt-poll and --hlt-exits are about vCPUs that halt in the kernel: use --sched host, without --pv-backend vmm \
             and --ring 3",
        ));
    }
    if wanted.pv_backend == PvBackend::Kvm && !wanted.halts.hlt_exits {
        return Err(RunError::usage(
            "--hlt-exits off: KVM withdraws its kick hypercall then; use --pv-backend ipi",
        ));
    }
    Ok(())
}

/// Whether such a run may come to a back end of this kind, as far as is known before anything was tried.
pub(crate) fn may_be_chosen(wanted: &Wanted) -> bool {
    may_halt(wanted)
        && !(wanted.ring == Ring::Auto
            && ring_probe::known_ring0_rate().is_some_and(|rate| !ring::is_native(rate)))
}

/// Why `backend`, [`PvBackend::Kvm`] or [`PvBackend::Ipi`], cannot be used here, with exits at HLT or without, if it cannot:
/// tried once in a process, on `vm` if it is fit for that, and with more patience on `another`.
pub(crate) fn probe(
    backend: PvBackend,
    hlt_exits: bool,
    vm: Option<&mut Vm>,
    another: impl Fn() -> Result<Vm, RunError>,
) -> Result<&'static Known<()>, RunError> {
    let verdict = verdict_on(backend, hlt_exits);
    if let Some(verdict) = verdict.get() {
        return Ok(verdict);
    }
    let tried = trial::run_patiently(backend, vm, another)?;
    Ok(verdict.get_or_init(|| tried))
}

fn verdict_on(backend: PvBackend, hlt_exits: bool) -> &'static OnceLock<Known<()>> {
    static VERDICTS: [[OnceLock<Known<()>>; 2]; 2] = [const { [const { OnceLock::new() }; 2] }; 2];
    &VERDICTS[usize::from(backend == PvBackend::Kvm)][usize::from(hlt_exits)]
}

/// Picks the back end for `wanted`, and says why.
pub(crate) fn choose(
    wanted: &Wanted,
    (ring, ring_reason): (Ring, &str),
    mut probe: impl FnMut(PvBackend) -> Result<&'static Known<()>, RunError>,
) -> Result<(PvBackend, String), RunError> {
    let asked = wanted.pv_backend;
    let obstacle = if wanted.vmm_schedules {
        Some(
            "the VMM's scheduler must see every sleep: a vCPU that halts in the kernel would keep its pCPU"
                .to_owned(),
        )
    } else if ring == Ring::Ring3 {
        Some(format!("HLT is for ring 0, and this guest runs in ring 3: {ring_reason}"))
    } else {
        None
    };
    match (asked, obstacle) {
        (PvBackend::Vmm, _) => return Ok((asked, "asked for".into())),
        (PvBackend::Auto, Some(obstacle)) => return Ok((PvBackend::Vmm, obstacle)),
        (PvBackend::Kvm | PvBackend::Ipi, Some(obstacle)) => {
            let text = format!("--pv-backend {}: {obstacle}", asked.name());
            let advice = if wanted.vmm_schedules { "use --sched host" } else { "use --pv-backend vmm" };
            let text = format!("{text}; {advice}");
            // A ring that the user did not choose is the host's doing.
            return Err(if !wanted.vmm_schedules && wanted.ring == Ring::Auto {
                RunError::HostLacks(text)
            } else {
                RunError::usage(text)
            });
        }
        (PvBackend::Auto | PvBackend::Kvm | PvBackend::Ipi, None) => {}
    }
    if asked != PvBackend::Auto {
        return match probe(asked)? {
            Ok(()) => Ok((asked, "asked for".into())),
            Err(reason) => Err(RunError::HostLacks(format!(
                "--pv-backend {}: {reason}; use --pv-backend vmm",
                asked.name()
            ))),
        };
    }
    // A trial takes time: one that would decide nothing is left out.
    let obstacle = if wanted.halts.hlt_exits {
        match probe(PvBackend::Kvm)? {
            Ok(()) => return Ok((PvBackend::Kvm, "a kick by hypercall woke a halted vCPU".into())),
            Err(reason) => &*reason.0,
        }
    } else {
        "kicks by hypercall need exits at HLT"
    };
    Ok(match probe(PvBackend::Ipi)? {
        Ok(()) => (PvBackend::Ipi, format!("{obstacle}; an interrupt woke a halted vCPU")),
        Err(reason) => (PvBackend::Vmm, format!("{obstacle}; {reason}")),
    })
}

/// The flags for a guest whose vCPUs halt.
pub(crate) fn boot_flags(backend: PvBackend, cpuid: &CpuId) -> BootFlags {
    match backend {
        PvBackend::Kvm | PvBackend::Ipi => {
            let kvm = backend == PvBackend::Kvm;
            BootFlags::HALT
                .with_if(kvm, BootFlags::KICK_HYPERCALL)
                .with_if(kvm && features(cpuid) & PV_SCHED_YIELD != 0, BootFlags::YIELD_HYPERCALL)
                .with_if(is_amd(cpuid), BootFlags::VMMCALL)
        }
        PvBackend::Vmm | PvBackend::Auto => BootFlags::NONE,
    }
}

fn leaf(cpuid: &CpuId, function: u32) -> Option<&kvm_bindings::kvm_cpuid_entry2> {
    cpuid.as_slice().iter().find(|entry| entry.function == function)
}

/// KVM's paravirtual features, by its own leaves.
fn features(cpuid: &CpuId) -> u32 {
    const SIGNATURE: [u32; 3] = [0x4b4d_564b, 0x564b_4d56, 0x4d];
    let signed =
        leaf(cpuid, KVM_SIGNATURE_LEAF).is_some_and(|leaf| [leaf.ebx, leaf.ecx, leaf.edx] == SIGNATURE);
    if signed { leaf(cpuid, KVM_FEATURES_LEAF).map_or(0, |leaf| leaf.eax) } else { 0 }
}

/// Whether hypercalls are VMMCALL. KVM rewrites the other vendor's, but a guest should not need that.
pub(crate) fn is_amd(cpuid: &CpuId) -> bool {
    let vendor = leaf(cpuid, 0).map(|leaf| [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat());
    vendor.is_some_and(|vendor| vendor == b"AuthenticAMD" || vendor == b"HygonGenuine")
}
