//! Options of the commands about one lock object: `haltkick check` and `haltkick judge`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use haltkick_vmm::Span;

use crate::settings::Settings;
use crate::show::cases::VerdictFormat;

pub(super) const EXAMPLES: &str = "\
Examples:
  haltkick check --print-header > haltkick.h
      what a lock in C is written to; --print-header=rust is the same for Rust
  haltkick check my_lock.c
      a minute of torture, then a verdict: 0, or 5 or 6 and what was found (docs/lock-objects.md)
  haltkick check my_lock.c --time 10m --seed 7
      longer, and in another order
  haltkick check my_lock.c --engine threads --trust-image
      without /dev/kvm, with the object's code in this process";

/// Options of `haltkick check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The lock, written for the interface haltkick.h: a source (.c, .S, .rs), an object file or a static archive
    #[arg(value_name = "FILE", required_unless_present = "print_header")]
    pub(crate) object: Option<PathBuf>,
    /// Print the header that lock objects are written to, for C or for Rust, and stop
    #[arg(long, value_name = "LANGUAGE", num_args = 0..=1, require_equals = true, default_missing_value = "c",
          conflicts_with = "object")]
    pub(crate) print_header: Option<Language>,
    /// For how long; one trial of every kind is run, however short
    #[arg(long, value_name = "TIME", default_value = "1m")]
    pub(crate) time: Span,
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// How to print the verdict
    #[arg(long, value_name = "FORMAT", default_value = "table", help_heading = "Output")]
    pub(crate) format: VerdictFormat,
    /// Run this guest image instead of the built-in one
    #[arg(long, value_name = "FILE", help_heading = "Machine")]
    pub(crate) guest: Option<PathBuf>,
    /// With --engine threads: run the code of --guest and of lock objects in this process, with all rights of its user
    #[arg(long, help_heading = "Machine")]
    pub(crate) trust_image: bool,
}

/// Languages that there is a header for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Language {
    C,
    Rust,
}

pub(super) const JUDGE_EXAMPLES: &str = "\
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
