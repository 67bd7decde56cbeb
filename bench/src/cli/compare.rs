//! Options of `haltkick compare`.

use clap::{Args, ValueEnum};

use crate::experiment::measure::Measure;
use crate::text::share;

pub(super) const EXAMPLES: &str = "\
Examples:
  haltkick compare before after --threshold 3%
      all cells of two directories; ends with 8 if an arm surely lost more than 3 %
  haltkick compare 'results:qspinlock pv off' 'results:qspinlock pv on'
      two arms of one directory, as ratios within its blocks";

/// Options of `haltkick compare`.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// The baseline: a directory, or DIR:ARM
    #[arg(value_name = "A")]
    pub(crate) baseline: String,
    /// The candidate: a directory, or DIR:ARM
    #[arg(value_name = "B")]
    pub(crate) candidate: String,
    /// Compare by this, not by what the experiment does: `throughput`, `lock-cpu`, or a figure of `haltkick list figures`; several
    /// times for several
    #[arg(long, value_name = "FIGURE", value_parser = |word: &str| Measure::try_from(word.to_owned()))]
    pub(crate) of: Vec<Measure>,
    /// A slow-down that is surely beyond this is a regression: at 2.5 % for all cells together, by Holm's correction
    #[arg(long, value_name = "PERCENT", value_parser = share::part, default_value = "5%")]
    pub(crate) threshold: f64,
    /// Compare, with a warning, what was measured with other settings or on another host
    #[arg(long)]
    pub(crate) anyway: bool,
    /// How to print the comparison
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(crate) format: ComparisonFormat,
}

/// How to print a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ComparisonFormat {
    /// For people
    Table,
    /// For programs
    Json,
    /// A line for each cell, as kernels' test runners read them: a regression is a failure
    Ktap,
    /// XML, as most CI systems read it
    Junit,
}
