//! Columns of the table of settings.

use std::ops::RangeInclusive;
use std::time::Duration;

use haltkick_vmm::{Known, OurGuest, Ours, Run, Span, WorkloadFlags};
use serde_json::Value as Json;

use super::Value;
use super::choices::{Offer, SWITCH};

/// One setting: a row of the table.
pub(crate) struct Setting {
    /// Its name in files and for `--set`; as a flag, too, unless `flag` says otherwise.
    pub(crate) name: &'static str,
    /// The flag, where that is called otherwise. Either name is understood everywhere.
    pub(crate) flag: Option<&'static str>,
    /// Placeholder of its value in the help.
    pub(crate) unit: &'static str,
    pub(crate) help: &'static str,
    /// Words of `-h` about it, with an example; `None`: only `--help` has it.
    pub(crate) short_help: Option<&'static str>,
    pub(crate) kind: Kind,
    /// Its default, as it would be written; `None`: that of the library, which the record tells, or none.
    pub(crate) default: Option<&'static str>,
    /// Its default in the help, where that is not what would be written.
    pub(crate) help_default: Option<&'static str>,
    pub(crate) bounds: Bounds,
    /// Another setting that says the same thing: only one of them can be given.
    pub(crate) instead_of: Option<&'static str>,
    /// The setting behind whose value this one is written, after a slash. It has no name for users.
    pub(crate) qualifies: Option<&'static str>,
    /// Whether each of several guests has it for itself; else it belongs to the run.
    pub(crate) of_guest: bool,
    pub(crate) linux: Linux,
    /// Flags of the workloads that have such a thing; none: all have it.
    pub(crate) workloads: WorkloadFlags,
    pub(crate) apply: Apply,
    /// Name among the record's `settings`, and the value there; `None`: another field tells of it, or none, as a test says.
    pub(crate) in_record: Option<(&'static str, Told)>,
    /// The meaning of the record's value, where the help is about another form of it.
    pub(crate) about: Option<&'static str>,
}

/// How values are written.
pub(crate) enum Kind {
    /// A name, known to the image or not.
    Name,
    Text,
    /// Words for a command line, perhaps none. Those of several places are used one after the other.
    Words,
    Flag,
    Word(&'static dyn Offer),
    Number,
    LargeNumber,
    /// A number that every JSON reader keeps.
    Seed,
    Time,
    Memory,
    Cpus,
    Numa,
    Share,
    Exponent,
    Ratio,
    Arrivals,
    SpinThreshold,
    PauseLoops,
    Quota,
    Fold,
    Deschedule,
    /// Guests, each with settings of its own; the flag gives one at a time.
    Guests,
}

/// Which values make sense, whatever the others are.
pub(crate) enum Bounds {
    None,
    Number(u64, u64),
    Time(Duration, Duration),
}

/// Treatment of a setting where the guest is Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linux {
    Used,
    Refused,
    /// Refused but for these values. Defaults of the user's are for our own guest.
    Only(&'static [&'static str]),
}

