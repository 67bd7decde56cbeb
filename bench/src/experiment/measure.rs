//! Measures of comparisons.

use serde::{Deserialize, Serialize};

use super::figure_name::{LOCK_EVENT, check_name};
use crate::text::nearest;

/// Measure of a comparison. Above 1, the arm does better than the baseline; of a figure of a guest's own, it has more
/// of it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Measure {
    /// Sections per second: for a fixed amount of work, how much sooner it is done.
    #[default]
    Throughput,
    /// Sections per CPU time that goes into acquiring and releasing locks.
    LockCpu,
    /// Sections per second of all guests of the run together.
    AllGuests,
    /// Sections per second of the run's slowest guest.
    SlowestGuest,
    /// Sections per second of the run's slowest vCPU, whichever guest it belongs to.
    SlowestVcpu,
    /// A figure that a Linux guest prints on its console, by its name.
    Figure(String),
}

/// How figures of guests are named.
const FIGURE: &str = "figure:";
/// The words in addition to those.
const WORDS: [&str; 5] = ["throughput", "lock-cpu", "all-guests", "slowest-guest", "slowest-vcpu"];

impl Measure {
    /// Returns the quantity of its ratios.
    pub(crate) fn ratio_of(&self) -> &'static str {
        match self {
            Self::Throughput => "ratio of throughputs",
            Self::LockCpu => "ratio of sections per CPU time in locks",
            Self::AllGuests => "ratio of throughputs of all guests",
            Self::SlowestGuest => "ratio of throughputs of the slowest guest",
            Self::SlowestVcpu => "ratio of throughputs of the slowest vCPU",
            Self::Figure(_) => "ratio of the guests' figures",
        }
    }

    /// Returns the words for an arm whose ratio lies above 1, and for one whose ratio lies below.
    pub(crate) fn words(&self) -> (&'static str, &'static str) {
        match self {
            Self::Throughput | Self::AllGuests | Self::SlowestGuest | Self::SlowestVcpu => {
                ("faster", "slower")
            }
            Self::LockCpu => ("less CPU time", "more CPU time"),
            Self::Figure(_) => ("higher", "lower"),
        }
    }

    /// The figure of a guest that it names.
    pub(crate) fn figure(&self) -> Option<&str> {
        match self {
            Self::Figure(name) => Some(name),
            _ => None,
        }
    }

    /// Whether it is taken from all guests of a run, not from one of them.
    pub(crate) fn is_of_all_guests(&self) -> bool {
        matches!(self, Self::AllGuests | Self::SlowestGuest | Self::SlowestVcpu)
    }

    /// Returns its part of a schema.
    pub(crate) fn schema() -> serde_json::Value {
        serde_json::json!({ "type": "string", "pattern": "^(throughput|lock-cpu|all-guests|slowest-guest|slowest-vcpu|figure:(lock_event\\.)?[a-z0-9_-]{1,64})$" })
    }
}

impl TryFrom<String> for Measure {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        match (word.as_str(), word.strip_prefix(FIGURE)) {
            ("throughput", _) => Ok(Self::Throughput),
            ("lock-cpu", _) => Ok(Self::LockCpu),
            ("all-guests", _) => Ok(Self::AllGuests),
            ("slowest-guest", _) => Ok(Self::SlowestGuest),
            ("slowest-vcpu", _) => Ok(Self::SlowestVcpu),
            (_, Some(name)) => {
                check_name(name.strip_prefix(LOCK_EVENT).unwrap_or(name))?;
                Ok(Self::Figure(name.into()))
            }
            (word, None) => {
                Err(format!("{}, or figure:NAME", nearest::unknown_of_few("measure", word, &WORDS)))
            }
        }
    }
}

impl From<Measure> for String {
    fn from(measure: Measure) -> Self {
        match measure {
            Measure::Throughput => "throughput".into(),
            Measure::LockCpu => "lock-cpu".into(),
            Measure::AllGuests => "all-guests".into(),
            Measure::SlowestGuest => "slowest-guest".into(),
            Measure::SlowestVcpu => "slowest-vcpu".into(),
            Measure::Figure(name) => format!("{FIGURE}{name}"),
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Measure {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Measure".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let mut schema = schemars::Schema::try_from(Self::schema()).expect("it is an object");
        schema.insert(
            "description".into(),
            "What a comparison compares. Above 1, the arm does better than the baseline; of a figure of a guest's own, it has \
             more of it."
                .into(),
        );
        schema
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measure_is_written_as_read_and_a_wrong_one_refused() {
        for word in WORDS.into_iter().chain(["figure:page-loop", "figure:lock_event.pv_kick_wake"]) {
            assert_eq!(Measure::try_from(word.to_owned()).map(String::from).as_deref(), Ok(word));
        }
        for (word, complaint) in [
            ("troughput", "did you mean 'throughput'?"),
            ("figure:", "a name that is not"),
            ("figure:Page", "a name that is not"),
        ] {
            let error = Measure::try_from(word.to_owned()).unwrap_err();
            assert!(error.contains(complaint), "{error}");
        }
    }
}
