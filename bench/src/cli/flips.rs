//! `haltkick flips`: which comparison, on which machine, and how many machines like it.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use super::Format;
use crate::experiment::flips::Arm;
use crate::settings::Settings;

pub(super) const EXAMPLES: &str = "\
Examples:
  haltkick flips qspinlock-wc,pv=on qspinlock,pv=on --machine skylake-8s --cpus 0-63 --ratio 4 --think 2us
      whether one lock is faster than the other whatever the machine's guesses are
  haltkick flips ticket mcs --machine mine.toml --points 12 --window 5ms --output flips --format json

The machine's figures of grades B to E vary together (B by 15 %, C and D by 30 %, E by half), and so do the choices of its
[model]; docs/simulated-machine.md says more. The ratio is of throughput; with several guests, of all of them together.
The answer is one of three: robust (one arm is faster everywhere), flips (the other arm is faster somewhere), or undetermined
(the seeds of some machine do not tell). All three end with 0.";

/// Options of `haltkick flips`.
#[derive(Args, Debug)]
pub(crate) struct FlipsArgs {
    /// The arm above the line: a lock, and settings of this arm, such as qspinlock-wc,pv=on
    #[arg(value_name = "A")]
    pub(crate) arm: Arm,
    /// The arm below the line
    #[arg(value_name = "B")]
    pub(crate) baseline: Arm,
    /// Machines like the one that is asked for
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=200), default_value = "16",
          help_heading = "Flips")]
    pub(crate) points: u32,
    /// Runs of each arm on each machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(5..=1000), default_value = "5",
          help_heading = "Flips")]
    pub(crate) seeds: u32,
    /// Simulate this many runs at the same time; the answer does not depend on it [default: the host's CPUs]
    #[arg(long, value_name = "N", help_heading = "Flips")]
    pub(crate) jobs: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// Directory for machine files and records, created if need be [default: named by time]
    #[arg(long, short, value_name = "DIR", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table", help_heading = "Output")]
    pub(crate) format: Format,
}
