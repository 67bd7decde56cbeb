//! `flakes.toml`: the flakes and skips that are known, how many are borne, and what is made of a suite's results.

use serde::Deserialize;

use crate::suite::{Results, Test};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Flakes {
    /// Number of machines that may die or hang in a suite.
    pub(crate) machines_die_at_most: usize,
    /// Number of tests that may be flaky in a suite.
    flaky_at_most: usize,
    /// Number of flaky tests without an entry among them: each is told, and wants its entry.
    unknown_at_most: usize,
    /// Tests that cannot be made in an emulated machine.
    #[serde(default)]
    not_tested: Vec<String>,
    /// Tests that are known to fail in one machine and pass in another.
    #[serde(default)]
    flaky: Vec<Entry>,
    /// Tests that show nothing in an emulated machine that others do not: they are run there only on request (`--all`).
    #[serde(default)]
    repeats: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The name of a test; `*` stands for anything.
    tests: String,
    /// Except these.
    #[serde(default)]
    but: Vec<String>,
    /// Text of the failures that are known.
    #[serde(default)]
    told: String,
    reason: String,
}

impl Entry {
    fn is_of(&self, test: &str) -> bool {
        matches(&self.tests, test) && !self.but.iter().any(|but| matches(but, test))
    }
}

impl Flakes {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| format!("flakes.toml: {error}"))
    }

    /// Takes those tests out that repeat others, and says how many of each entry.
    pub(crate) fn leave_out(&self, tests: &mut Vec<(usize, String)>) -> Vec<String> {
        let left_out = |repeat: &Entry| {
            let all = tests.len();
            tests.retain(|(_, test)| !repeat.is_of(test));
            let Entry { tests: pattern, reason, .. } = repeat;
            format!("left out, --all runs them: {} tests {pattern}: {reason}", all - tests.len())
        };
        self.repeats.iter().map(left_out).collect()
    }

    /// The first pattern that no test has.
    pub(crate) fn idle(&self, tests: &[(usize, String)]) -> Option<&str> {
        let entries = self.flaky.iter().chain(&self.repeats).map(|entry| &entry.tests);
        entries
            .chain(&self.not_tested)
            .find(|pattern| !tests.iter().any(|(_, test)| matches(pattern, test)))
            .map(String::as_str)
    }

    /// The end of what the suite says: each test that did not simply pass, what stands against the suite, and counts. Returns how many
    /// tests passed, unless something stands against it.
    pub(crate) fn conclude(&self, results: &Results, say: &dyn Fn(String)) -> Option<usize> {
        let mut failed = vec![];
        let (mut passed, mut flaky, mut unknown) = (0, 0, 0);
        for test @ Test { name, .. } in &results.tests {
            passed += usize::from(test.passed);
            match (test.passed, test.failures.is_empty()) {
                (true, true) => {}
                (true, false) => {
                    flaky += 1;
                    let known = self.reason(test).unwrap_or_else(|| {
                        unknown += 1;
                        "NOT KNOWN: find out why, or put it into flakes.toml with the reason"
                    });
                    say(format!("flaky: {name}: {}\n    {known}", told(&test.failures)));
                }
                (false, false) => failed.push(format!("{name} failed: {}", told(&test.failures))),
                (false, true) if test.ignored && self.not_tested.contains(name) => {
                    say(format!("not tested, as is known: {name}"));
                }
                (false, true) if test.ignored => failed.push(format!("{name} was skipped in the machine")),
                (false, true) => {
                    let why = results.given_up.as_ref().into_iter().chain(&test.deaths);
                    let why = why.map(String::as_str).collect::<Vec<_>>().join("; ");
                    failed.push(format!("{name} was not tested: {why}"));
                }
            }
        }
        results
            .deaths
            .iter()
            .for_each(|death| say(format!("machine died: {}", death.lines().next().unwrap_or(""))));
        let deaths = results.deaths.len();
        for (what, seen, most) in [
            ("machines died or hung", deaths, self.machines_die_at_most),
            ("tests were flaky", flaky, self.flaky_at_most),
            ("tests were flaky that flakes.toml does not know", unknown, self.unknown_at_most),
        ] {
            if seen > most {
                failed.push(format!("{seen} {what}, at most {most} are borne"));
            }
        }
        if passed == 0 {
            failed.push("nothing was tested".into());
        }
        failed.iter().for_each(|failure| say(format!("FAILED: {failure}")));
        let (tests, machines) = (results.tests.len(), results.machines);
        say(format!(
            "{tests} tests: {passed} passed, {flaky} of them flaky; {machines} machines, {deaths} died or hung"
        ));
        failed.is_empty().then_some(passed)
    }

    /// The reason for which a test is known to be flaky, if all of its failures are known.
    fn reason(&self, test: &Test) -> Option<&str> {
        let is_known = |flake: &Entry| test.failures.iter().all(|failure| failure.contains(&flake.told));
        let knows = |flake: &&Entry| flake.is_of(&test.name) && is_known(flake);
        self.flaky.iter().find(knows).map(|flake| flake.reason.as_str())
    }
}

