//! Options of `haltkick check`.

use std::path::PathBuf;

use clap::Args;

use crate::settings::Settings;
use crate::text::duration::Span;

pub(super) const EXAMPLES: &str = "\
Examples:
  haltkick check my_lock.o
      a minute of torture, then a verdict: 0, or 5 or 6 and what was found (docs/lock-objects.md)
  haltkick check my_lock.o --time 10m --seed 7
      longer, and in another order
  haltkick check my_lock.o --engine threads --trust-image
      without /dev/kvm, with the object's code in this process";

/// Options of `haltkick check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The object file, which is written to include/haltkick.h
    #[arg(value_name = "FILE")]
    pub(crate) object: PathBuf,
    /// For how long; every kind of trial is run once, however short
    #[arg(long, value_name = "TIME", default_value = "1m")]
    pub(crate) time: Span,
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// Run this guest image instead of the built-in one
    #[arg(long, value_name = "FILE", help_heading = "Machine")]
    pub(crate) guest: Option<PathBuf>,
    /// With --engine threads: run the code of --guest and of lock objects in this process, with all rights of its user
    #[arg(long, help_heading = "Machine")]
    pub(crate) trust_image: bool,
}
