//! Lines of a guest's console, and the result of a run with it: figures, in lines `haltkick: name=value unit`, or the record of a
//! workload inside a Linux guest, in parts:
//!
//! ```text
//! haltkick-inside| part of the record
//! haltkick-inside: exit code 0 after 12345 bytes
//! ```
//! Other lines may come in between, such as the kernel's. The guest is not trusted: whatever it prints, what is kept is bounded. A line that
//! is too long, or of another form, is refused and counted, and so is a figure beyond the most that there may be; a record that is not
//! whole is none. A name that comes again has the new value: a program that prints as it goes is heard to its end.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use haltkick_vmm::{Found, printable};

use crate::record::figures::{LOCK_EVENT, check_name};
use crate::record::{Record, Warning};
use crate::results::directory::read_record;
use crate::text::exit::Exit;

/// Beginning of a line that tells a figure.
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

/// Beginning of all lines of a workload inside.
const LINE: &str = "haltkick-inside";
const PART: &str = "haltkick-inside| ";
const EXIT: &str = "haltkick-inside: exit code ";
/// Bytes of a part, which consoles pass on in one piece.
const LONGEST_PART: usize = 1024;
/// Warnings of a record that are kept, and characters of each.
const MOST_WARNINGS: usize = 16;
const LONGEST_WARNING: usize = 512;
/// Longest record that is read: ten times that of the largest run.
pub(crate) const MOST_BYTES: usize = 8 << 20;

/// Lines of the first process at its end, for the output of the workload and its exit code.
pub(crate) fn lines(output: &str, exit: i32) -> String {
    // Between the values of JSON an end of line says nothing, and within one there is none.
    let record: String = output.lines().collect();
    // The last line of the workload may be open, such as one that shows its progress.
    let mut text = String::from("\n");
    let mut rest = record.as_str();
    while !rest.is_empty() {
        let end = (1..=LONGEST_PART.min(rest.len())).rev().find(|end| rest.is_char_boundary(*end));
        let (part, behind) = rest.split_at(end.unwrap_or(rest.len()));
        _ = writeln!(text, "{PART}{part}");
        rest = behind;
    }
    _ = writeln!(text, "{EXIT}{exit} after {} bytes", record.len());
    text
}

/// Whether a line is one of a workload inside, and so none for people.
pub(crate) fn is_ours(line: &str) -> bool {
    line.starts_with(LINE)
}

/// A workload's record as far as it has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    record: String,
    /// The workload's exit code and the length of its record, by the last line that said so.
    end: Option<(i32, usize)>,
}

impl Told {
    pub(crate) fn hear(&mut self, line: &str) {
        if let Some(part) = line.strip_prefix(PART) {
            if self.record.len() <= MOST_BYTES {
                self.record.push_str(part);
            }
        } else if let Some(said) = line.strip_prefix(EXIT) {
            let said = said.strip_suffix(" bytes").and_then(|said| said.split_once(" after "));
            self.end = said.and_then(|(exit, bytes)| Some((exit.parse().ok()?, bytes.parse().ok()?)));
        }
    }

    /// The record, if the workload ended well; else the reason.
    pub(crate) fn end(&self) -> Result<Record, String> {
        let came = self.record.len();
        if came > MOST_BYTES {
            return Err(format!("the record has more than {} MiB", MOST_BYTES >> 20));
        }
        match self.end {
            None => return Err("it did not say how it ended".into()),
            Some((_, bytes)) if bytes != came => {
                return Err(format!("the record is not whole: {came} bytes of it came"));
            }
            Some((exit, _)) if exit != Exit::Done as i32 && exit != Exit::Untrusted as i32 => {
                return Err(format!("it ended with exit code {exit}: its console says why"));
            }
            Some((_, 0)) => return Err("it printed no record".into()),
            Some(_) => {}
        }
        let mut record =
            read_record(&self.record).map_err(|reason| format!("its record cannot be read: {reason}"))?;
        bound(&mut record.warnings);
        Ok(record)
    }
}