fn told(failures: &[String]) -> String {
    failures.iter().map(|told| format!("\n    {}", told.trim_end().replace('\n', "\n    "))).collect()
}

/// Whether a pattern, in which `*` stands for anything, is that of the name.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(start) else {
        return false;
    };
    (0..=name.len()).filter(|at| name.is_char_boundary(*at)).any(|at| matches(rest, &name[at..]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;
    use crate::group::{Group, guests};
    use crate::suite::{self, End, Event, Kind};

    /// Report of the suite about tests `a`, `b` and so on, in machines in which the letters of a script say what a test does, one letter
    /// in each: p passes, f fails, i is skipped, d dies, c ends the program.
    fn said(scripts: &str) -> String {
        let scripts = scripts.split(' ').map(|does| does.as_bytes().to_vec());
        let scripts: BTreeMap<_, _> = ('a'..).map(|name| name.to_string()).zip(scripts).collect();
        let tests = scripts.keys().map(|name| (0, name.clone())).collect();
        let scripts = Mutex::new(scripts);
        let machine = |_: &Group, tests: &[String], tell: &mut dyn FnMut(Event)| {
            for test in tests {
                let mut tell = |kind| tell(Event { kind, name: test.clone(), stdout: "no".into() });
                tell(Kind::Started);
                let mut scripts = scripts.lock().unwrap();
                let script = scripts.get_mut(test).unwrap();
                match if script.len() > 1 { script.remove(0) } else { script[0] } {
                    b'p' => tell(Kind::Ok),
                    b'f' => tell(Kind::Failed),
                    b'i' => tell(Kind::Ignored),
                    b'd' => return End::Died("it hung".into()),
                    _ => return End::Program(139),
                }
            }
            End::Program(0)
        };
        let flakes =
            "machines-die-at-most = 3\nflaky-at-most = 2\nunknown-at-most = 1\nnot-tested = [\"c\"]\n
            [[flaky]]\ntests = \"a*\"\ntold = \"no\"\nreason = \"as is known\"";
        let flakes = Flakes::parse(flakes).unwrap();
        let minute = Duration::from_secs(60);
        let most = flakes.machines_die_at_most;
        let results = suite::run(&[guests()], tests, &machine, most, 1, minute, &|_| {});
        let said = Mutex::new(String::new());
        let passed = flakes.conclude(&results, &|line| *said.lock().unwrap() += &format!("{line}\n"));
        format!("{}passed: {passed:?}", said.into_inner().unwrap())
    }

    #[test]
    fn failures_deaths_flakes_and_skips_are_told_and_judged() {
        for (scripts, expected) in [
            ("p p", "2 tests: 2 passed, 0 of them flaky; 1 machines, 0 died or hung\npassed: Some(2)"),
            ("p f p", "FAILED: b failed: \n    no\n    no\n    no\n3 tests: 2 passed"),
            ("p c", "b failed: \n    the test program ended with code 139 during it\n"),
            // A failure that is followed by a pass is a flake, a death is none.
            ("fp p", "flaky: a: \n    no\n    as is known\n2 tests: 2 passed, 1 of them flaky"),
            ("p fp", "    NOT KNOWN: find out why"),
            ("p fp", "passed: Some(2)"),
            ("p fp fp", "FAILED: 2 tests were flaky that flakes.toml does not know, at most 1 are borne"),
            ("p dp p", "machine died: guests, during b: it hung\n3 tests: 3 passed"),
            ("p d p", "FAILED: b was not tested: it hung; it hung; it hung\n3 tests: 2 passed"),
            ("d d", "FAILED: 4 machines died or hung, at most 3 are borne"),
            ("d d", "FAILED: nothing was tested"),
            ("p i", "FAILED: b was skipped in the machine"),
            ("p p i", "not tested, as is known: c\n"),
        ] {
            let said = said(scripts);
            assert!(said.contains(expected), "{scripts:?} says no {expected:?}:\n{said}");
        }
    }

    #[test]
    fn the_file_of_this_repository_is_read_and_stars_stand_for_anything() {
        Flakes::parse(include_str!("flakes.toml")).unwrap();
        assert!(matches("*", "") && matches("a*c", "abbc") && matches("a*b*", "axbx"));
        assert!(!matches("a", "ab") && !matches("a*c", "ab") && !matches("*b", "abc"));
    }
}
