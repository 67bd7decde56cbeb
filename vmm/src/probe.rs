//! What this host's KVM can do, measured: for `doctor`.

use crate::boot;
use crate::config::Ring;
use crate::error::{RunError, system};
use crate::image::Image;
use crate::machine::{ProbeMachine, open_kvm};
use crate::ring;

/// What this host's KVM can do.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Instructions a second in ring 0, from a loop of two.
    pub ring0_instructions_per_second: f64,
    /// The same in ring 3.
    pub ring3_instructions_per_second: f64,
    /// Whether ring 0 runs natively.
    pub ring0_native: bool,
    /// Most vCPUs that a guest can have.
    pub max_vcpus: usize,
    /// vCPUs that KVM recommends at most.
    pub recommended_vcpus: usize,
    /// TSC frequency of a guest.
    pub tsc_khz: u64,
}

/// Makes a small guest and measures it.
///
/// # Errors
/// [`RunError::HostLacks`] when there is no usable `/dev/kvm`; what else can go wrong in making a guest.
pub fn probe() -> Result<Probe, RunError> {
    let kvm = open_kvm()?;
    let image = Image::embedded();
    let mut machine = ProbeMachine::new(&image)?;
    let mut rate = |ring: Ring| {
        let mut sregs = machine.vcpu.fd.get_sregs().map_err(system("read the reset state"))?;
        boot::set_system_registers(&mut sregs, ring, 0, machine.memory.area_address(0));
        machine.vcpu.fd.set_sregs(&sregs).map_err(system("set system registers"))?;
        ring::precise_instructions_per_second(&machine.memory, &mut machine.vcpu)
    };
    let (ring0, ring3) = (rate(Ring::Ring0)?, rate(Ring::Ring3)?);
    Ok(Probe {
        ring0_instructions_per_second: ring0,
        ring3_instructions_per_second: ring3,
        ring0_native: ring::is_native(ring0),
        max_vcpus: kvm.get_max_vcpus(),
        recommended_vcpus: kvm.get_nr_vcpus(),
        tsc_khz: machine.tsc_khz,
    })
}
