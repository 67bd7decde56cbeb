//! The result of a run, with the figures that a guest says of itself on its console: lines `haltkick: name=value unit`.
//!
//! The guest is not trusted: a line that is too long, or of another form, is refused and counted, and so is a figure beyond the
//! most that there may be. A name that comes again has the new value: a program that prints as it goes is heard to its end.

use std::collections::BTreeMap;

use haltkick_vmm::Found;

use crate::record::Record;
use crate::record::figures::{LOCK_EVENT, check_name};

/// How a line begins that tells a figure.
const PREFIX: &str = "haltkick: ";
const LONGEST_LINE: usize = 256;
const LONGEST_UNIT: usize = 32;
/// As many names are told apart, those of lock events included.
const MOST_FIGURES: usize = 512;
/// Number of refusals that are told, at most.
const MOST_TOLD: usize = 3;

/// The figures that one guest has told so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Heard {
    /// Value and unit, by name; that of lock events begins with [`LOCK_EVENT`].
    pub(crate) figures: BTreeMap<String, (f64, String)>,
    /// Lines that were refused.
    pub(crate) refused: u64,
    /// Why the first of them were.
    pub(crate) reasons: Vec<String>,
}

impl Heard {
    /// One line of the console. What is no figure is left to those who look at the console.
    pub(crate) fn hear(&mut self, line: &str) {
        let Some(said) = line.strip_prefix(PREFIX) else { return };
        if let Err(reason) = self.take(said) {
            self.refused = self.refused.saturating_add(1);
            if self.reasons.len() < MOST_TOLD {
                self.reasons.push(reason);
            }
        }
    }

    fn take(&mut self, said: &str) -> Result<(), String> {
        if said.len() > LONGEST_LINE {
            return Err(format!("a line of {} bytes, where {LONGEST_LINE} are the most", said.len()));
        }
        let (name, value, unit) = parts(said)?;
        check_name(name.strip_prefix(LOCK_EVENT).unwrap_or(name))?;
        if !self.figures.contains_key(name) && self.figures.len() >= MOST_FIGURES {
            return Err(format!("more than {MOST_FIGURES} figures"));
        }
        self.figures.insert(name.to_owned(), (value, unit.to_owned()));
        Ok(())
    }
}

/// `name=value unit`.
fn parts(said: &str) -> Result<(&str, f64, &str), String> {
    let form = || "a line that is not name=value unit".to_owned();
    let (name, rest) = said.trim_end().split_once('=').ok_or_else(form)?;
    let (value, unit) = rest.split_once(' ').ok_or_else(form)?;
    // Rust reads words such as `inf` as numbers, too.
    let is_plain = value.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let value = value.parse().ok().filter(|value: &f64| is_plain && value.is_finite());
    let value = value.ok_or("a value that is no finite decimal number")?;
    if unit.is_empty() || unit.len() > LONGEST_UNIT || !unit.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "a unit that is not one word of at most {LONGEST_UNIT} printable ASCII characters"
        ));
    }
    Ok((name, value, unit))
}

/// The findings of a run, and the figures that a Linux guest printed.
#[derive(Debug)]
pub(crate) struct RunResult {
    pub(crate) found: Found,
    pub(crate) heard: Heard,
    /// The record of the workload inside a Linux guest, or why there is none; `None` where none was to run.
    pub(crate) inside: Option<Result<Box<Record>, String>>,
}

/// Our own guests print no figures.
impl From<Found> for RunResult {
    fn from(found: Found) -> Self {
        Self { found, heard: Heard::default(), inside: None }
    }
}

#[cfg(test)]
mod tests {
    use haltkick_fuzzing::Target;

    use super::*;

    fn heard(lines: &[&str]) -> Heard {
        let mut heard = Heard::default();
        lines.iter().for_each(|line| heard.hear(line));
        heard
    }

