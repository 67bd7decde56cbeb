//! What can be shown of the records of any kind of guest.

use super::export::openmetrics;
use super::long::Long;
use super::plot::{self, Data, Picture};
use super::report;
use crate::analysis::recorded::Recorded;
use crate::analysis::summary::Summary;
use crate::experiment::outline::Outline;
use crate::record::Record;
use crate::record::linux::LinuxRecord;
use crate::results::manifest::Manifest;
use crate::text::exit::{Failure, Result};

/// Records that can be shown.
pub(crate) trait Shown: Recorded {
    /// All values of all runs.
    fn long<'a>(outline: &'a Outline, records: &'a [Self]) -> Long<'a>;
    /// Metrics for a dashboard.
    fn openmetrics(summary: &Summary, records: &[Self]) -> Result<String>;
    /// What is drawn of them.
    fn pictures(summary: &Summary, records: &[Self]) -> Vec<Picture>;
    /// The page.
    fn page(manifest: &Manifest, summary: &Summary, records: &[Self]) -> String;
}

impl Shown for Record {
    fn long<'a>(outline: &'a Outline, records: &'a [Self]) -> Long<'a> {
        Long::new(outline, records)
    }

    fn openmetrics(summary: &Summary, records: &[Self]) -> Result<String> {
        Ok(openmetrics::write(summary, records))
    }

    fn pictures(summary: &Summary, records: &[Self]) -> Vec<Picture> {
        plot::pictures(Data::new(summary, records))
    }

    fn page(manifest: &Manifest, summary: &Summary, records: &[Self]) -> String {
        report::page(manifest, summary, records)
    }
}

impl Shown for LinuxRecord {
    fn long<'a>(outline: &'a Outline, records: &'a [Self]) -> Long<'a> {
        Long::of_kernels(outline, records)
    }

    fn openmetrics(_: &Summary, _: &[Self]) -> Result<String> {
        Err(no_openmetrics())
    }

    /// What guests print has no picture of its own.
    fn pictures(_: &Summary, _: &[Self]) -> Vec<Picture> {
        vec![]
    }

    fn page(manifest: &Manifest, summary: &Summary, _: &[Self]) -> String {
        report::page_of_kernels(manifest, summary)
    }
}

/// Why kernels have no metrics.
pub(crate) fn no_openmetrics() -> Failure {
    Failure::usage(
        "--export openmetrics: its metrics are those of our own guest: use json or csv where arms are kernels",
    )
}
