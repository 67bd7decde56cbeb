//! What can be shown of the records of any kind of guest.

use super::long::Long;
use super::plot::{self, Data, Picture};
use super::report;
use crate::analysis::summarized::Summarized;
use crate::analysis::summary::Summary;
use crate::experiment::outline::Outline;
use crate::record::Record;
use crate::record::linux::LinuxRecord;
use crate::results::manifest::Manifest;

/// Records that can be shown.
pub(crate) trait Shown: Summarized {
    /// All values of all runs.
    fn long<'a>(outline: &'a Outline, records: &'a [Self]) -> Long<'a>;
    /// What is drawn of them.
    fn pictures(summary: &Summary, records: &[Self]) -> Vec<Picture>;
    /// The page.
    fn page(manifest: &Manifest, summary: &Summary, records: &[Self]) -> String;
}

impl Shown for Record {
    fn long<'a>(outline: &'a Outline, records: &'a [Self]) -> Long<'a> {
        Long::new(outline, records)
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

    /// What guests print has no picture of its own.
    fn pictures(_: &Summary, _: &[Self]) -> Vec<Picture> {
        vec![]
    }

    fn page(manifest: &Manifest, summary: &Summary, _: &[Self]) -> String {
        report::page_of_kernels(manifest, summary)
    }
}
