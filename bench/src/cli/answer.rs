//! Options of `haltkick answer`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use haltkick_vmm::Span;

use super::Patience;
use crate::settings::Settings;

pub(super) const EXAMPLES: &str = "\
Examples:
  haltkick answer pv --ratio 2 --hold 500ns --think 5us
      what paravirtual spinlocks gain where two vCPUs share a pCPU, sections take 500 ns and come every 5 us
  haltkick answer pv --ratio 2 --engine sim --machine skylake-8s --cpus 0-7 --for 2m
      the same on a simulated machine, which needs no /dev/kvm, in two minutes
  haltkick answer pv --guests 2 --ratio 1 --engine sim --machine icelake-2s --cpus 0-15 --host linux-7.3
      two guests under a model of Linux' scheduler, where waiters that spin exit

The answer names what it assumes: the ring, exits of waiters that spin (pause-loop exits), the scheduler and its slices, the
machine. It tries the exits on and off, and the slices of another scheduler, and says whether either turns the answer round.
Of a simulated machine it says whether the answer depends on guesses: it tries four machines like it last, if there is time.
Simulated guests run in ring 0, as kernels do; --ring 3 says otherwise. Where other processes spoil the runs, it says which,
and asks a simulated machine like this host instead (exit code 7); --anyway goes on. Ctrl-C ends it with the answer so far
(exit code 130).";

/// Options of `haltkick answer`.
#[derive(Args, Debug)]
pub(crate) struct AnswerArgs {
    /// Question to be answered by an experiment
    #[arg(value_name = "QUESTION")]
    pub(crate) question: Question,
    /// Answer within this time, by the runs that were made until then
    #[arg(long = "for", value_name = "TIME", default_value = "5m")]
    pub(crate) budget: Span,
    /// Fewer runs: a first impression
    #[arg(long)]
    pub(crate) quick: bool,
    /// Passes over all cells
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) blocks: Option<u32>,
    #[command(flatten)]
    pub(crate) patience: Patience,
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
