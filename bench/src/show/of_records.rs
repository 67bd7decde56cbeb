//! Everything that can be shown of the records of an experiment.

use super::long::Long;
use super::plot::{self, Data, Picture};
use super::report;
use crate::analysis::records::Records;
use crate::analysis::summary::Summary;
use crate::experiment::outline::Outline;
use crate::results::manifest::Manifest;

/// All values of all runs.
pub(crate) fn long<'a>(outline: &'a Outline, records: &'a Records) -> Long<'a> {
    match records {
        Records::Ours(records) => Long::new(outline, records),
        Records::Linux(records) => Long::of_kernels(outline, records),
    }
}

/// The pictures. Figures that guests print have none.
pub(crate) fn pictures(summary: &Summary, records: &Records) -> Vec<Picture> {
    match records {
        Records::Ours(records) => plot::pictures(Data::new(summary, records)),
        Records::Linux(_) => vec![],
    }
}

/// The page.
pub(crate) fn page(manifest: &Manifest, summary: &Summary, records: &Records) -> String {
    match records {
        Records::Ours(records) => report::page(manifest, summary, records),
        Records::Linux(_) => report::page_of_kernels(manifest, summary),
    }
}
