//! Abilities of this host, measured on guests that are made for it.

pub(crate) mod costs;
pub(crate) mod round_trip;

use crate::host::error::{Known, RunError};
use crate::image::file::Image;
use crate::machine::vm::{Vm, open_kvm, tsc_khz};
use crate::machine::{self, PvBackend, Ring, in_kernel, ring_probe};

/// Abilities of this host's KVM, for `doctor`.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Instructions a second in ring 0, from a loop of two.
    pub ring0_instructions_per_second: f64,
    /// Instructions per second in ring 3.
    pub ring3_instructions_per_second: f64,
    /// Whether ring 0 runs natively.
    pub ring0_native: bool,
    /// Most vCPUs that a guest can have.
    pub max_vcpus: usize,
    /// vCPUs that KVM recommends at most.
    pub recommended_vcpus: usize,
    /// TSC frequency of a guest.
    pub tsc_khz: u64,
    /// Why vCPUs cannot sleep by HLT and be woken by KVM_HC_KICK_CPU in ring 0, if they cannot.
    pub kick_by_hypercall: Known<()>,
    /// Why they cannot sleep by HLT and be woken by an interrupt, if they cannot.
    pub kick_by_interrupt: Known<()>,
}

/// Makes a small guest and measures it.
///
/// # Errors
/// [`RunError::HostLacks`] when there is no usable `/dev/kvm`; what else can go wrong in making a guest.
pub fn probe() -> Result<Probe, RunError> {
    let kvm = open_kvm()?;
    let image = Image::embedded();
    let mut vm = Vm::small(&image, 1, false)?;
    let ring0 = ring_probe::precise_instructions_per_second(&mut vm, Ring::Ring0)?;
    let ring3 = ring_probe::precise_instructions_per_second(&mut vm, Ring::Ring3)?;
    let works = |backend| {
        in_kernel::probe(backend, true, None, || Vm::small(&image, in_kernel::TRIAL_VCPUS, true)).cloned()
    };
    // The first one stays.
    _ = ring_probe::RING0_RATE.set(ring0);
    Ok(Probe {
        ring0_instructions_per_second: ring0,
        ring3_instructions_per_second: ring3,
        ring0_native: machine::is_native(ring0),
        max_vcpus: kvm.get_max_vcpus(),
        recommended_vcpus: kvm.get_nr_vcpus(),
        tsc_khz: tsc_khz(&vm.vcpus[0].fd)?,
        kick_by_hypercall: works(PvBackend::Kvm)?,
        kick_by_interrupt: works(PvBackend::Ipi)?,
    })
}
