//! What sections are like, beyond their length: the settings of the workload `critical-section`, and those of the instrument
//! itself.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use haltkick_vmm::{MOST_LINES, Shape};

use super::{Impossible, Switch, choose, parse};
use crate::text::duration::Span;

/// How times are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Distribution {
    /// All alike
    Fixed,
    /// As between the events of a Poisson process
    Exponential,
}

/// How the clock is read at the edges of sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stamps {
    /// Between fences
    Ordered,
    /// As it is
    Plain,
}

/// A share, in whole percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percent(pub(crate) u32);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
        match number {
            Some(percent @ 0..=100) => Ok(Self(percent)),
            _ => Err(format!("'{text}' is no share: write whole percent, such as 90%")),
        }
    }
}

/// An exponent with at most two decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exponent(pub(crate) u32);

impl FromStr for Exponent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const MOST: f64 = 4.0;
        match text.parse::<f64>() {
            Ok(exponent) if (0.0..=MOST).contains(&exponent) => Ok(Self((exponent * 100.0).round() as u32)),
            _ => Err(format!("'{text}' is no exponent from 0 to {MOST}, such as 0.99")),
        }
    }
}

/// Sections that each vCPU is to begin in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrivals(pub(crate) u64);

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(rate @ 1..=1_000_000_000) => Ok(Self(rate)),
            _ => Err(format!("'{text}' is no rate: write sections per second and vCPU, from 1 to 10^9")),
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// As far as somebody gave them.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub(crate) struct ShapeSettings {
    /// How times between sections are distributed: fixed or exponential [default: fixed]
    #[arg(long, value_name = "HOW", hide_possible_values = true, help_heading = "Workload")]
    pub(crate) think_distribution: Option<Distribution>,
    /// How far the length of a section is off --hold, at most, such as 20% [default: 0%]
    #[arg(long, value_name = "SHARE", help_heading = "Workload")]
    pub(crate) hold_jitter: Option<Percent>,
    /// Choose lock n with a probability that falls with n to this power, such as 0.99 [default: each in turn]
    #[arg(long, value_name = "POWER", help_heading = "Workload")]
    pub(crate) zipf: Option<Exponent>,
    /// Sections that each vCPU is to begin in a second, done with the one before or not; waits count from then
    #[arg(long, value_name = "RATE", help_heading = "Workload")]
    pub(crate) arrivals: Option<Arrivals>,
    /// Cache lines of its lock that a section walks [default: 0]
    #[arg(long, value_name = "LINES", help_heading = "Workload")]
    pub(crate) footprint: Option<u32>,
    /// Those of them that it writes, too [default: 0]
    #[arg(long, value_name = "LINES", help_heading = "Workload")]
    pub(crate) dirty: Option<u32>,
    /// Sections that only read, as a share of all, such as 90% [default: 0%]
    #[arg(long, value_name = "SHARE", help_heading = "Workload")]
    pub(crate) read_share: Option<Percent>,
    /// Work inside a section that only reads [default: --hold]
    #[arg(long, value_name = "TIME", help_heading = "Workload")]
    pub(crate) read_hold: Option<Span>,
    /// Watch over every section from inside, for exclusion: on or off [default: on]
    #[arg(long, value_name = "SWITCH", hide_possible_values = true, help_heading = "Measuring")]
    pub(crate) oracle: Option<Switch>,
    /// Read the clock between fences (ordered) or as it is (plain) [default: ordered]
    #[arg(long, value_name = "HOW", hide_possible_values = true, help_heading = "Measuring")]
    pub(crate) stamps: Option<Stamps>,
}

