//! Real guests on /dev/kvm. Tests assert what must hold however noisy the host is; speed is for `just bench-*`.

#[path = "../base/mod.rs"]
mod base;
mod explain;
mod faults;
mod grants;
mod hints;
mod hostile;
mod in_kernel;
mod instrument;
mod locks;
mod points;
#[path = "../ran_on/mod.rs"]
mod ran_on;
mod running;
mod several_guests;
mod support;
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
    let mut trials: Vec<_> = [
        running::trials,
        explain::trials,
        locks::trials,
        points::trials,
        hostile::trials,
        hints::trials,
        switches::trials,
        several_guests::trials,
        faults::trials,
        grants::trials,
        in_kernel::trials,
        instrument::trials,
        workloads::trials,
    ]
    .into_iter()
    .flat_map(|trials| trials())
    .collect();
    let lacking = probe().err().map(|reason| reason.to_string());
    // The suite on hardware-style KVM is there for guests: a machine of its that has no KVM has tested nothing.
    if let (Some(reason), true) = (&lacking, support::nested()) {
        eprintln!("no guest was tested, in a machine that is there for that: {reason}");
        return ExitCode::FAILURE;
    }
    if let Some(reason) = &lacking {
        eprintln!("guests are skipped, not tested: {reason}");
        trials = trials.into_iter().map(|trial| trial.with_ignored_flag(true)).collect();
    }
    if let Some(shard) = std::env::var_os("HALTKICK_SHARD") {
        let (shard, shards) =
            parse_shard(&shard.to_string_lossy()).expect("HALTKICK_SHARD is N/OF, as in 1/8");
        let mut index = 0..;
        trials.retain(|_| index.next().is_some_and(|index: usize| index % shards == shard - 1));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    ran_on::note("kvm", &conclusion, lacking);
    conclusion.exit_code()
}

/// `2/8`: every eighth test from the second on, so that a suite can go through several short-lived machines.
fn parse_shard(text: &str) -> Option<(usize, usize)> {
    let (shard, shards) = text.split_once('/')?;
    let (shard, shards) = (shard.parse().ok()?, shards.parse().ok()?);
    (1..=shards).contains(&shard).then_some((shard, shards))
}
