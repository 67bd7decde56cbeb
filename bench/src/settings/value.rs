//! Values of settings, handed out by kind. One of them is a list of guests, each with settings of its own: so they stand here
//! together.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use haltkick_vmm::{Numa, Span};

use super::choices::{
    Arrivals, DescheduleChoice, Exponent, FoldChoice, NumaChoice, Percent, QuotaChoice, Ratio, SWITCH,
    SpinThreshold, Words,
};
use super::pause_loops::PauseLoops;
use crate::host::cpu_choice::CpuChoice;
use crate::text::quantity::MemorySize;

/// The value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A name, or one of a few words.
    Text(String),
    Number(u64),
    Time(Span),
    Memory(MemorySize),
    Cpus(CpuChoice),
    Numa(NumaChoice),
    Share(Percent),
    Exponent(Exponent),
    Ratio(Ratio),
    Arrivals(Arrivals),
    SpinThreshold(SpinThreshold),
    PauseLoops(PauseLoops),
    Quota(QuotaChoice),
    Fold(FoldChoice),
    Deschedule(DescheduleChoice),
    Guests(Vec<Vm>),
    /// One with what stands behind it: settings by name, with their values.
    With(Box<Value>, Vec<(&'static str, Value)>),
}

/// Settings of one cell, as far as they are given: by flags, in an experiment file, with `--set`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    /// By the names of the table.
    pub(super) values: BTreeMap<&'static str, Value>,
}

/// One guest: what it has other than the run's settings say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Vm {
    pub(crate) name: Option<String>,
    pub(crate) settings: Settings,
    /// As they were written.
    pub(super) pairs: Vec<(String, String)>,
}

/// A value of another kind than its reader takes it for is a fault of the table, which any resolved setting brings to light.
impl Value {
    pub(crate) fn text(&self) -> &str {
        let Self::Text(text) = self else { self.is_not_a("name") };
        text
    }

    /// The value of one of `words`.
    pub(crate) fn among<T: Copy + PartialEq>(&self, words: &Words<T>) -> T {
        words.value(self.text()).unwrap_or_else(|| self.is_not_a("word"))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.among(&SWITCH)
    }

    pub(crate) fn number(&self) -> u64 {
        let Self::Number(number) = self else { self.is_not_a("number") };
        *number
    }

    pub(crate) fn number_u32(&self) -> u32 {
        u32::try_from(self.number()).unwrap_or_else(|_| self.is_not_a("number of 32 bits"))
    }

    pub(crate) fn time(&self) -> Duration {
        let Self::Time(span) = self else { self.is_not_a("time") };
        span.0
    }

    pub(crate) fn bytes(&self) -> u64 {
        let Self::Memory(size) = self else { self.is_not_a("amount of memory") };
        size.bytes
    }

    pub(crate) fn cpus(&self) -> &CpuChoice {
        let Self::Cpus(cpus) = self else { self.is_not_a("choice of CPUs") };
        cpus
    }

    pub(crate) fn numa(&self) -> Numa {
        let Self::Numa(NumaChoice(numa)) = self else { self.is_not_a("place for memory") };
        *numa
    }

    pub(crate) fn percent(&self) -> u32 {
        let Self::Share(Percent(percent)) = self else { self.is_not_a("share") };
        *percent
    }

    pub(crate) fn hundredths(&self) -> u32 {
        let Self::Exponent(Exponent(hundredths)) = self else { self.is_not_a("exponent") };
        *hundredths
    }

    pub(crate) fn ratio(&self) -> Ratio {
        let Self::Ratio(ratio) = self else { self.is_not_a("ratio") };
        *ratio
    }

    pub(crate) fn arrivals(&self) -> Arrivals {
        let Self::Arrivals(arrivals) = self else { self.is_not_a("rate of arrivals") };
        *arrivals
    }

    pub(crate) fn spin_threshold(&self) -> SpinThreshold {
        let Self::SpinThreshold(threshold) = self else { self.is_not_a("bound on spinning") };
        *threshold
    }

    pub(crate) fn pause_loops(&self) -> PauseLoops {
        let Self::PauseLoops(loops) = self else { self.is_not_a("limit of pause loops") };
        *loops
    }

    pub(crate) fn fold(&self) -> FoldChoice {
        let Self::Fold(choice) = self else { self.is_not_a("way to fold") };
        *choice
    }

    pub(crate) fn quota(&self) -> QuotaChoice {
        let Self::Quota(choice) = self else { self.is_not_a("quota") };
        *choice
    }

    pub(crate) fn deschedule(&self) -> &DescheduleChoice {
        let Self::Deschedule(choice) = self else { self.is_not_a("policy of descheduling") };
        choice
    }

    pub(crate) fn guests(&self) -> &[Vm] {
        let Self::Guests(guests) = self else { self.is_not_a("list of guests") };
        guests
    }

    fn is_not_a(&self, what: &str) -> ! {
        unreachable!("{self:?} is no {what}")
    }
}

impl fmt::Display for Value {
    /// As it would be written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
            Self::Time(span) => span.fmt(f),
            Self::Memory(size) => size.fmt(f),
            Self::Cpus(cpus) => cpus.fmt(f),
            Self::Numa(numa) => numa.fmt(f),
            Self::Share(share) => share.fmt(f),
            Self::Exponent(exponent) => exponent.fmt(f),
            Self::Ratio(ratio) => ratio.fmt(f),
            Self::Arrivals(arrivals) => arrivals.fmt(f),
            Self::SpinThreshold(threshold) => threshold.fmt(f),
            Self::PauseLoops(loops) => loops.fmt(f),
            Self::Quota(quota) => quota.fmt(f),
            Self::Fold(fold) => fold.fmt(f),
            Self::Deschedule(choice) => choice.fmt(f),
            Self::Guests(guests) => {
                let guests: Vec<String> = guests.iter().map(ToString::to_string).collect();
                f.write_str(&guests.join("; "))
            }
            Self::With(value, behind) => {
                value.fmt(f)?;
                behind.iter().try_for_each(|(_, value)| write!(f, "/{value}"))
            }
        }
    }
}

impl fmt::Display for Vm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&pairs.join(","))
    }
}

/// Returns the name of a guest without one: a, b, and so on.
pub(crate) fn default_name(index: usize) -> String {
    char::from(b'a' + (index % 26) as u8).to_string()
}
