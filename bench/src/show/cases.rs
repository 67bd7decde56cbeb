//! Results of a test for programs that run tests: KTAP, which kernels' test runners read, and JUnit's XML.

use std::fmt::Write as _;

use clap::ValueEnum;

use crate::show::svg::escape;
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
            let name = in_line(name);
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
        if let Some(nothing) = self.nothing() {
            let _ = writeln!(text, "# {nothing}");
        }
        text
    }

    /// A sentence if no test was made: that none failed is no success then.
    fn nothing(&self) -> Option<String> {
        let is_skipped = |(_, ending): &(String, Ending)| matches!(ending, Ending::Skipped(_));
        let all = self.0.len();
        self.0.iter().all(is_skipped).then(|| format!("nothing is known: all {all} tests were skipped"))
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
        if let Some(nothing) = self.nothing() {
            let _ = writeln!(text, "  <system-err>{nothing}</system-err>");
        }
        text + "</testsuite>\n"
    }
}

/// A name in a line of KTAP, where a number sign begins a directive: no two names become one.
fn in_line(name: &str) -> String {
    let letter = |letter: char| match letter {
        '#' | '\\' => format!("\\{letter}"),
        letter if letter.is_control() => letter.escape_unicode().to_string(),
        letter => letter.into(),
    };
    name.chars().map(letter).collect()
}

/// Text inside an attribute of XML, which takes few control characters, and these as references.
fn escaped(text: &str) -> String {
    let letter = |letter: char| match letter {
        '\t' | '\n' | '\r' => format!("&#{};", u32::from(letter)),
        letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => {
            letter.escape_unicode().to_string()
        }
        letter => letter.into(),
    };
    escape(text).chars().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ktap_and_junit_have_all_cases_and_their_reasons() {
        let mut cases = Cases::default();
        cases.plan(["one", "two #2", "three", "four"].into_iter());
        let nothing = "nothing is known: all 4 tests were skipped";
        assert!(cases.ktap().ends_with(&format!("# {nothing}\n")), "{}", cases.ktap());
        assert!(cases.junit("s").contains(&format!("<system-err>{nothing}</system-err>")));
        cases.passed("one");
        cases.failed("two #2", "a <b> & \"c\"\nd");
        cases.passed("two #2");
        cases.skipped("three", "no KVM");
        assert_eq!(
            cases.ktap(),
            "KTAP version 1\n1..4\nok 1 one\n# a <b> & \"c\"\n# d\nnot ok 2 two \\#2\nok 3 three # SKIP no KVM\nok 4 four # SKIP not reached\n"
        );
        let text = cases.junit("s");
        assert!(text.contains("tests=\"4\" failures=\"1\" skipped=\"2\""), "{text}");
        assert!(text.contains("message=\"a &lt;b&gt; &amp; &quot;c&quot;&#10;d\""), "{text}");
        assert!(!text.contains("nothing is known"), "{text}");
    }

    #[test]
    fn names_that_differ_stay_apart_in_every_format() {
        let names =
            ["a#1", "a1", "a\\#1", "a\\1", "a b", "a\tb", "a\nb", "a\\nb", "a<1", "a&lt;1", "a\u{1}", "a"];
        let mut cases = Cases::default();
        names.iter().for_each(|name| cases.passed(name));
        let (ktap, junit) = (cases.ktap(), cases.junit("s"));
        let of_lines = ktap.lines().filter_map(|line| line.strip_prefix("ok ")?.split_once(' '));
        let of_ktap: BTreeSet<&str> = of_lines.map(|(_, name)| name).collect();
        let of_junit: BTreeSet<&str> = junit.lines().filter(|line| line.contains("<testcase")).collect();
        assert_eq!((of_ktap.len(), of_junit.len()), (names.len(), names.len()), "{ktap}{junit}");
        assert!(of_ktap.iter().all(|name| !name.replace("\\#", "").contains('#')), "{ktap}");
    }
}
