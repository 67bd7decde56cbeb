//! `flakes.toml`: the flakes, skips and deaths of machines that are known, and how many of them are borne.

use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Ledger {
    /// Number of machines that may die or hang in a suite.
    pub(crate) machines_die_at_most: usize,
    /// Number of tests that may be flaky in a suite, of all entries together.
    pub(crate) flaky_at_most: usize,
    /// Number of flaky tests without an entry that a suite may have: each is told, and wants its entry.
    #[serde(default)]
    pub(crate) unknown_at_most: usize,
    #[serde(default)]
    pub(crate) flaky: Vec<Flake>,
    #[serde(default)]
    pub(crate) not_tested: Vec<Skip>,
    #[serde(default)]
    pub(crate) repeats: Vec<Repeat>,
}

/// Tests that are known to fail in one machine and pass in another.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Flake {
    /// The name of a test; `*` stands for anything.
    pub(crate) tests: String,
    /// Text of the failure, where only failures with it are known.
    pub(crate) told: Option<String>,
    pub(crate) reason: String,
    /// How often it was seen in how much.
    pub(crate) rate: String,
    /// Number of these tests that may be flaky in a suite.
    pub(crate) at_most: usize,
}

/// Tests that cannot be made in an emulated machine.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Skip {
    pub(crate) tests: String,
    pub(crate) reason: String,
}

/// Tests that show nothing in an emulated machine that others do not: they are run there only on request (`--all`).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Repeat {
    pub(crate) tests: String,
    /// Except these.
    #[serde(default)]
    pub(crate) but: Vec<String>,
    pub(crate) reason: String,
}

impl Ledger {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let ledger: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let reasons = ledger.flaky.iter().flat_map(|flake| [&flake.reason, &flake.rate]);
        let reasons = reasons.chain(ledger.not_tested.iter().map(|skip| &skip.reason));
        let mut reasons = reasons.chain(ledger.repeats.iter().map(|repeat| &repeat.reason));
        let is_silent = reasons.any(|reason| reason.trim().is_empty());
        drop(reasons);
        match is_silent {
            true => Err("an entry without its reason or rate".into()),
            false => Ok(ledger),
        }
    }

    /// The entry that knows this flake: which failed saying this, each time.
    pub(crate) fn flake(&self, test: &str, told: &[String]) -> Option<&Flake> {
        self.flaky.iter().find(|flake| {
            let knows = |told: &String| flake.told.as_ref().is_none_or(|known| told.contains(known));
            matches(&flake.tests, test) && told.iter().all(knows)
        })
    }

    /// Takes those tests out that repeat others, and says how many of each entry. An entry that names no test is an error.
    pub(crate) fn leave_out(&self, tests: &mut [&mut Vec<String>]) -> Result<Vec<String>, String> {
        let mut said = vec![];
        for Repeat { tests: pattern, but, reason } in &self.repeats {
            let repeats = |test: &String| matches(pattern, test) && !but.iter().any(|but| matches(but, test));
            let all = tests.iter().map(|tests| tests.len()).sum::<usize>();
            tests.iter_mut().for_each(|tests| tests.retain(|test| !repeats(test)));
            let left = all - tests.iter().map(|tests| tests.len()).sum::<usize>();
            if left == 0 {
                return Err(format!("flakes.toml: {pattern} repeats nothing, there is no such test"));
            }
            said.push(format!("left out, --all runs them: {left} tests {pattern}: {reason}"));
        }
        Ok(said)
    }

    pub(crate) fn skip(&self, test: &str) -> Option<&Skip> {
        self.not_tested.iter().find(|skip| matches(&skip.tests, test))
    }
}

/// Whether a pattern, in which `*` stands for anything, is that of the name.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
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
    use super::*;

    const ENTRY: &str = r#"
        machines-die-at-most = 2
        flaky-at-most = 3
        [[flaky]]
        tests = "*_excludes_*"
        told = "no progress"
        reason = "vCPUs stand still"
        rate = "1 of 20 suites"
        at-most = 1
    "#;

    #[test]
    fn a_star_stands_for_anything() {
        assert!(matches("*", "") && matches("*", "a") && matches("a*c", "abbc") && matches("a*b*", "axbx"));
        assert!(
            !matches("a", "ab") && !matches("a*c", "ab") && !matches("*b", "abc") && !matches("b*", "ab")
        );
    }

    #[test]
    fn a_flake_is_known_by_its_name_and_its_whole_output() {
        let ledger = Ledger::parse(ENTRY).unwrap();
        let stalled = "no progress: nothing has moved for 3 s".to_string();
        assert!(ledger.flake("tas_excludes_here", std::slice::from_ref(&stalled)).is_some());
        assert!(ledger.flake("a_kick_is_latched", std::slice::from_ref(&stalled)).is_none());
        assert!(ledger.flake("tas_excludes_here", &[stalled, "two were inside".into()]).is_none());
    }

    #[test]
    fn repeating_tests_are_left_out_and_counted_and_no_entry_is_idle() {
        let repeats = "[[repeats]]\ntests = \"*_by_ipi\"\nbut = [\"tas_*\"]\nreason = \"the same\"";
        let ledger = Ledger::parse(&format!("{ENTRY}{repeats}")).unwrap();
        let tests = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (mut one, mut other) = (tests(&["a_by_ipi", "b"]), tests(&["tas_by_ipi", "c_by_ipi"]));
        let said = ledger.leave_out(&mut [&mut one, &mut other]).unwrap();
        assert_eq!((one, other), (tests(&["b"]), tests(&["tas_by_ipi"])));
        assert_eq!(said, ["left out, --all runs them: 2 tests *_by_ipi: the same"]);
        assert!(ledger.leave_out(&mut [&mut tests(&["tas_by_ipi", "b"])]).is_err());
    }

    #[test]
    fn the_ledger_of_this_repository_is_one_and_entries_have_reasons() {
        Ledger::parse(include_str!("../flakes.toml")).unwrap();
        assert!(Ledger::parse(&ENTRY.replace("vCPUs stand still", " ")).is_err());
        assert!(Ledger::parse(&ENTRY.replace("at-most = 1", "atmost = 1")).is_err());
    }
}