    #[test]
    fn lines_of_that_form_are_figures_the_last_one_counts() {
        let heard = heard(&[
            "Run /init as init process",
            "haltkick: page-loop=123.5 ops/s",
            "haltkick: wait_p99=2.5e3 ns ",
            "haltkick: lock_event.pv_kick_wake=17 count",
            "[    1.0] haltkick: within=1 line",
        ]);
        let figures = [
            ("page-loop", 123.5, "ops/s"),
            ("wait_p99", 2500.0, "ns"),
            ("lock_event.pv_kick_wake", 17.0, "count"),
        ];
        assert_eq!(
            heard.figures,
            figures.map(|(name, value, unit)| (name.to_owned(), (value, unit.to_owned()))).into()
        );
        assert_eq!((heard.refused, heard.reasons.len()), (0, 0));
        let heard = self::heard(&["haltkick: a=1 x", "haltkick: a=2 x", "haltkick: a=broken x"]);
        assert_eq!(heard.figures["a"], (2.0, "x".into()));
        assert_eq!(heard.refused, 1);
    }

    #[test]
    fn what_is_no_figure_is_refused_with_a_reason() {
        let long_name = format!("haltkick: {}=1 x", "a".repeat(65));
        let long_unit = format!("haltkick: a=1 {}", "x".repeat(LONGEST_UNIT + 1));
        let long_line = format!("haltkick: a=1 {}", "x".repeat(LONGEST_LINE));
        for (line, reason) in [
            ("haltkick: ", "not name=value unit"),
            ("haltkick: a", "not name=value unit"),
            ("haltkick: a=1", "not name=value unit"),
            ("haltkick: a=1 ", "not name=value unit"),
            ("haltkick: a=inf x", "no finite decimal number"),
            ("haltkick: a=nan x", "no finite decimal number"),
            ("haltkick: a=1e999 x", "no finite decimal number"),
            ("haltkick: a= x", "no finite decimal number"),
            ("haltkick: a=0x10 x", "no finite decimal number"),
            ("haltkick: a=1 x y", "a unit that is not one word"),
            ("haltkick: a=1 \u{b5}s", "a unit that is not one word"),
            ("haltkick: =1 x", "a name that is not"),
            ("haltkick: A=1 x", "a name that is not"),
            ("haltkick: a.b=1 x", "a name that is not"),
            ("haltkick: lock_event.=1 x", "a name that is not"),
            ("haltkick: lock_event.a/b=1 x", "a name that is not"),
            (long_name.as_str(), "a name that is not"),
            (long_unit.as_str(), "a unit that is not one word"),
            (long_line.as_str(), "bytes, where"),
        ] {
            let heard = heard(&[line]);
            assert_eq!((heard.refused, heard.figures.len()), (1, 0), "{line}");
            assert!(heard.reasons[0].contains(reason), "{line}: {:?}", heard.reasons);
        }
    }

    #[test]
    fn a_guest_that_prints_without_end_fills_no_memory() {
        let mut heard = Heard::default();
        for number in 0..10 * MOST_FIGURES {
            heard.hear(&format!("haltkick: lock_event.e{number}=1 count"));
            heard.hear(&format!("haltkick: f{number}=1 count"));
            heard.hear("haltkick: never right");
        }
        assert_eq!(heard.figures.len(), MOST_FIGURES);
        assert_eq!(heard.reasons.len(), MOST_TOLD);
        assert_eq!(heard.refused as usize, (20 * MOST_FIGURES - MOST_FIGURES) + 10 * MOST_FIGURES);
        heard.hear("haltkick: f0=2 count");
        assert_eq!(heard.figures["f0"].0, 2.0, "what is known has room");
    }

    fn seeds() -> Vec<Vec<u8>> {
        [&b"page-loop=123.5 ops/s"[..], b"pv_kick_wake=17 count\nx=1e-3 s", b"1 x"].map(<[u8]>::to_vec).into()
    }

    /// Whatever comes, what is kept can be written as JSON and is within its bounds.
    fn execute(bytes: &[u8]) {
        let mut heard = Heard::default();
        for line in bytes.split(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(line);
            heard.hear(&line);
            heard.hear(&format!("{PREFIX}{line}"));
            heard.hear(&format!("{PREFIX}a={line}"));
            heard.hear(&format!("{PREFIX}{LOCK_EVENT}{line}"));
        }
        for (name, (value, unit)) in &heard.figures {
            check_name(name.strip_prefix(LOCK_EVENT).unwrap_or(name)).unwrap();
            assert!(value.is_finite() && unit.len() <= LONGEST_UNIT);
        }
        assert!(heard.reasons.len() <= MOST_TOLD);
    }

    #[test]
    fn fuzz_any_console_leaves_figures_within_their_bounds() {
        Target { name: "console", most_bytes: 512, seeds, execute }.run();
    }
}
