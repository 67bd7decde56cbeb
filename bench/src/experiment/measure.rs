//! Measures of comparisons.

use serde::{Deserialize, Serialize};

use crate::host::noise::OTHERS_SHARE_LIMIT;
use crate::record::figures::{Better, Figure, LOCK_EVENT, THROUGHPUT, check_name};
use crate::text::nearest;

/// Measure of a comparison. Above 1, the arm does better than the baseline; of any other figure, it has more of it.
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
    SlowestGuest,
    /// Sections per second of the run's slowest vCPU, whichever guest it belongs to.
    SlowestVcpu,
    Figure(String),
    /// A figure that a Linux guest prints on its console, or an event of its locks, by its name.
    Printed(String),
}

/// How figures of guests are named.
const PRINTED: &str = "figure:";
/// The words in addition to names of figures, and the quantities of their ratios.
const WORDS: [(&str, Measure, &str); 5] = [
    ("throughput", Measure::Throughput, "throughputs"),
    ("lock-cpu", Measure::LockCpu, "sections per CPU time in locks"),
    ("all-guests", Measure::AllGuests, "throughputs of all guests"),
    ("slowest-guest", Measure::SlowestGuest, "throughputs of the slowest guest"),
    ("slowest-vcpu", Measure::SlowestVcpu, "throughputs of the slowest vCPU"),
];

impl Measure {
    /// Returns the quantity of its ratios.
    pub(crate) fn ratio_of(&self) -> String {
        let of_word = || WORDS.into_iter().find(|(_, it, _)| it == self).map_or("figures", |(.., of)| of);
        match self {
            Self::Figure(name) => format!("ratio of {name}"),
            Self::Printed(_) => "ratio of the guests' figures".into(),
            _ => format!("ratio of {}", of_word()),
        }
    }

    /// Returns the words for an arm whose ratio lies above 1, and for one whose ratio lies below.
    pub(crate) fn words(&self) -> (&'static str, &'static str) {
        match self {
            Self::Throughput | Self::AllGuests | Self::SlowestGuest | Self::SlowestVcpu => {
                ("faster", "slower")
            }
            Self::LockCpu => ("less CPU time", "more CPU time"),
            Self::Figure(_) => match self.better() {
                Some(Better::More) => ("more, which is better", "less, which is worse"),
                Some(Better::Less) => ("more, which is worse", "less, which is better"),
                None => ("more", "less"),
            },
            Self::Printed(_) => ("higher", "lower"),
        }
    }

    /// The better direction of its ratios; none where the table has none, and of figures that guests print.
    pub(crate) fn better(&self) -> Option<Better> {
        match self {
            Self::Figure(name) => Figure::find(name)?.better,
            Self::Printed(_) => None,
            _ => Some(Better::More),
        }
    }

    /// The figure that it names, of a guest or of the table.
    pub(crate) fn figure(&self) -> Option<&str> {
        match self {
            Self::Figure(name) | Self::Printed(name) => Some(name),
            _ => None,
        }
    }

    /// The share of the pCPUs up to which neighbours leave its ratios as they are on a quiet host, if they use as much of both runs
    /// (docs/measuring.md has the table).
    pub(crate) fn neighbours_limit(&self) -> f64 {
        let of_figure = |name: &str| match name.split('_').next() {
            Some("hold") => 0.2,
            Some("wait") if name.ends_with("_p50_ns") || name.ends_with("_p90_ns") => OTHERS_SHARE_LIMIT,
            Some("wait" | "lost") => 0.02,
            _ => OTHERS_SHARE_LIMIT,
        };
        match self {
            Self::Throughput | Self::AllGuests | Self::SlowestGuest | Self::SlowestVcpu => 0.1,
            Self::Figure(name) => of_figure(name),
            Self::LockCpu | Self::Printed(_) => OTHERS_SHARE_LIMIT,
        }
    }

    /// Whether it is taken from all guests of a run, not from one of them.
    pub(crate) fn is_of_all_guests(&self) -> bool {
        matches!(self, Self::AllGuests | Self::SlowestGuest | Self::SlowestVcpu)
    }

    pub(crate) fn schema() -> serde_json::Value {
        serde_json::json!({ "type": "string", "pattern": "^(throughput|lock-cpu|all-guests|slowest-guest|slowest-vcpu|[a-z][a-z0-9_]{1,63}|figure:(lock_event\\.)?[a-z0-9_-]{1,64})$" })
    }
}

impl TryFrom<String> for Measure {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        if let Some(name) = word.strip_prefix(PRINTED) {
            check_name(name.strip_prefix(LOCK_EVENT).unwrap_or(name))?;
            return Ok(Self::Printed(name.into()));
        }
        if let Some((_, measure, _)) = WORDS.into_iter().find(|(known, ..)| *known == word) {
            return Ok(measure);
        }
        match Figure::find(&word) {
            Some(_) if word == THROUGHPUT => Ok(Self::Throughput),
            Some(_) => Ok(Self::Figure(word)),
            None => {
                let words = WORDS.map(|(word, ..)| word);
                let unknown = nearest::unknown_of_few("measure", &word, &words);
                Err(format!("{unknown}, a figure of `haltkick list figures`, or figure:NAME of a kernel"))
            }
        }
    }
}

impl From<Measure> for String {
    fn from(measure: Measure) -> Self {
        match measure {
            Measure::Figure(name) => name,
            Measure::Printed(name) => format!("{PRINTED}{name}"),
            other => WORDS
                .into_iter()
                .find(|(_, it, _)| *it == other)
                .map_or_else(Self::new, |(word, ..)| word.into()),
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
            "What a comparison compares. Above 1, the arm does better than the baseline; of a figure by its name, it has more \
             of it."
                .into(),
        );
        schema
    }
}
