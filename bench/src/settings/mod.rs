//! The settings of a cell: a table of them, values as far as they are given, and how the two become a configuration
//! that can run here.

pub(crate) mod choices;
mod flags;
pub(crate) mod linux;
pub(crate) mod machines;
pub(crate) mod pause_loops;
mod read;
mod resolve;
pub(crate) mod rounds;
pub(crate) mod row;
pub(crate) mod table;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;
use std::{any, fmt};

use choices::{SWITCH, Words};
use haltkick_vmm::{Image, Span};

use crate::host::cpulist::CpuList;

pub(crate) use read::{schemas, seed};
pub(crate) use resolve::{layouts, simulated_for};
pub(crate) use row::{Kind, Setting};

#[cfg(test)]
pub(crate) use row::InRecord;

/// Ends the name of a lock whose paravirtual form is meant.
const WITH_PV: &str = "+pv";

/// Material of a cell: the image's tables and this host's CPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply<'a> {
    pub(crate) image: &'a Image,
    pub(crate) allowed: &'a CpuList,
}

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
    values: BTreeMap<&'static str, Value>,
}

/// One guest: what it has other than the run's settings say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Vm {
    pub(crate) name: Option<String>,
    pub(crate) settings: Settings,
    /// As they were written.
    pairs: Vec<(String, String)>,
}

impl Settings {
    /// Sets one setting from text, as in `--set hold=5us` or `hold = "5us"`.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let setting = table::named(key)?;
        self.put(setting, setting.read(value)?);
        Ok(())
    }

    /// The settings with these, too, which are given as text.
    pub(crate) fn with<'a>(
        mut self,
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, String> {
        pairs.into_iter().try_for_each(|(key, value)| self.set(key, value)).map(|()| self)
    }

    /// Takes back the value of a setting, by its name in files.
    pub(crate) fn forget(&mut self, name: &str) {
        self.values.remove(name);
    }

    /// Sets one setting to a value that has been read.
    pub(crate) fn put(&mut self, setting: &'static Setting, value: Value) {
        setting.instead_of.and_then(|other| self.values.remove(other));
        self.values.insert(setting.name, value);
    }

    /// `self` where it says something, `below` elsewhere.
    pub(crate) fn over(mut self, below: &Self) -> Self {
        for setting in table::all() {
            let says = |name: &str| self.values.contains_key(name);
            if !says(setting.name)
                && !setting.instead_of.is_some_and(says)
                && let Some(value) = below.values.get(setting.name)
            {
                self.values.insert(setting.name, value.clone());
            }
        }
        self
    }

    /// Lists the settings that were given, in the order of the table.
    pub(crate) fn all_given(&self) -> impl Iterator<Item = (&'static Setting, &Value)> {
        table::all().filter_map(|setting| Some((setting, self.values.get(setting.name)?)))
    }

    pub(crate) fn given(&self, name: &str) -> Option<&Value> {
        let row =
            table::all().find(|row| row.name == name).unwrap_or_else(|| panic!("the table has no {name}"));
        match (row.qualifies, self.values.get(row.qualifies.unwrap_or(name))?) {
            (None, Value::With(value, _)) => Some(value),
            (None, value) => Some(value),
            (Some(_), Value::With(_, behind)) => {
                behind.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
            }
            (Some(_), _) => None,
        }
    }

    /// The locks that they name, one for each guest at most.
    pub(crate) fn locks(&self) -> impl Iterator<Item = &str> {
        let each = self.given("vm").map_or(&[][..], Value::guests);
        let of_guests = each.iter().map(|guest| &guest.settings);
        std::iter::once(self).chain(of_guests).filter_map(|settings| {
            let name = settings.given("lock")?.text();
            Some(name.strip_suffix(WITH_PV).unwrap_or(name))
        })
    }

    /// Returns the settings that all guests have in common.
    fn of_run(&self) -> Self {
        let mut run = self.clone();
        run.values.remove("vm");
        run.values.remove("guests");
        run
    }

    pub(crate) fn put_guests(&mut self, guests: Vec<Vm>) {
        self.values.insert("vm", Value::Guests(guests));
    }

    /// The guests that were asked for, each by itself or as a number of guests that are alike; none means one.
    pub(crate) fn guests(&self) -> Cow<'_, [Vm]> {
        match self.given("guests").map_or(1, Value::to) {
            0 | 1 => Cow::Borrowed(self.given("vm").map_or(&[], Value::guests)),
            count => (0..count).map(|_| Vm::default()).collect(),
        }
    }
}

/// Says the range where `value` is outside.
fn in_range<T: Copy + PartialOrd + Default + Display>(
    value: T,
    range: &RangeInclusive<T>,
) -> Result<(), String> {
    let (least, most) = (range.start(), range.end());
    match (range.contains(&value), *least == T::default()) {
        (true, _) => Ok(()),
        (false, true) => Err(format!("{value} is out of range: {most} at most")),
        (false, false) => Err(format!("{value} is out of range: {least} to {most}")),
    }
}

impl Value {
    pub(crate) fn text(&self) -> &str {
        let Self::One(text) = self else { self.is_not_a("value by itself") };
        text
    }

    /// The value as a type. One that its setting does not read is a fault of the table, which a test brings to light.
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
