//! Real guests on /dev/kvm. Tests assert what must hold however noisy the host is; speed is for `just bench-*`.

mod descheduling;
mod explain;
mod in_kernel;
mod instrument;
mod locks;
mod memory;
mod running;
mod several_guests;
mod switches;
mod workloads;

use std::process::ExitCode;

use haltkick_vmm::probe;
use libtest_mimic::Arguments;

fn main() -> ExitCode {
    if let Ok(ring) = std::env::var(in_kernel::FRESH_PROCESS) {
        in_kernel::tell_backend(&ring);
        return ExitCode::SUCCESS;
    }
    let lacking = probe().err().map(|reason| reason.to_string());
    // The suite on hardware-style KVM is there for guests: a machine of its that has no KVM has tested nothing.
    if let (Some(reason), true, false) = (&lacking, support::nested(), Arguments::from_args().list) {
        eprintln!("no guest was tested, in a machine that is there for that: {reason}");
        return ExitCode::FAILURE;
    }
    let trials = support::chosen(support::trials(false));
    support::conclude(trials, "guests", "kvm", lacking.as_deref()).exit_code()
}
