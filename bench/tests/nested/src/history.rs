//! Reports of all machines together about a test.

use std::time::Duration;

/// A test that failed has this many machines in all.
pub(crate) const RUNS: usize = 3;
/// A test during which this many machines died gets no other.
pub(crate) const DEATHS: usize = 3;

/// Report of one machine about a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// With what the test said.
    Failed(String),
    /// Skipped there, which is no pass.
    Ignored,
}

/// Result of a test once no machine will run it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// It failed in every machine that told anything of it.
    Failed {
        told: Vec<String>,
    },
    /// It failed, and passed in another machine.
    Flaky {
        told: Vec<String>,
    },
    /// Machines died or hung during it, and none told that it passed.
    MachineDied {
        why: Vec<String>,
    },
    NotTested {
        why: String,
    },
}

/// One test, in one machine after the other.
#[derive(Debug, Default)]
pub(crate) struct History {
    passed: bool,
    ignored: bool,
    failures: Vec<String>,
    deaths: Vec<String>,
    /// How long it took where it passed.
    pub(crate) took: Duration,
}

impl History {
    pub(crate) fn add(&mut self, verdict: Verdict, took: Duration) {
        match verdict {
            Verdict::Passed => {
                self.passed = true;
                self.took = took;
            }
            Verdict::Failed(told) => self.failures.push(told),
            Verdict::Ignored => self.ignored = true,
        }
    }

    /// A machine died or hung while it ran this test.
    pub(crate) fn add_death(&mut self, why: &str) {
        self.deaths.push(why.into());
    }

    /// Whether no machine told anything of it yet.
    pub(crate) fn is_new(&self) -> bool {
        !self.is_settled() && self.failures.is_empty() && self.deaths.is_empty()
    }

    /// Whether a machine died during it.
    pub(crate) fn has_killed(&self) -> bool {
        !self.deaths.is_empty()
    }

    /// Whether no further machine could change the outcome, or none is worth it.
    pub(crate) fn is_settled(&self) -> bool {
        self.passed || self.ignored || self.failures.len() >= RUNS || self.deaths.len() >= DEATHS
    }

    /// Judges the test. `unsettled` says why no machine runs it again if it is not settled.
    pub(crate) fn outcome(&self, unsettled: &str) -> Outcome {
        match (self.passed, self.failures.is_empty()) {
            (true, true) => Outcome::Passed,
            (true, false) => Outcome::Flaky { told: self.failures.clone() },
            (false, false) => Outcome::Failed { told: self.failures.clone() },
            (false, true) if self.ignored => Outcome::NotTested { why: "skipped in the machine".into() },
            (false, true) if self.has_killed() => Outcome::MachineDied { why: self.deaths.clone() },
            (false, true) => Outcome::NotTested { why: unsettled.into() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(verdicts: &[Verdict], deaths: usize) -> History {
        let mut history = History::default();
        for verdict in verdicts {
            history.add(verdict.clone(), Duration::ZERO);
        }
        for _ in 0..deaths {
            history.add_death("it hung");
        }
        history
    }

    fn failed() -> Verdict {
        Verdict::Failed("no".into())
    }

    #[test]
    fn a_pass_is_a_flake_after_a_failure_but_not_after_death() {
        let flaky = history(&[failed(), Verdict::Passed], 0);
        assert_eq!(flaky.outcome(""), Outcome::Flaky { told: vec!["no".into()] });
        assert_eq!(history(&[Verdict::Passed], 1).outcome(""), Outcome::Passed);
    }

    #[test]
    fn a_test_fails_if_it_fails_in_every_machine_it_gets() {
        let twice = history(&[failed(), failed()], 0);
        assert!(!twice.is_settled(), "a third machine is to run it");
        let thrice = history(&[failed(), failed(), failed()], 0);
        assert!(thrice.is_settled());
        assert_eq!(thrice.outcome(""), Outcome::Failed { told: vec!["no".into(); 3] });
    }

    #[test]
    fn a_failure_stays_a_failure_without_further_machines() {
        let once = history(&[failed()], 2);
        assert_eq!(once.outcome("time was up"), Outcome::Failed { told: vec!["no".into()] });
    }

    #[test]
    fn what_nothing_is_known_of_has_not_been_tested() {
        assert_eq!(history(&[], 0).outcome("time was up"), Outcome::NotTested { why: "time was up".into() });
        let skipped = Outcome::NotTested { why: "skipped in the machine".into() };
        assert_eq!(history(&[Verdict::Ignored], 0).outcome("time was up"), skipped);
        assert!(
            matches!(history(&[], DEATHS).outcome(""), Outcome::MachineDied { why } if why.len() == DEATHS)
        );
    }
}
