//! The command as its users meet it: what it refuses, runs, writes and survives. One file per concept.
//!
//! A test that needs what not every host has (`/dev/kvm`, QEMU, a browser) is reported as ignored where that is missing, with
//! the reason: a skip is never a pass.

mod browser;
mod calls;
mod experiments;
mod exports;
mod files;
mod full_disk;
mod help;
mod inside;
mod interrupted;
mod kernels;
mod many;
mod meetings;
mod merged;
mod objects;
mod perfetto;
mod planted;
mod predict;
mod qemu;
mod quotas;
mod refused;
mod release;
mod report;
mod results;
mod robust;
mod runs;
mod schedules;
mod schemas;
mod simulated;
mod support;
mod sweeps;
mod tiny;
mod top;
mod trace;
mod walls;
mod worst;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let trials = [
        browser::trials,
        experiments::trials,
        exports::trials,
        files::trials,
        full_disk::trials,
        help::trials,
        inside::trials,
        interrupted::trials,
        kernels::trials,
        many::trials,
        meetings::trials,
        merged::trials,
        objects::trials,
        planted::trials,
        predict::trials,
        qemu::trials,
        quotas::trials,
        refused::trials,
        release::trials,
        report::trials,
        results::trials,
        robust::trials,
        runs::trials,
        schedules::trials,
        schemas::trials,
        simulated::trials,
        sweeps::trials,
        top::trials,
        trace::trials,
        walls::trials,
        worst::trials,
        calls::trials,
    ];
    let trials = trials.into_iter().flat_map(|trials| trials()).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
