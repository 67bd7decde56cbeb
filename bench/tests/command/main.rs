//! The command as its users meet it: what it refuses, runs, writes and survives. One file per concept.
//!
//! A test that needs what not every host has (`/dev/kvm`, QEMU, a browser) is reported as ignored where that is missing, with
//! the reason: a skip is never a pass.

mod files;
mod help;
mod kernels;
mod linux;
mod many;
mod objects;
mod planted;
mod refused;
mod results;
mod runs;
mod simulated;
mod support;
mod sweeps;
mod top;
mod trace;
mod walls;
mod worst;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    libtest_mimic::run(&arguments, ::support::chosen(::support::trials(true))).exit_code()
}
