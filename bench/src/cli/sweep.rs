//! `haltkick sweep`: what it varies, and all else that an experiment file would say.

use std::path::PathBuf;

use clap::Args;

use super::Conduct;
use crate::experiment::sweep::Vary;
use crate::settings::Settings;

pub(super) const EXAMPLES: &str = "\
Examples:
  haltkick sweep --vary slice=100us,1ms --vary lock=ticket,qspinlock-wc --compare
      two locks at two lengths of slices, and the ratio of the second lock to the first
  haltkick sweep --vary ratio=1,2,4,8 --vary pv=on,off --compare=off --lock qspinlock --blocks 12
      what the paravirtual form wins, at four ratios
  haltkick sweep --vary 'deschedule=none;holder,rate=100,for=5ms' --lock mcs --save hostile.toml --dry-run
      values that have commas in them; saved as an experiment file, and not run

What is compared: the settings of the lock that vary (those under \"Lock\" above, such as lock and pv). If none of them
does, the last --vary is compared. All other --vary make the grid: every combination of their values is run.";

/// Options of `haltkick sweep`.
#[derive(Args, Debug)]
pub(crate) struct SweepArgs {
    /// Run with each of these values of a setting; may be given several times. A semicolon separates values that have
    /// commas in them
    #[arg(long, value_name = "KEY=VALUE,...", required = true, help_heading = "Sweep")]
    pub(crate) vary: Vec<Vary>,
    /// Report the ratio of each arm to the first one, or to the one that is named
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "",
          help_heading = "Sweep")]
    pub(crate) compare: Option<String>,
    /// Passes over all cells
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), default_value = "10",
          help_heading = "Sweep")]
    pub(crate) blocks: u32,
    /// Write the sweep as an experiment file, too
    #[arg(long, value_name = "FILE", help_heading = "Sweep")]
    pub(crate) save: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) settings: Settings,
    #[command(flatten)]
    pub(crate) conduct: Conduct,
}
