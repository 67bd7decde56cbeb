//! Output of a test program with `--format json`: a line for each event, and between them the output of tests.

use serde::Deserialize;

use crate::history::Verdict;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Started(String),
    Ended(String, Verdict),
    /// A CPU of the machine stood still, which its tests notice; see vmm/tests/support/src/stalls.rs.
    StoodStill {
        cpu: u32,
        ms: u64,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line {
    Test { event: String, name: String, stdout: Option<String> },
    Machine { cpu: u32, ms: u64 },
}

/// The event of a line, if it holds one. A test that prints no line break at its end has its words before the event.
pub(crate) fn event(line: &str) -> Option<Event> {
    let line = &line[line.find("{ \"type\": \"")?..];
    let (event, name, stdout) = match serde_json::from_str(line).ok()? {
        Line::Test { event, name, stdout } => (event, name, stdout),
        Line::Machine { cpu, ms } => return Some(Event::StoodStill { cpu, ms }),
    };
    Some(match event.as_str() {
        "started" => Event::Started(name),
        "ok" => Event::Ended(name, Verdict::Passed),
        "failed" => Event::Ended(name, Verdict::Failed(plain(stdout.as_deref().unwrap_or_default()))),
        "ignored" => Event::Ended(name, Verdict::Ignored),
        _ => return None,
    })
}

/// Returns the test's output, without what the program puts around it.
fn plain(stdout: &str) -> String {
    let told = stdout.strip_prefix("Error: \"").and_then(|told| told.strip_suffix("\"\n"));
    told.unwrap_or(stdout).trim_end().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_program_is_an_event() {
        let started = r#"{ "type": "test", "event": "started", "name": "mutex/packed_pv_excludes" }"#;
        assert_eq!(event(started), Some(Event::Started("mutex/packed_pv_excludes".into())));
        let passed = r#"{ "type": "test", "name": "a", "event": "ok" }"#;
        assert_eq!(event(passed), Some(Event::Ended("a".into(), Verdict::Passed)));
        let ignored = r#"{ "type": "test", "name": "a", "event": "ignored" }"#;
        assert_eq!(event(ignored), Some(Event::Ended("a".into(), Verdict::Ignored)));
    }

    #[test]
    fn a_failure_keeps_what_the_test_said() {
        let failed = r#"{ "type": "test", "name": "a", "event": "failed", "stdout": "Error: \"no \"progress\":\nvCPU 3\"\n" }"#;
        let told = "no \"progress\":\nvCPU 3".to_string();
        assert_eq!(event(failed), Some(Event::Ended("a".into(), Verdict::Failed(told))));
    }

    #[test]
    fn printed_text_neither_is_an_event_nor_hides_one() {
        assert_eq!(event("2 guests ok"), None);
        assert_eq!(event(r#"{ "type": "suite", "event": "ok", "passed": 3 }"#), None);
        assert_eq!(event(r#"{ "type": "test", "event": "sta"#), None, "a machine that died in mid-line");
        let still = r#"{ "type": "machine", "event": "still", "cpu": 1, "ms": 900 }"#;
        assert_eq!(event(still), Some(Event::StoodStill { cpu: 1, ms: 900 }));
        let behind = r#"half a line { "type": "test", "name": "a", "event": "ok" }"#;
        assert_eq!(event(behind), Some(Event::Ended("a".into(), Verdict::Passed)));
    }
}
