//! How an experiment is to be conducted, whether it comes from a file or from `--vary`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use haltkick_vmm::Span;

use super::{Format, ImageArgs};
use crate::experiment::MOST_RETRIES;
use crate::measure::session::ENDS_SOON;
use crate::show::export::Export;
use crate::text::share;

/// A share of time in locks, and the arm that is to spend it: `lock-share=23%:ticket`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoadTo {
    pub(crate) share: f64,
    pub(crate) arm: String,
}

impl FromStr for LoadTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let load = text.strip_prefix("lock-share=").and_then(|rest| rest.split_once(':'));
        let (share, arm) = load
            .filter(|(_, arm)| !arm.is_empty())
            .ok_or("write lock-share=PERCENT:ARM, such as lock-share=23%:ticket")?;
        Ok(Self { share: share::part(share)?, arm: arm.into() })
    }
}

/// Options for a host on which other processes run.
#[derive(Args, Debug)]
pub(crate) struct Patience {
    /// Before the first run, wait up to TIME until other processes leave the pCPUs alone
    #[arg(long, value_name = "TIME", alias = "wait-quiet", help_heading = "Trust")]
    pub(crate) wait_for_quiet: Option<Span>,
    /// Go on where other processes have spoilt nearly all runs of two blocks
    #[arg(long, help_heading = "Trust")]
    pub(crate) anyway: bool,
}

impl Patience {
    /// The time for the rest of an experiment from which on two spoilt blocks end it.
    pub(crate) fn ends_in_vain(&self) -> Option<Duration> {
        (!self.anyway).then_some(ENDS_SOON)
    }
}

/// Options that `haltkick bench` and `haltkick sweep` have in common.
#[derive(Args, Debug)]
pub(crate) struct Conduct {
    /// Add blocks where needed until the 95 % interval of every comparison is this narrow, such as 2%
    #[arg(long, value_name = "PERCENT", value_parser = share::percent, help_heading = "When to stop")]
    pub(crate) target_precision: Option<f64>,
    /// Begin no block that would end later than this
    #[arg(long, value_name = "TIME", help_heading = "When to stop")]
    pub(crate) max_time: Option<Span>,
    /// Simulate this many cells at the same time; the records do not depend on it [default: the host's CPUs]
    #[arg(long, value_name = "N", help_heading = "With --set engine=sim")]
    pub(crate) jobs: Option<std::num::NonZeroUsize>,
    /// Solve for the think time at which an arm spends this share of its time in its lock, by a few simulated runs, and run all
    /// arms at that: lock-share=23%:ticket
    #[arg(long, value_name = "lock-share=PERCENT:ARM", help_heading = "With --set engine=sim")]
    pub(crate) load_to: Option<LoadTo>,
    /// When something else on the host disturbs a run, repeat that run at most N times, as long as --max-time allows it
    /// [default: as the file says; 2 in built-in experiments and sweeps]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(MOST_RETRIES)),
          help_heading = "Trust")]
    pub(crate) retry_disturbed: Option<u32>,
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// End with 7 if any run is invalid, also after --quick, not only where the headline comparison is not valid
    #[arg(long, help_heading = "Trust")]
    pub(crate) strict: bool,
    /// Directory for the results, created if need be [default: named by experiment and time]
    #[arg(long, short, value_name = "DIR", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// Output at the end
    #[arg(long, value_name = "FORMAT", default_value = "table", help_heading = "Output")]
    pub(crate) format: Format,
    /// Print all that stands below the table, not only six lines
    #[arg(long, help_heading = "Output")]
    pub(crate) verbose: bool,
    /// Also write the results as markdown or csv, into the directory or into FILE
    /// (- is standard output); may be given several times
    #[arg(long, value_name = "FORMAT[=FILE]", help_heading = "Output")]
    pub(crate) export: Vec<Export>,
    /// Print the cells and about how long they take, and stop
    #[arg(long, help_heading = "Parts")]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) image: ImageArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_a_share_and_an_arm() {
        let load: LoadTo = "lock-share=23%:PV ticket".parse().unwrap();
        assert_eq!(load, LoadTo { share: 0.23, arm: "PV ticket".into() });
        for wrong in [
            "23%:ticket",
            "lock-share=23%",
            "lock-share=23%:",
            "lock-share=23:ticket",
            "lock-share=100%:ticket",
        ] {
            assert!(wrong.parse::<LoadTo>().is_err(), "{wrong}");
        }
    }
}
