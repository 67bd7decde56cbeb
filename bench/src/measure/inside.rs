//! Lines by which a workload inside a Linux guest gives its record to the console, and their reader.
//!
//! ```text
//! haltkick-inside| part of the record
//! haltkick-inside: exit code 0 after 12345 bytes
//! ```
//! Other lines may come in between, such as the kernel's. The guest is not trusted: whatever it prints, what is kept is bounded, and a
//! record that is not whole is none.

use std::fmt::Write as _;

use haltkick_vmm::printable;

use crate::record::{Record, Warning};
use crate::results::directory::read_record;
use crate::text::exit::Exit;

/// How all of these lines begin.
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

/// Whether a line is one of these, and so none for people.
pub(crate) fn is_ours(line: &str) -> bool {
    line.starts_with(LINE)
}

/// A workload's record as far as it has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    record: String,
    /// The workload's exit code, once it and its record have ended.
    exit: Option<i32>,
    /// The first thing that was wrong. Nothing is listened to after it.
    fault: Option<String>,
}

impl Told {
    pub(crate) fn hear(&mut self, line: &str) {
        if self.fault.is_none()
            && let Err(fault) = self.take(line)
        {
            *self = Self { fault: Some(fault), ..Self::default() };
        }
    }

    fn take(&mut self, line: &str) -> Result<(), String> {
        if let Some(part) = line.strip_prefix(PART) {
            if self.exit.is_some() {
                return Err("a part of the record came after its end".into());
            }
            if self.record.len() + part.len() > MOST_BYTES {
                return Err(format!("the record has more than {} MiB", MOST_BYTES >> 20));
            }
            self.record.push_str(part);
        } else if let Some(said) = line.strip_prefix(EXIT) {
            let said = said.strip_suffix(" bytes").and_then(|said| said.split_once(" after "));
            let (exit, bytes) = said.ok_or("its last line is cut off")?;
            let exit = exit.parse().map_err(|_| "its exit code is no number")?;
            if bytes.parse::<usize>() != Ok(self.record.len()) {
                return Err(format!("the record is not whole: {} bytes of it came", self.record.len()));
            }
            if self.exit.replace(exit).is_some() {
                return Err("it ended twice".into());
            }
        }
        Ok(())
    }

    /// The record, if the workload ended well; else the reason.
    pub(crate) fn end(&self) -> Result<Record, String> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        match self.exit {
            Some(exit) if exit == Exit::Done as i32 || exit == Exit::Untrusted as i32 => {}
            Some(exit) => return Err(format!("it ended with exit code {exit}: its console says why")),
            None => return Err("it did not say how it ended".into()),
        }
        if self.record.is_empty() {
            return Err("it printed no record".into());
        }
        let mut record = read_record(&self.record)
            .map_err(|(reason, _)| format!("its record cannot be read: {reason}"))?;
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

#[cfg(test)]
mod tests {
    use haltkick_fuzzing::Target;
    use serde_json::json;

    use super::*;
    use crate::measure::fuzzed::{good, record_of};
    use crate::text::output::to_json;

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
        let end = good.lines().last().unwrap();
        for (text, reason) in [
            (String::new(), "it did not say how it ended"),
            (without(EXIT), "it did not say how it ended"),
            (without(PART), "the record is not whole: 0 bytes"),
            (torn.join("\n"), "the record is not whole"),
            (good.replacen("1", "11", 1), "the record is not whole"),
            (good.clone() + &good, "after its end"),
            (format!("{good}{end}"), "it ended twice"),
            (good.replace(" bytes", ""), "its last line is cut off"),
            (good.replace("code 0", "code x"), "its exit code is no number"),
            (huge, "the record has more than 8 MiB"),
            (lines(&good_record(), 2), "it ended with exit code 2"),
            (lines("", 5), "it ended with exit code 5"),
            (lines("", 0), "it printed no record"),
            (lines("{\"schema\": \"haltkick.summary\", \"schema_version\": 2}", 0), "this is no run record"),
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
        vec![b"0\n".to_vec(), format!("{PART}{{}}\n{EXIT}0 after 2 bytes").into_bytes()]
    }

    /// Whatever comes, a record is whole and can be written, or there is a reason of one line.
    fn execute(bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        for text in [text.to_string(), format!("{PART}{text}"), lines(&text, 0)] {
            match told(&text) {
                Ok(record) => drop(to_json(&record).expect("what was read can be written")),
                Err(reason) => assert_eq!(reason.lines().count(), 1, "{reason}"),
            }
        }
    }

    #[test]
    fn fuzz_any_lines_of_a_workload_inside_are_heard() {
        Target { name: "inside", most_bytes: 512, seeds, execute }.run();
    }
}
