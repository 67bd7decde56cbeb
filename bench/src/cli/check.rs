//! Options of `haltkick check`.

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
