//! Values of settings, handed out by kind. One of them is a list of guests, each with settings of its own: so they stand here
//! together.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;
use std::{any, fmt};

use haltkick_vmm::Span;

use super::choices::{SWITCH, Words};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A value by itself, which its setting has read, as it would be written.
    One(String),
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

impl Value {
    pub(crate) fn text(&self) -> &str {
        let Self::One(text) = self else { self.is_not_a("value by itself") };
        text
    }

    /// The value as a type. One that its setting does not read is a fault of the table, which any resolved setting brings to light.
    pub(crate) fn to<T: FromStr>(&self) -> T {
        self.text().parse().unwrap_or_else(|_| self.is_not_a(any::type_name::<T>()))
    }

    /// The value in the notation that `read` knows, which its setting has read, too.
    pub(crate) fn by<T>(&self, read: fn(&str) -> Result<T, String>) -> T {
        read(self.text()).unwrap_or_else(|_| self.is_not_a(any::type_name::<T>()))
    }

    pub(crate) fn among<T: Copy + PartialEq>(&self, words: &Words<T>) -> T {
        words.value(self.text()).unwrap_or_else(|| self.is_not_a("word"))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.among(&SWITCH)
    }

    pub(crate) fn time(&self) -> Duration {
        self.to::<Span>().0
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
            Self::One(text) => f.write_str(text),
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