impl ShapeSettings {
    /// Sets one setting from text; `None`: it is none of these.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        let mut set = || {
            match key {
                "think-distribution" => self.think_distribution = Some(choose(value)?),
                "hold-jitter" => self.hold_jitter = Some(value.parse()?),
                "zipf" => self.zipf = Some(value.parse()?),
                "arrivals" => self.arrivals = Some(value.parse()?),
                "footprint" => self.footprint = Some(parse(value)?),
                "dirty" => self.dirty = Some(parse(value)?),
                "read-share" => self.read_share = Some(value.parse()?),
                "read-hold" => self.read_hold = Some(value.parse()?),
                "oracle" => self.oracle = Some(choose(value)?),
                "stamps" => self.stamps = Some(choose(value)?),
                _ => return Ok(false),
            }
            Ok(true)
        };
        match set() {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(message) => Some(Err(message)),
        }
    }

    /// `self` where it says something, `below` elsewhere.
    pub(crate) fn over(self, below: &Self) -> Self {
        Self {
            think_distribution: self.think_distribution.or(below.think_distribution),
            hold_jitter: self.hold_jitter.or(below.hold_jitter),
            zipf: self.zipf.or(below.zipf),
            arrivals: self.arrivals.or(below.arrivals),
            footprint: self.footprint.or(below.footprint),
            dirty: self.dirty.or(below.dirty),
            read_share: self.read_share.or(below.read_share),
            read_hold: self.read_hold.or(below.read_hold),
            oracle: self.oracle.or(below.oracle),
            stamps: self.stamps.or(below.stamps),
        }
    }

    /// The first of them that was given, if any.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let instrument = [("oracle", self.oracle.is_some()), ("stamps", self.stamps.is_some())];
        let given = |(key, given): (&'static str, bool)| given.then_some(key);
        self.given_shape().or_else(|| instrument.into_iter().find_map(given))
    }

    fn given_shape(&self) -> Option<&'static str> {
        let shape = [
            ("think-distribution", self.think_distribution.is_some()),
            ("hold-jitter", self.hold_jitter.is_some()),
            ("zipf", self.zipf.is_some()),
            ("arrivals", self.arrivals.is_some()),
            ("footprint", self.footprint.is_some()),
            ("dirty", self.dirty.is_some()),
            ("read-share", self.read_share.is_some()),
            ("read-hold", self.read_hold.is_some()),
        ];
        shape.into_iter().find_map(|(key, given)| given.then_some(key))
    }

    /// Fills in the defaults for `workload` with sections of `hold`.
    pub(crate) fn resolve(&self, workload: &str, hold: Duration) -> Result<Shape, Impossible> {
        if let Some(key) = self.given_shape()
            && !SHAPED.contains(&workload)
        {
            let message =
                format!("workload '{workload}' has no such thing: use one of {}", SHAPED.join(", "));
            return Err(Impossible { key, message });
        }
        let (footprint, dirty) = (self.footprint.unwrap_or(0), self.dirty.unwrap_or(0));
        if u64::from(footprint) > MOST_LINES {
            let message = format!("{footprint} is out of range: {MOST_LINES} at most");
            return Err(Impossible { key: "footprint", message });
        }
        if dirty > footprint {
            let message = format!("a section cannot write {dirty} of the {footprint} lines of --footprint");
            return Err(Impossible { key: "dirty", message });
        }
        Ok(Shape {
            exponential_think: self.think_distribution == Some(Distribution::Exponential),
            hold_jitter_percent: self.hold_jitter.map_or(0, |jitter| jitter.0),
            zipf_hundredths: self.zipf.map_or(0, |zipf| zipf.0),
            arrivals: self.arrivals.map(|arrivals| Duration::from_nanos(1_000_000_000 / arrivals.0)),
            footprint_lines: footprint,
            dirty_lines: dirty,
            read_percent: self.read_share.map_or(0, |share| share.0),
            read_hold: self.read_hold.map_or(hold, |span| span.0),
        })
    }

    pub(crate) fn oracle(&self) -> bool {
        self.oracle != Some(Switch::Off)
    }

    pub(crate) fn ordered_stamps(&self) -> bool {
        self.stamps != Some(Stamps::Plain)
    }
}

/// Workloads whose sections have a shape, as far as it concerns them.
const SHAPED: [&str; 7] =
    ["critical-section", "hash-table", "list", "bounded-queue", "barrier", "grace-period", "call-all"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_exponents_and_rates_have_their_ranges() {
        assert_eq!("90%".parse(), Ok(Percent(90)));
        for wrong in ["90", "101%", "-1%", "x%"] {
            assert!(wrong.parse::<Percent>().is_err(), "{wrong}");
        }
        assert_eq!("0.99".parse(), Ok(Exponent(99)));
        for wrong in ["-1", "5", "nan", "x"] {
            assert!(wrong.parse::<Exponent>().is_err(), "{wrong}");
        }
        assert_eq!("1000".parse(), Ok(Arrivals(1000)));
        assert!("0".parse::<Arrivals>().is_err());
    }

    #[test]
    fn a_section_writes_no_more_lines_than_it_walks() {
        let given = |footprint, dirty| ShapeSettings {
            footprint: Some(footprint),
            dirty: Some(dirty),
            ..ShapeSettings::default()
        };
        assert!(given(4, 4).resolve("critical-section", Duration::ZERO).is_ok());
        let impossible = given(4, 5).resolve("critical-section", Duration::ZERO).unwrap_err();
        assert_eq!(impossible.key, "dirty");
    }

    #[test]
    fn only_a_workload_of_sections_has_a_shape() {
        let given = ShapeSettings { zipf: Some(Exponent(99)), ..ShapeSettings::default() };
        assert_eq!(given.resolve("compute", Duration::ZERO).unwrap_err().key, "zipf");
    }
}
