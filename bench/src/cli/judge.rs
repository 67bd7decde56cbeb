//! Options of `haltkick judge`.

use std::path::PathBuf;

use clap::Args;

use haltkick_vmm::Span;

pub(super) const EXAMPLES: &str = "\
Examples:
  haltkick judge my_lock.c
      check it, measure it next to qspinlock, simulate both, and say where losing the CPU costs most
  haltkick judge my_lock.c --quick --output judged
      the same with fewer runs, into a directory of this name

Each part is a command of its own, which is printed before it runs: check, bench judge twice, and worst. The exit code is that of
the check if it found a fault; otherwise it is that of the first part that failed, or 0.";

/// Options of `haltkick judge`.
#[derive(Args, Debug)]
pub(crate) struct JudgeArgs {
    /// The lock, written for the interface haltkick.h: a source (.c, .S, .rs), an object file or a static archive
    #[arg(value_name = "FILE")]
    pub(crate) object: PathBuf,
    /// Fewer runs: a first impression
    #[arg(long)]
    pub(crate) quick: bool,
    /// For how long the lock is checked, and how long each of its forms is tried with `haltkick worst`
    #[arg(long, value_name = "TIME", default_value = "1m")]
    pub(crate) time: Span,
    /// The machine that is simulated, of which eight CPUs are used
    #[arg(long, value_name = "NAME", default_value = "skylake-8s")]
    pub(crate) machine: String,
    /// Measure only on a simulated machine, as on a host without /dev/kvm
    #[arg(long)]
    pub(crate) simulated: bool,
    /// Directory for everything, created if need be [default: named by time]
    #[arg(long, short, value_name = "DIR", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
}