/// Leaves as many warnings as people read: they are printed, and copied.
fn bound(warnings: &mut Vec<Warning>) {
    let left_out = warnings.len().saturating_sub(MOST_WARNINGS);
    warnings.truncate(MOST_WARNINGS);
    for text in warnings.iter_mut().flat_map(|it| [&mut it.code, &mut it.message]) {
        *text = printable(&text.chars().take(LONGEST_WARNING).collect::<String>());
    }
    if left_out > 0 {
        let message = format!("{left_out} more warnings are left out");
        warnings.push(Warning { code: "more-warnings".into(), message });
    }
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
    use serde_json::json;

    use super::*;
    use crate::measure::fuzzed::{good, record_of};
    use crate::text::output::to_json;

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
        let figures = heard.figures.iter().map(|(name, (value, unit))| (&**name, *value, &**unit));
        let page_loop = ("page-loop", 123.5, "ops/s");
        let kicks = ("lock_event.pv_kick_wake", 17.0, "count");
        assert_eq!(Vec::from_iter(figures), [kicks, page_loop, ("wait_p99", 2500.0, "ns")]);
        assert_eq!((heard.refused, heard.reasons.len()), (0, 0));
        let heard = self::heard(&["haltkick: a=1 x", "haltkick: a=2 x", "haltkick: a=broken x"]);
        assert_eq!(heard.figures["a"], (2.0, "x".into()));
        assert_eq!(heard.refused, 1);
    }

    #[test]
    fn what_is_no_figure_is_refused_with_a_reason() {
        let [long_name, long_line] = [65, LONGEST_LINE].map(|length| "a".repeat(length) + "=1 x");
        let long_unit = format!("a=1 {}", "x".repeat(LONGEST_UNIT + 1));
        for (texts, reason) in [
            ("|a|a=1|a=1 ", "not name=value unit"),
            ("a=inf x|a=nan x|a=1e999 x|a= x|a=0x10 x", "no finite decimal number"),
            ("a=1 x y|a=1 \u{b5}s", "a unit that is not one word"),
            ("=1 x|A=1 x|a.b=1 x|lock_event.=1 x|lock_event.a/b=1 x", "a name that is not"),
            (&long_name, "a name that is not"),
            (&long_unit, "a unit that is not one word"),
            (&long_line, "bytes, where"),
        ] {
            for text in texts.split('|') {
                let heard = heard(&[&format!("haltkick: {text}")]);
                assert_eq!((heard.refused, heard.figures.len()), (1, 0), "{text}");
                assert!(heard.reasons[0].contains(reason), "{text}: {:?}", heard.reasons);
            }
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

    fn good_record() -> String {
        to_json(&record_of(&good(), Ok(1e6))).unwrap()
    }

    fn told(text: &str) -> Result<Record, String> {
        let mut told = Told::default();
        text.lines().for_each(|line| told.hear(line));
        told.end()
    }

    #[test]
    fn a_record_comes_back_whole_from_between_and_behind_other_lines() {
        let written = good_record();
        let pretty =
            serde_json::to_string_pretty(&serde_json::from_str::<serde_json::Value>(&written).unwrap());
        for output in [written.clone(), pretty.unwrap()] {
            let text = lines(&output, 0).replace('\n', "\n[    1.0] eth0: link is up\n");
            assert!(text.lines().count() > 8 && text.lines().all(|line| line.len() < 2 * LONGEST_PART));
            assert_eq!(to_json(&told(&text).unwrap()).unwrap(), written);
        }
        let micro = json!("\u{b5}".repeat(2 * LONGEST_PART)).to_string();
        let parts: String = lines(&micro, 7).lines().filter_map(|line| line.strip_prefix(PART)).collect();
        assert_eq!(parts, micro, "a character of two bytes is not torn");
        assert!(told(&format!("user space\n\r99 %{}", lines(&good_record(), 0))).is_ok());
    }

    #[test]
    fn a_record_that_is_not_whole_is_refused_with_a_reason() {
        let good = lines(&good_record(), 0);
        let without =
            |words: &str| good.lines().filter(|line| !line.starts_with(words)).collect::<Vec<_>>().join("\n");
        let mut torn: Vec<&str> = good.lines().collect();
        torn.remove(2);
        let huge = format!("{PART}{}\n", "x".repeat(LONGEST_PART)).repeat(9 << 10);
        for (text, reason) in [
            (String::new(), "it did not say how it ended"),
            (without(EXIT), "it did not say how it ended"),
            (without(PART), "the record is not whole: 0 bytes"),
            (torn.join("\n"), "the record is not whole"),
            (good.replacen("1", "11", 1), "the record is not whole"),
            (good.clone() + &good, "the record is not whole"),
            (good.replace(" bytes", ""), "it did not say how it ended"),
            (good.replace("code 0", "code x"), "it did not say how it ended"),
            (huge, "the record has more than 8 MiB"),
            (lines(&good_record(), 2), "it ended with exit code 2"),
            (lines("", 5), "it ended with exit code 5"),
            (lines("", 0), "it printed no record"),
            (
                lines("{\"schema\": \"haltkick.summary\", \"schema_version\": 2}", 0),
                "schema is 'haltkick.summary', not 'haltkick.run'",
            ),
            (lines(&(good_record() + &good_record()), 0), "its record cannot be read: no JSON"),
            (lines(&"[".repeat(100_000), 0), "its record cannot be read: no JSON"),
        ] {
            let found = told(&text).map(|_| ()).unwrap_err();
            assert!(found.contains(reason), "{reason}: {found}");
        }
        assert!(told(&lines(&good_record(), 7)).is_ok(), "a run that is not valid has a record");
    }

    #[test]
    fn warnings_without_end_are_cut_short() {
        let mut record = record_of(&good(), Ok(1e6));
        let warning = Warning { code: "c".repeat(2_000), message: "\u{b5}\u{1b}".repeat(2_000) };
        record.warnings = vec![warning; 100];
        let found = told(&lines(&to_json(&record).unwrap(), 7)).unwrap().warnings;
        assert_eq!((found.len(), &*found[16].message), (17, "84 more warnings are left out"));
        for Warning { code, message } in &found {
            assert!(code.len() <= 512 && message.chars().count() <= 512 * 8, "{message}");
            assert!(!message.contains('\u{1b}'), "no commands for the terminal: {message}");
        }
        record.warnings.truncate(16);
        assert_eq!(told(&lines(&to_json(&record).unwrap(), 7)).unwrap().warnings.len(), 16);
    }

    fn seeds() -> Vec<Vec<u8>> {
        let whole = format!("{PART}{{}}\n{EXIT}0 after 2 bytes");
        let figures = ["page-loop=123.5 ops/s", "pv_kick_wake=17 count\nx=1e-3 s", "1 x"];
        figures.into_iter().chain(["0\n", &whole]).map(|text| text.as_bytes().to_vec()).collect()
    }

    /// Whatever comes, what is kept can be written as JSON and is within its bounds; a record is whole, or there is a reason of one line.
    fn execute(bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let mut heard = Heard::default();
        for line in text.split('\n') {
            heard.hear(line);
            heard.hear(&format!("{PREFIX}{line}"));
            heard.hear(&format!("{PREFIX}a={line}"));
            heard.hear(&format!("{PREFIX}{LOCK_EVENT}{line}"));
        }
        for (name, (value, unit)) in &heard.figures {
            check_name(name.strip_prefix(LOCK_EVENT).unwrap_or(name)).unwrap();
            assert!(value.is_finite() && unit.len() <= LONGEST_UNIT);
        }
        assert!(heard.reasons.len() <= MOST_TOLD);
        for text in [text.to_string(), format!("{PART}{text}"), lines(&text, 0)] {
            match told(&text) {
                Ok(record) => drop(to_json(&record).expect("what was read can be written")),
                Err(reason) => assert_eq!(reason.lines().count(), 1, "{reason}"),
            }
        }
    }

    #[test]
    fn fuzz_any_console_leaves_figures_and_records_within_their_bounds() {
        Target { name: "console", most_bytes: 512, seeds, execute }.run();
    }
}
