//! What can be written down of the records of any kind of guest.

use super::openmetrics;
use crate::analysis::summarized::Summarized;
use crate::analysis::summary::Summary;
use crate::experiment::outline::Outline;
use crate::record::Record;
use crate::record::linux::LinuxRecord;
use crate::show::long::Long;
use crate::text::exit::{Failure, Result};

/// Records that can be exported.
pub(crate) trait Exported: Summarized {
    /// All values of all runs.
    fn long<'a>(outline: &'a Outline, records: &'a [Self]) -> Long<'a>;
    /// Metrics for a dashboard.
    fn openmetrics(summary: &Summary, records: &[Self]) -> Result<String>;
}

impl Exported for Record {
    fn long<'a>(outline: &'a Outline, records: &'a [Self]) -> Long<'a> {
        Long::new(outline, records)
    }

    fn openmetrics(summary: &Summary, records: &[Self]) -> Result<String> {
        Ok(openmetrics::write(summary, records))
    }
}

impl Exported for LinuxRecord {
    fn long<'a>(outline: &'a Outline, records: &'a [Self]) -> Long<'a> {
        Long::of_kernels(outline, records)
    }

    fn openmetrics(_: &Summary, _: &[Self]) -> Result<String> {
        Err(no_openmetrics())
    }
}

/// Why kernels have no metrics.
pub(crate) fn no_openmetrics() -> Failure {
    Failure::usage(
        "--export openmetrics: its metrics are those of our own guest: use json or csv where arms are kernels",
    )
}
