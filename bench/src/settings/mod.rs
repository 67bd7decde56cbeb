//! The settings of a cell: a table of them, values as far as they are given, and how the two become a configuration
//! that can run here.

pub(crate) mod choices;
mod flags;
pub(crate) mod machines;
pub(crate) mod pause_loops;
mod read;
mod resolve;
pub(crate) mod rounds;
pub(crate) mod row;
pub(crate) mod table;

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

/// Ends the name of a lock whose paravirtual form is meant.
const WITH_PV: &str = "+pv";

/// Material of a cell: the image's tables and this host's CPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply<'a> {
    pub(crate) image: &'a Image,
    pub(crate) allowed: &'a CpuList,
}

/// A value as it would be written, which its setting has read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Value<'a>(&'a str);

/// Settings of one cell, as far as they are given: by flags, in an experiment file, with `--set`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    /// Values by the names of the table, each with what stands behind it.
    values: BTreeMap<&'static str, String>,
}

/// One guest: what it has other than the run's settings say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Vm {
    pub(crate) name: Option<String>,
    pub(crate) settings: Settings,
}

impl Settings {
    /// Sets one setting from text, as in `--set hold=5us` or `hold = "5us"`.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let setting = table::named(key)?;
        let value = setting.read(value)?;
        setting.instead_of.and_then(|other| self.values.remove(other));
        self.values.insert(setting.name, value);
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

    /// Values of `self`, and of `below` where `self` has none. Words for a command line are those of both, of `below` first.
    pub(crate) fn over(mut self, below: &Self) -> Self {
        for (setting, value) in below.all_given() {
            let says = |name: &str| self.values.contains_key(name);
            let words = self.values.get(setting.name).filter(|_| matches!(setting.kind, Kind::Words));
            if let Some(words) = words {
                let both: Vec<&str> = [value.text(), words].into_iter().filter(|it| !it.is_empty()).collect();
                let both = both.join(" ");
                self.values.insert(setting.name, both);
            } else if !says(setting.name) && !setting.instead_of.is_some_and(says) {
                self.values.insert(setting.name, value.to_string());
            }
        }
        self
    }

    /// Lists the settings that were given, in the order of the table.
    pub(crate) fn all_given(&self) -> impl Iterator<Item = (&'static Setting, Value<'_>)> {
        table::all().filter_map(|setting| Some((setting, Value(self.values.get(setting.name)?))))
    }

    pub(crate) fn given(&self, name: &str) -> Option<Value<'_>> {
        let row =
            table::all().find(|row| row.name == name).unwrap_or_else(|| panic!("the table has no {name}"));
        let main = row.qualifies.and_then(table::find).unwrap_or(row);
        let parts = main.parts(self.values.get(main.name)?).expect("it has been read");
        parts.into_iter().find(|(part, _)| part.name == name).map(|(_, text)| Value(text))
    }

    /// The locks that they name, one for each guest at most.
    pub(crate) fn locks(&self) -> impl Iterator<Item = &str> {
        let of_guests = self.given("vm").into_iter().flat_map(|guests| guests.text().split([',', ';']));
        let of_guests = of_guests.filter_map(|pair| pair.trim().strip_prefix("lock="));
        let names = self.given("lock").map(Value::text).into_iter().chain(of_guests);
        names.map(|name| name.strip_suffix(WITH_PV).unwrap_or(name))
    }

    /// Returns the settings that all guests have in common.
    fn of_run(&self) -> Self {
        let mut run = self.clone();
        run.values.remove("vm");
        run.values.remove("guests");
        run
    }

    /// The guests that were asked for, each by itself or as a number of guests that are alike; none means one.
    pub(crate) fn guests(&self) -> Vec<Vm> {
        match self.given("guests").map_or(1, Value::to) {
            0 | 1 => self.given("vm").map_or_else(Vec::new, |guests| guests.by(read::guests)),
            count => vec![Vm::default(); count],
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

impl<'a> Value<'a> {
    pub(crate) fn text(self) -> &'a str {
        self.0
    }

    /// The value as a type. One that its setting does not read is a fault of the table, which a test brings to light.
    pub(crate) fn to<T: FromStr>(self) -> T {
        self.text().parse().unwrap_or_else(|_| self.is_not_a(any::type_name::<T>()))
    }

    /// The value in the notation that `read` knows, which its setting has read, too.
    pub(crate) fn by<T>(self, read: fn(&str) -> Result<T, String>) -> T {
        read(self.text()).unwrap_or_else(|_| self.is_not_a(any::type_name::<T>()))
    }

    pub(crate) fn among<T: Copy + PartialEq>(self, words: &Words<T>) -> T {
        words.value(self.text()).unwrap_or_else(|| self.is_not_a("word"))
    }

    pub(crate) fn is_on(self) -> bool {
        self.among(&SWITCH)
    }

    pub(crate) fn time(self) -> Duration {
        self.to::<Span>().0
    }

    fn is_not_a(self, what: &str) -> ! {
        unreachable!("{self:?} is no {what}")
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Display for Vm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.iter().map(|name| format!("name={name}"));
        let settings = self.settings.all_given().map(|(setting, value)| format!("{}={value}", setting.name));
        f.write_str(&name.chain(settings).collect::<Vec<_>>().join(","))
    }
}

/// Returns the name of a guest without one: a, b, and so on.
pub(crate) fn default_name(index: usize) -> String {
    char::from(b'a' + (index % 26) as u8).to_string()
}
