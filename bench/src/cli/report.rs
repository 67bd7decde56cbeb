//! `haltkick report` and `haltkick merge`: from records that are there to what is made of them.

use std::path::PathBuf;

use clap::Args;

use super::Format;
use crate::show::export::Export;

/// Options of `haltkick report`.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// A directory that `haltkick bench` or `haltkick merge` made
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Show the report in the browser afterwards (with xdg-open)
    #[arg(long)]
    pub(crate) open: bool,
    #[command(flatten)]
    pub(crate) show: ShowArgs,
}

/// How results are shown, and what counts as a success.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// End with 7 if any run is invalid, also after --quick, not only where the headline comparison is not valid
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print all that stands below the table, not only six lines
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Also write the results as markdown or csv, into the directory or into FILE
    /// (- is standard output); may be given several times
    #[arg(long, value_name = "FORMAT[=FILE]")]
    pub(crate) export: Vec<Export>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(crate) format: Format,
}

pub(super) const MERGE_EXAMPLES: &str = "\
Example:
  parallel -j2 'haltkick bench overcommit --cpus {1} --output part{#}' ::: 0 1
  haltkick merge part1 part2 --output both
      one experiment, run on two CPUs at the same time";

/// Options of `haltkick merge`.
#[derive(Args, Debug)]
pub(crate) struct MergeArgs {
    /// Directories of the same experiment
    #[arg(value_name = "DIR", required = true)]
    pub(crate) directories: Vec<PathBuf>,
    /// Merge, with a warning, what was measured with other settings, and other values of those that vary
    #[arg(long)]
    pub(crate) anyway: bool,
    /// Directory for all of their records, created if need be
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) show: ShowArgs,
}
