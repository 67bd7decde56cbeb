//! Values of settings: read from text, and handed out by kind.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;

use super::choices::{Arrivals, DescheduleChoice, Exponent, Percent, Switch};
use super::row::{Kind, Setting};
use super::spin_threshold::SpinThreshold;
use super::vm::{self, Vm};
use crate::host::cpulist::CpuList;
use crate::text::duration::Span;
use crate::text::memory_size::MemorySize;

/// The value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A name, or one of a few words.
    Text(String),
    Number(u64),
    Time(Span),
    Memory(MemorySize),
    Cpus(CpuList),
    Share(Percent),
    Exponent(Exponent),
    Arrivals(Arrivals),
    SpinThreshold(SpinThreshold),
    Deschedule(DescheduleChoice),
    Guests(Vec<Vm>),
}

impl Setting {
    /// Reads a value as it stands in a file, or behind a flag.
    pub(crate) fn read(&self, text: &str) -> Result<Value, String> {
        Ok(match &self.kind {
            Kind::Name => Value::Text(text.into()),
            Kind::Word(words) => {
                let words = words();
                if !words.iter().any(|word| word.matches(text, false)) {
                    let names: Vec<&str> = words.iter().map(|word| word.get_name()).collect();
                    return Err(format!("'{text}' is not one of {}", names.join(", ")));
                }
                Value::Text(text.into())
            }
            Kind::Number => Value::Number(u64::from(whole::<u32>(text)?)),
            Kind::LargeNumber => Value::Number(whole(text)?),
            Kind::Seed => Value::Number(seed(text)?),
            Kind::Time => Value::Time(text.parse()?),
            Kind::Memory => Value::Memory(text.parse()?),
            Kind::Cpus => Value::Cpus(text.parse()?),
            Kind::Share => Value::Share(text.parse()?),
            Kind::Exponent => Value::Exponent(text.parse()?),
            Kind::Arrivals => Value::Arrivals(text.parse()?),
            Kind::SpinThreshold => Value::SpinThreshold(text.parse()?),
            Kind::Deschedule => Value::Deschedule(text.parse()?),
            Kind::Guests => Value::Guests(vm::several(text)?),
        })
    }
}

/// A value of another kind than its reader takes it for is a fault of the table, which any resolved setting brings to light.
impl Value {
    pub(crate) fn text(&self) -> &str {
        let Self::Text(text) = self else { self.is_no("name") };
        text
    }

    pub(crate) fn word<T: ValueEnum>(&self) -> T {
        T::from_str(self.text(), false).unwrap_or_else(|_| self.is_no("word"))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.word::<Switch>() == Switch::On
    }

    pub(crate) fn number(&self) -> u64 {
        let Self::Number(number) = self else { self.is_no("number") };
        *number
    }

    pub(crate) fn number_u32(&self) -> u32 {
        u32::try_from(self.number()).unwrap_or_else(|_| self.is_no("number of 32 bits"))
    }

    pub(crate) fn time(&self) -> Duration {
        let Self::Time(span) = self else { self.is_no("time") };
        span.0
    }

    pub(crate) fn bytes(&self) -> u64 {
        let Self::Memory(size) = self else { self.is_no("amount of memory") };
        size.bytes
    }

    pub(crate) fn cpus(&self) -> &CpuList {
        let Self::Cpus(cpus) = self else { self.is_no("list of CPUs") };
        cpus
    }

    pub(crate) fn percent(&self) -> u32 {
        let Self::Share(Percent(percent)) = self else { self.is_no("share") };
        *percent
    }

    pub(crate) fn hundredths(&self) -> u32 {
        let Self::Exponent(Exponent(hundredths)) = self else { self.is_no("exponent") };
        *hundredths
    }

    pub(crate) fn arrivals(&self) -> Arrivals {
        let Self::Arrivals(arrivals) = self else { self.is_no("rate of arrivals") };
        *arrivals
    }

    pub(crate) fn spin_threshold(&self) -> SpinThreshold {
        let Self::SpinThreshold(threshold) = self else { self.is_no("bound on spinning") };
        *threshold
    }

    pub(crate) fn deschedule(&self) -> &DescheduleChoice {
        let Self::Deschedule(choice) = self else { self.is_no("policy of descheduling") };
        choice
    }

    pub(crate) fn guests(&self) -> &[Vm] {
        let Self::Guests(guests) = self else { self.is_no("list of guests") };
        guests
    }

    fn is_no(&self, what: &str) -> ! {
        unreachable!("{self:?} is no {what}")
    }
}

/// A seed that every JSON reader keeps: at most 2^53 - 1.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    const LARGEST: u64 = (1 << 53) - 1;
    let seed = whole(text)?;
    if seed > LARGEST {
        return Err(format!("{seed} is out of range: {LARGEST} at most, which every JSON reader keeps"));
    }
    Ok(seed)
}

fn whole<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error| format!("'{text}' is no whole number: {error}"))
}
