//! Records of an experiment, which are all of one kind: of our own guest, or of Linux.

use super::attempts;
use super::comparable::{self, Better};
use super::recorded::Recorded as _;
use super::summary::Summary;
use crate::experiment::measure::Measure;
use crate::experiment::outline::Outline;
use crate::experiment::place::Place;
use crate::record::Record;
use crate::record::linux::LinuxRecord;
use crate::text::exit::Result;
use crate::text::output::to_json;

/// Records of an experiment.
#[derive(Clone, Debug)]
pub(crate) enum Records {
    Ours(Vec<Record>),
    Linux(Vec<LinuxRecord>),
}

/// Evaluates an expression for records of either kind.
macro_rules! of_either {
    ($records:expr, $each:ident => $value:expr) => {
        match $records {
            $crate::analysis::records::Records::Ours($each) => $value,
            $crate::analysis::records::Records::Linux($each) => $value,
        }
    };
}
pub(crate) use of_either;

impl Records {
    /// No records, of Linux or of our own guest.
    pub(crate) fn none(of_linux: bool) -> Self {
        if of_linux { Self::Linux(vec![]) } else { Self::Ours(vec![]) }
    }

    pub(crate) fn len(&self) -> usize {
        of_either!(self, records => records.len())
    }

    /// Id and place of each run that has a place.
    pub(crate) fn placed(&self) -> Vec<(&str, &Place)> {
        of_either!(self, records => {
            records.iter().filter_map(|record| Some((record.run_id(), record.place()?))).collect()
        })
    }

    /// Whether another attempt at one of these runs may go better.
    pub(crate) fn are_disturbed(&self) -> bool {
        of_either!(self, records => records.iter().any(attempts::is_disturbed))
    }

    /// Number of invalid runs.
    pub(crate) fn invalid(&self) -> usize {
        of_either!(self, records => records.iter().filter(|record| !record.is_trusted()).count())
    }

    /// Records that count, of the blocks before `block`.
    pub(crate) fn last_before(&self, block: u32) -> Self {
        let mut last = self.last();
        let is_before = |place: Option<&Place>| place.is_some_and(|place| place.block < block);
        of_either!(&mut last, records => records.retain(|record| is_before(record.place())));
        last
    }

    /// The records that count: see [`attempts::last`].
    pub(crate) fn last(&self) -> Self {
        match self {
            Self::Ours(records) => Self::Ours(attempts::last(records)),
            Self::Linux(records) => Self::Linux(attempts::last(records)),
        }
    }

    /// Adds records, which are of the same kind.
    pub(crate) fn extend(&mut self, more: Self) {
        match (self, more) {
            (Self::Ours(records), Self::Ours(more)) => records.extend(more),
            (Self::Linux(records), Self::Linux(more)) => records.extend(more),
            _ => unreachable!("an experiment has records of one kind"),
        }
    }

    /// A line of JSON for each.
    pub(crate) fn lines(&self) -> Result<Vec<String>> {
        of_either!(self, records => records.iter().map(to_json).collect())
    }

    /// The figures of an experiment.
    pub(crate) fn summary(&self, outline: &Outline) -> Summary {
        match self {
            Self::Ours(records) => Summary::new(outline, records),
            Self::Linux(records) => Summary::of_kernels(outline, records),
        }
    }

    /// The measures that two directories are compared by.
    pub(crate) fn measures(&self, outline: &Outline) -> Vec<Measure> {
        match self {
            Self::Ours(_) => vec![Measure::Throughput],
            Self::Linux(records) => comparable::figures(outline, records),
        }
    }

    /// The better direction of a measure; `None` where nothing tells it.
    pub(crate) fn better(&self, measure: &Measure) -> Option<Better> {
        match self {
            Self::Ours(_) => Some(Better::More),
            Self::Linux(records) => comparable::better_by_unit(measure, records),
        }
    }
}
