//! Results of a test for programs that run tests: KTAP, which kernels' test runners read, and JUnit's XML.

use std::fmt::Write as _;

use clap::ValueEnum;

use crate::text::exit::Result;
use crate::text::output;

/// How to print verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerdictFormat {
    /// For people
    Table,
    /// A line for each test, as kernels' test runners read them
    Ktap,
    /// XML, as most CI systems read it
    Junit,
}

/// Ending of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ending {
    Passed,
    Failed(String),
    Skipped(String),
}

/// Tests by name, in the order in which they were planned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cases(Vec<(String, Ending)>);

impl Cases {
    /// Tests that are to be made, and count as skipped until they are.
    pub(crate) fn plan<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        self.0.extend(names.map(|name| (name.to_owned(), Ending::Skipped("not reached".into()))));
    }

    /// Notes a success: a failure of the same test stays.
    pub(crate) fn passed(&mut self, name: &str) {
        self.note(name, Ending::Passed);
    }

    pub(crate) fn failed(&mut self, name: &str, reason: &str) {
        self.note(name, Ending::Failed(reason.into()));
    }

    pub(crate) fn skipped(&mut self, name: &str, reason: &str) {
        self.note(name, Ending::Skipped(reason.into()));
    }

    fn note(&mut self, name: &str, ending: Ending) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, Ending::Failed(_))) => {}
            Some((_, known)) => *known = ending,
            None => self.0.push((name.into(), ending)),
        }
    }

    /// Prints them; whether the caller prints its text for people instead.
    pub(crate) fn print(&self, suite: &str, format: VerdictFormat) -> Result<bool> {
        match format {
            VerdictFormat::Table => return Ok(true),
            VerdictFormat::Ktap => output::data(&self.ktap())?,
            VerdictFormat::Junit => output::data(&self.junit(suite))?,
        }
        Ok(false)
    }

    /// KTAP, version 1.
    pub(crate) fn ktap(&self) -> String {
        let mut text = format!("KTAP version 1\n1..{}\n", self.0.len());
        for (number, (name, ending)) in (1..).zip(&self.0) {
            // A number sign begins a directive.
            let name = name.replace('#', "").replace('\n', " ");
            let _ = match ending {
                Ending::Passed => writeln!(text, "ok {number} {name}"),
                Ending::Skipped(reason) => {
                    writeln!(text, "ok {number} {name} # SKIP {}", reason.replace('\n', " "))
                }
                Ending::Failed(reason) => {
                    let lines: String = reason.lines().map(|line| format!("# {line}\n")).collect();
                    writeln!(text, "{lines}not ok {number} {name}")
                }
            };
        }
        text
    }

    /// XML as JUnit's report has it.
    fn junit(&self, suite: &str) -> String {
        let count = |of: fn(&Ending) -> bool| self.0.iter().filter(|(_, ending)| of(ending)).count();
        let mut text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">\n",
            escaped(suite),
            self.0.len(),
            count(|ending| matches!(ending, Ending::Failed(_))),
            count(|ending| matches!(ending, Ending::Skipped(_))),
        );
        for (name, ending) in &self.0 {
            let inner = match ending {
                Ending::Passed => String::new(),
                Ending::Failed(reason) => format!("<failure message=\"{}\"/>", escaped(reason)),
                Ending::Skipped(reason) => format!("<skipped message=\"{}\"/>", escaped(reason)),
            };
            let _ = writeln!(
                text,
                "  <testcase classname=\"haltkick\" name=\"{}\">{inner}</testcase>",
                escaped(name)
            );
        }
        text + "</testsuite>\n"
    }
}

/// Text inside an attribute of XML, which takes no control characters.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            letter if letter.is_control() => safe.push(' '),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases() -> Cases {
        let mut cases = Cases::default();
        cases.plan(["one", "two #2", "three", "four"].into_iter());
        cases.passed("one");
        cases.failed("two #2", "a <b> & \"c\"\nd");
        cases.passed("two #2");
        cases.skipped("three", "no KVM");
        cases
    }

    #[test]
    fn ktap_has_a_plan_skips_and_reasons() {
        assert_eq!(
            cases().ktap(),
            "KTAP version 1\n1..4\nok 1 one\n# a <b> & \"c\"\n# d\nnot ok 2 two 2\nok 3 three # SKIP no KVM\nok 4 four # SKIP not reached\n"
        );
    }

    #[test]
    fn junit_counts_failures_and_escapes_them() {
        let text = cases().junit("s");
        assert!(text.contains("tests=\"4\" failures=\"1\" skipped=\"2\""), "{text}");
        assert!(text.contains("message=\"a &lt;b&gt; &amp; &quot;c&quot; d\""), "{text}");
    }
}
