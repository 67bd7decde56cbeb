//! The table of figures. Whatever a run finds out that is a number is a row of [`rows`]: from it come the record's `figures`, both
//! CSV files, the summary, columns of tables and their legends, JSON Schema, `haltkick list figures`, and what arms and directories are
//! compared by.

mod rows;
mod source;
pub(crate) mod times;

use haltkick_vmm::Known;

use crate::text::quantity::{count, si, significant, time_ns};

pub(crate) use rows::*;
pub(crate) use source::{OfLinux, OfOurs};
pub(crate) use times::median;

/// One figure, or a family of figures.
pub(crate) struct Figure {
    /// Its name everywhere; of a family, with a `*` in the place of its key.
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    /// A sentence about it.
    pub(crate) about: &'static str,
    /// The better direction; none where neither is, or where that depends.
    pub(crate) better: Option<Better>,
    /// The value that stands for the runs of a cell; none: it is in records and `runs.csv` alone.
    pub(crate) center: Option<Center>,
    /// Whether a run without a lock has it only by mistake: nothing is waited for there.
    pub(crate) needs_lock: bool,
    pub(crate) column: Option<Column>,
    ours: Source,
    /// The value in a run of a Linux guest, if those have it.
    pub(crate) linux: Option<fn(&OfLinux<'_>) -> Known<f64>>,
}

/// Origin of a figure of our own guest.
enum Source {
    /// There is none: the figure is one of a Linux guest.
    None,
    One(fn(&OfOurs<'_>) -> Known<f64>),
    /// The members of a family, by their keys.
    Each(fn(&OfOurs<'_>) -> Members),
    /// A member for each of the measured times.
    Times(fn(&times::Times<'_>) -> Known<f64>),
}

/// The members of a family by their keys, or why there are none.
type Members = Known<Vec<(String, Known<f64>)>>;

/// Unit of a figure. Names have it, too, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Count,
    PerSecond,
    Nanoseconds,
    /// A part of a whole, of which 1 is all.
    Share,
    TscCycles,
    Bytes,
    /// vCPUs, out of all that the guest has.
    Vcpus,
    /// Some other quantity: its sentence says which.
    Number,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    More,
    Less,
}

/// The value that stands for the runs of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Center {
    /// The estimate of Hodges and Lehmann, with its interval.
    HodgesLehmann,
    Median,
    /// The largest of all runs.
    Most,
}

/// The column of a figure in tables of arms. The order of columns is that of the rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) heading: &'static str,
    /// Meaning in at most twelve words; empty where the heading says it.
    pub(crate) legend: &'static str,
    pub(crate) shown: Shown,
    /// Text where there is no value.
    pub(crate) none: &'static str,
    pub(crate) has_interval: bool,
    /// When a narrow terminal leaves out the interval, and the column: the least first; none: never.
    pub(crate) gives_way: (Option<u8>, Option<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Always,
    /// In experiments that count what fits into a window of time.
    OfWindows,
    /// In experiments that time a fixed amount of work.
    OfWork,
    /// In tables of which an arm has it above 0.
    IfAny,
    /// In the report alone.
    InReport,
}

impl Unit {
    /// The word in records and CSV files.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::PerSecond => "1/s",
            Self::Nanoseconds => "ns",
            Self::Share => "share",
            Self::TscCycles => "TSC cycles",
            Self::Bytes => "bytes",
            Self::Vcpus => "vCPUs",
            Self::Number => "1",
        }
    }

    /// A value as people read it.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::PerSecond => format!("{}/s", si(value)),
            Self::Nanoseconds => time_ns(value),
            // A median of counts may be a half.
            Self::Count | Self::Bytes | Self::Vcpus if value.fract() == 0.0 => count(value as u64),
            Self::Count | Self::Bytes | Self::Vcpus if value < 1000.0 => format!("{value:.1}"),
            Self::Count | Self::Bytes | Self::Vcpus => si(value),
            Self::Share | Self::TscCycles | Self::Number => significant(value),
        }
    }
}

impl Figure {
    const fn new(name: &'static str, unit: Unit, about: &'static str, ours: Source) -> Self {
        let (better, center, needs_lock, column, linux) = (None, None, false, None, None);
        Self { name, unit, about, better, center, needs_lock, column, ours, linux }
    }

    const fn of_linux(mut self, value: fn(&OfLinux<'_>) -> Known<f64>) -> Self {
        self.linux = Some(value);
        self
    }

    const fn better(mut self, better: Better) -> Self {
        self.better = Some(better);
        self
    }

    const fn center(mut self, center: Center) -> Self {
        self.center = Some(center);
        self
    }

    const fn estimated(self, better: Better) -> Self {
        self.better(better).center(Center::HodgesLehmann)
    }

    const fn needs_lock(mut self) -> Self {
        self.needs_lock = true;
        self
    }

    const fn column(mut self, heading: &'static str, shown: Shown, legend: &'static str) -> Self {
        let (none, has_interval, gives_way) = ("-", false, (None, None));
        self.column = Some(Column { heading, legend, shown, none, has_interval, gives_way });
        self
    }

    /// A column under its name.
    pub(crate) fn plain_column(&self) -> Column {
        let (heading, legend, shown) = (self.name, "", Shown::InReport);
        Column { heading, legend, shown, none: "-", has_interval: true, gives_way: (None, None) }
    }

    /// Its column has the interval, too.
    const fn with_interval(mut self) -> Self {
        if let Some(it) = &mut self.column {
            it.has_interval = true;
        }
        self
    }

    /// When a narrow terminal leaves out its interval, if it has one, and its column.
    const fn gives_way(mut self, interval: Option<u8>, column: Option<u8>) -> Self {
        if let Some(it) = &mut self.column {
            it.has_interval = interval.is_some();
            it.gives_way = (interval, column);
        }
        self
    }

    const fn or(mut self, none: &'static str) -> Self {
        if let Some(it) = &mut self.column {
            it.none = none;
        }
        self
    }

    /// Name and value of each figure of a run of our own guest, or why there are none.
    pub(crate) fn of_ours(&self, of: &OfOurs<'_>) -> Members {
        let named = |(key, value): (String, _)| (self.name.replace('*', &key), value);
        match self.ours {
            Source::None => Ok(vec![]),
            Source::One(value) => Ok(vec![(self.name.into(), value(of))]),
            Source::Each(values) => Ok(values(of)?.into_iter().map(named).collect()),
            Source::Times(value) => {
                Ok(of.times.iter().map(|times| named((times.name.into(), value(times)))).collect())
            }
        }
    }

    /// Whether our own guests have no such figure.
    pub(crate) fn is_of_linux_alone(&self) -> bool {
        self.linux.is_some() && matches!(self.ours, Source::None)
    }

    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        let exact = FIGURES.iter().find(|row| row.name == name);
        // The key of a member stands in the place of the star, and is not empty.
        let is_of_family = |row: &&Self| {
            let parts = row.name.split_once('*').filter(|_| name.len() >= row.name.len());
            parts.is_some_and(|(before, behind)| name.starts_with(before) && name.ends_with(behind))
        };
        // The longer of two families' names says more.
        exact.or_else(|| FIGURES.iter().filter(is_of_family).max_by_key(|row| row.name.len()))
    }
}

/// A name that is longer is none.
const LONGEST_NAME: usize = 64;

/// Whether `name` may be that of a figure that a guest prints.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_allowed) {
        return Ok(());
    }
    Err(format!("a name that is not 1 to {LONGEST_NAME} characters of a-z, 0-9, _ and -"))
}
