//! What can be written down of the records of any kind of guest.

use crate::analysis::summarized::Summarized;
use crate::experiment::outline::Outline;
use crate::record::Record;
use crate::record::linux::LinuxRecord;
use crate::show::long::Long;

/// Records that can be exported.
pub(crate) trait Exported: Summarized {
    /// All values of all runs.
    fn long<'a>(outline: &'a Outline, records: &'a [Self]) -> Long<'a>;
}

impl Exported for Record {
    fn long<'a>(outline: &'a Outline, records: &'a [Self]) -> Long<'a> {
        Long::new(outline, records)
    }
}

impl Exported for LinuxRecord {
    fn long<'a>(outline: &'a Outline, records: &'a [Self]) -> Long<'a> {
        Long::of_kernels(outline, records)
    }
}
