//! Options of `haltkick answer`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::settings::Settings;

pub(super) const EXAMPLES: &str = "\
Examples:
  haltkick answer pv --ratio 2 --hold 500ns --think 5us
      what paravirtual spinlocks gain where two vCPUs share a pCPU, sections take 500 ns and come every 5 us
  haltkick answer pv --ratio 2 --engine sim --machine skylake-8s --cpus 0-7 --window 10ms --warmup 5ms
      the same on a simulated machine, which needs no /dev/kvm";

/// Options of `haltkick answer`.
#[derive(Args, Debug)]
pub(crate) struct AnswerArgs {
    /// Question to be answered by an experiment
    #[arg(value_name = "QUESTION")]
    pub(crate) question: Question,
    /// Fewer runs: a first impression
    #[arg(long)]
    pub(crate) quick: bool,
    /// Passes over all cells
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) blocks: Option<u32>,
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// Directory for the results, created if need be [default: named by time]
    #[arg(long, short, value_name = "DIR", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
}

/// Questions that there is an experiment for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Question {
    /// Gain by paravirtual spinlocks over the lock of a guest without them
    Pv,
}
