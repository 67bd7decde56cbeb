//! What can be shown of the records of any kind of guest.

use super::export::exported::Exported;
use super::plot::{self, Data, Picture};
use super::report;
use crate::analysis::summary::Summary;
use crate::record::Record;
use crate::record::linux::LinuxRecord;
use crate::results::manifest::Manifest;

/// Records that can be shown.
pub(crate) trait Shown: Exported {
    /// What is drawn of them.
    fn pictures(summary: &Summary, records: &[Self]) -> Vec<Picture>;
    /// The page.
    fn page(manifest: &Manifest, summary: &Summary, records: &[Self]) -> String;
}

impl Shown for Record {
    fn pictures(summary: &Summary, records: &[Self]) -> Vec<Picture> {
        plot::pictures(Data::new(summary, records))
    }

    fn page(manifest: &Manifest, summary: &Summary, records: &[Self]) -> String {
        report::page(manifest, summary, records)
    }
}

impl Shown for LinuxRecord {
    /// What guests print has no picture of its own.
    fn pictures(_: &Summary, _: &[Self]) -> Vec<Picture> {
        vec![]
    }

    fn page(manifest: &Manifest, summary: &Summary, _: &[Self]) -> String {
        report::page_of_kernels(manifest, summary)
    }
}
