//! Records of any kind that make a summary.

use super::recorded::Recorded;
use super::summary::Summary;
use crate::experiment::outline::Outline;
use crate::record::Record;
use crate::record::linux::LinuxRecord;

/// Records that make a summary.
pub(crate) trait Summarized: Recorded {
    /// The figures of an experiment.
    fn summary(outline: &Outline, records: &[Self]) -> Summary;
}

impl Summarized for Record {
    fn summary(outline: &Outline, records: &[Self]) -> Summary {
        Summary::new(outline, records)
    }
}

impl Summarized for LinuxRecord {
    fn summary(outline: &Outline, records: &[Self]) -> Summary {
        Summary::of_kernels(outline, records)
    }
}