/// The place where a value goes by itself.
pub(crate) enum Apply {
    Run(fn(&mut Run, Value<'_>)),
    Ours(fn(&mut Ours, Value<'_>)),
    /// Nowhere: it depends on others, and `Settings::resolve` combines them.
    Combined,
}

pub(crate) type Told = fn(OurGuest<'_>) -> Known<Json>;

pub(crate) fn told(value: impl Into<Json>) -> Known<Json> {
    Ok(value.into())
}

/// A value of the record, or the reason why there is none.
pub(crate) fn given(value: Option<impl Into<Json>>, reason: &'static str) -> Known<Json> {
    value.map(Into::into).ok_or_else(|| reason.into())
}

/// A time in nanoseconds, as far as records can hold it.
pub(crate) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Setting {
    pub(crate) fn is_time(&self) -> bool {
        matches!(self.kind, Kind::Time | Kind::SpinThreshold)
    }

    /// Whether its value goes into the run, which all guests share.
    pub(super) fn is_of_run(&self) -> bool {
        matches!(self.apply, Apply::Run(_))
    }

    pub(crate) fn is_called(&self, key: &str) -> bool {
        self.name == key || self.flag == Some(key)
    }

    pub(crate) fn is_refused_for_linux(&self, value: Value<'_>) -> bool {
        match self.linux {
            Linux::Used => false,
            Linux::Refused => true,
            Linux::Only(words) => !words.contains(&value.text()),
        }
    }

    pub(super) fn help_text(&self) -> String {
        match self.help_default.map(String::from).or_else(|| self.default_text()) {
            Some(default) => format!("{} [default: {default}]", self.help),
            None => self.help.to_owned(),
        }
    }

    /// Its default as it would be written.
    pub(super) fn default_text(&self) -> Option<String> {
        let library = Run::default();
        let told = match (self.default, &self.apply, &self.in_record) {
            (Some(written), ..) => return Some(written.into()),
            (None, Apply::Run(_) | Apply::Ours(_), Some((_, told))) => told(library.our(0)).ok()?,
            _ => return None,
        };
        Some(match (&self.kind, told) {
            (Kind::Share, percent) => format!("{percent}%"),
            (_, Json::Bool(is_on)) => SWITCH.of(is_on).into(),
            (_, Json::String(text)) => text,
            (_, ns) if self.is_time() => Span(Duration::from_nanos(ns.as_u64()?)).to_string(),
            (_, number) => number.to_string(),
        })
    }
}

/// Columns that a row may leave out, each with the function that fills it.
macro_rules! setters {
    ($($(#[$doc:meta])* fn $name:ident($($given:ident: $type:ty),*) { $column:ident = $value:expr })*) => {
        impl Setting {$(
            $(#[$doc])*
            pub(super) const fn $name(mut self $(, $given: $type)*) -> Self {
                self.$column = $value;
                self
            }
        )*}
    };
}

setters! {
    /// One that people type: `-h` shows it with these words.
    fn typed(words: &'static str) { short_help = Some(words) }
    /// The default as it would be written, where the record of a run by default does not tell it.
    fn default(written: &'static str) { default = Some(written) }
    /// The default as the help tells it.
    fn default_in_help(words: &'static str) { help_default = Some(words) }
    /// A number, or a number of things, from `range`.
    fn within(range: RangeInclusive<u64>) { bounds = Bounds::Number(*range.start(), *range.end()) }
    fn lasting(range: RangeInclusive<Duration>) { bounds = Bounds::Time(*range.start(), *range.end()) }
    fn unit(unit: &'static str) { unit = unit }
    fn flag(flag: &'static str) { flag = Some(flag) }
    fn instead_of(other: &'static str) { instead_of = Some(other) }
    fn behind(other: &'static str) { qualifies = Some(other) }
    fn of_guest() { of_guest = true }
    fn linux(linux: Linux) { linux = linux }
    /// Only for workloads with this flag.
    fn only_in(workloads: WorkloadFlags) { workloads = workloads }
    fn sets_run(apply: fn(&mut Run, Value<'_>)) { apply = Apply::Run(apply) }
    fn sets_ours(apply: fn(&mut Ours, Value<'_>)) { apply = Apply::Ours(apply) }
    /// Its name and value among the record's `settings`.
    fn recorded_as(name: &'static str, value: Told) { in_record = Some((name, value)) }
    fn about(words: &'static str) { about = Some(words) }
}

pub(super) const fn name(name: &'static str, help: &'static str) -> Setting {
    other(name, "NAME", Kind::Name, help)
}

/// A row of `table::BOOT`.
pub(super) const fn boot(name: &'static str, kind: Kind, help: &'static str) -> Setting {
    other(name, "TEXT", kind, help).linux(Linux::Used)
}

pub(super) const fn word(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    words: &'static dyn Offer,
) -> Setting {
    other(name, unit, Kind::Word(words), help)
}

pub(super) const fn switch(name: &'static str, help: &'static str) -> Setting {
    word(name, "SWITCH", help, &SWITCH)
}

pub(super) const fn number(name: &'static str, help: &'static str) -> Setting {
    other(name, "N", Kind::Number, help)
}

pub(super) const fn time(name: &'static str, help: &'static str) -> Setting {
    other(name, "TIME", Kind::Time, help)
}

pub(super) const fn other(name: &'static str, unit: &'static str, kind: Kind, help: &'static str) -> Setting {
    Setting {
        name,
        flag: None,
        unit,
        help,
        short_help: None,
        kind,
        default: None,
        help_default: None,
        bounds: Bounds::None,
        instead_of: None,
        qualifies: None,
        of_guest: false,
        linux: Linux::Refused,
        workloads: WorkloadFlags::NONE,
        apply: Apply::Combined,
        in_record: None,
        about: None,
    }
}
