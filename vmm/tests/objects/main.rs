//! Lock objects: what is linked runs on every engine that is here, and what cannot be linked is refused in one line.

mod compile;
mod linked;
mod refused;
mod runs;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Guests take all pCPUs, and the image's addresses are there once in a process.
    arguments.test_threads.get_or_insert(1);
    let lacking = compile::lacking();
    if let Some(reason) = &lacking {
        eprintln!("lock objects are skipped, not tested: {reason}");
    }
    let trials = support::trials(false).into_iter().map(|trial| trial.with_ignored_flag(lacking.is_some()));
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
