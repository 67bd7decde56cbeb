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
    if std::env::var_os(in_kernel::FRESH_PROCESS).is_some() {
        return in_kernel::run_in_a_fresh_process();
    }
    let mut arguments = Arguments::from_args();
    // A guest takes all pCPUs: tests in parallel would only measure each other.
    arguments.test_threads.get_or_insert(1);
    let mut trials = support::trials(false);
    let lacking = probe().err().map(|reason| reason.to_string());
    // The suite on hardware-style KVM is there for guests: a machine of its that has no KVM has tested nothing.
    if let (Some(reason), true, false) = (&lacking, support::nested(), arguments.list) {
        eprintln!("no guest was tested, in a machine that is there for that: {reason}");
        return ExitCode::FAILURE;
    }
    if let Some(reason) = &lacking {
        eprintln!("guests are skipped, not tested: {reason}");
        trials = trials.into_iter().map(|trial| trial.with_ignored_flag(true)).collect();
    }
    let conclusion = libtest_mimic::run(&arguments, support::chosen(trials));
    support::note("kvm", &conclusion, lacking);
    conclusion.exit_code()
}
