//! Whether a suite has passed: all that stands against it, and what the last lines say.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::history::Outcome;
use crate::ledger::{Ledger, matches};
use crate::suite::{Results, Tested};

/// One thing for which a suite has not passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Objection {
    NothingTested,
    Failed(String),
    MachineDied(String),
    NotTested {
        test: String,
        why: String,
    },
    /// More of them than are borne, each of which the ledger does not know.
    UnknownFlakes {
        tests: Vec<String>,
        most: usize,
    },
    MoreFlakesThan {
        what: String,
        most: usize,
        seen: usize,
    },
    MoreDeathsThan {
        most: usize,
        seen: usize,
    },
    /// No test has the name, or the tests that are known not to be tested were.
    Stale(String),
}

/// All that stands against these results. Entries of the ledger can only be judged by a `whole` suite.
pub(crate) fn objections(results: &Results, ledger: &Ledger, whole: bool) -> Vec<Objection> {
    let mut objections = vec![];
    if !results.tests.iter().any(|tested| has_passed(&tested.outcome)) {
        objections.push(Objection::NothingTested);
    }
    let (mut flaky, mut unknown) = (BTreeMap::new(), Vec::new());
    for Tested { test, outcome, .. } in &results.tests {
        let test = test.clone();
        match outcome {
            Outcome::Passed => {}
            Outcome::Failed { .. } => objections.push(Objection::Failed(test)),
            Outcome::MachineDied { .. } => objections.push(Objection::MachineDied(test)),
            Outcome::NotTested { .. } if ledger.skip(&test).is_some() => {}
            Outcome::NotTested { why } => objections.push(Objection::NotTested { test, why: why.clone() }),
            Outcome::Flaky { told } => match ledger.flake(&test, told) {
                Some(flake) => flaky.entry(&flake.tests).or_insert((flake.at_most, 0)).1 += 1,
                None => unknown.push(test),
            },
        }
    }
    let all = unknown.len() + flaky.values().map(|(_, seen)| seen).sum::<usize>();
    let most = ledger.unknown_at_most;
    if unknown.len() > most {
        objections.push(Objection::UnknownFlakes { tests: unknown, most });
    }
    let each = flaky.into_iter().map(|(tests, (most, seen))| (format!("of {tests}"), most, seen));
    for (what, most, seen) in each.chain([("in all".into(), ledger.flaky_at_most, all)]) {
        if seen > most {
            objections.push(Objection::MoreFlakesThan { what, most, seen });
        }
    }
    let (most, seen) = (ledger.machines_die_at_most, results.deaths.len());
    if seen > most {
        objections.push(Objection::MoreDeathsThan { most, seen });
    }
    if whole {
        objections.extend(stale(results, ledger));
    }
    objections
}

fn has_passed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Passed | Outcome::Flaky { .. })
}

fn stale<'a>(results: &'a Results, ledger: &'a Ledger) -> impl Iterator<Item = Objection> + 'a {
    let named = |tests: &str| results.tests.iter().any(|tested| matches(tests, &tested.test));
    let skipped = |tests: &str| {
        let mut skipped = results.tests.iter().filter(|tested| !has_passed(&tested.outcome));
        skipped.any(|tested| matches(tests, &tested.test))
    };
    let flakes = ledger.flaky.iter().map(|flake| &flake.tests).filter(move |tests| !named(tests));
    let skips = ledger.not_tested.iter().map(|skip| &skip.tests).filter(move |tests| !skipped(tests));
    flakes.chain(skips).map(|tests| Objection::Stale(tests.clone()))
}

/// The end of what the suite says: counts, what is known of each test that did not simply pass, and what stands against it.
pub(crate) fn summary(results: &Results, ledger: &Ledger, objections: &[Objection]) -> String {
    let mut text = String::new();
    for Tested { group, test, outcome, .. } in &results.tests {
        let (word, told) = match outcome {
            Outcome::Passed => continue,
            Outcome::NotTested { why } => match ledger.skip(test) {
                Some(skip) => {
                    let _ = writeln!(text, "not tested, as is known: {test} ({group}): {}", skip.reason);
                    continue;
                }
                None => ("NOT TESTED", std::slice::from_ref(why)),
            },
            Outcome::Failed { told } => ("FAILED", &told[..]),
            Outcome::MachineDied { why } => ("MACHINES DIED", &why[..]),
            Outcome::Flaky { told } => ("flaky", &told[..]),
        };
        let _ = writeln!(text, "{word}: {test} ({group})");
        for told in told {
            let _ = writeln!(text, "    {}", told.trim_end().replace('\n', "\n    "));
        }
        if matches!(outcome, Outcome::Flaky { .. }) {
            let _ = match ledger.flake(test, told) {
                Some(flake) => writeln!(text, "    known ({}): {}", flake.rate, flake.reason),
                None => {
                    writeln!(text, "    NOT KNOWN: find out why, or put it into flakes.toml with the reason")
                }
            };
        }
    }
    for death in &results.deaths {
        let _ = writeln!(text, "machine died: {}", death.lines().next().unwrap_or_default());
    }
    let count = |is: fn(&Outcome) -> bool| results.tests.iter().filter(|tested| is(&tested.outcome)).count();
    let _ = writeln!(
        text,
        "{} tests: {} passed, {} flaky, {} failed, {} with machines that died, {} not tested; {} machines, {} died or hung",
        results.tests.len(),
        count(|outcome| matches!(outcome, Outcome::Passed)),
        count(|outcome| matches!(outcome, Outcome::Flaky { .. })),
        count(|outcome| matches!(outcome, Outcome::Failed { .. })),
        count(|outcome| matches!(outcome, Outcome::MachineDied { .. })),
        count(|outcome| matches!(outcome, Outcome::NotTested { .. })),
        results.machines,
        results.deaths.len(),
    );
    for objection in objections {
        let _ = writeln!(text, "FAILED: {}", sentence(objection));
    }
    text
}

fn sentence(objection: &Objection) -> String {
    match objection {
        Objection::NothingTested => "nothing was tested".into(),
        Objection::Failed(test) => format!("{test} failed in every machine that told of it"),
        Objection::MachineDied(test) => format!("every machine died that ran {test}"),
        Objection::NotTested { test, why } => format!("{test} was not tested: {why}"),
        Objection::UnknownFlakes { tests, most } => format!(
            "flakes.toml does not know these, and bears {most} of the kind: {}: find out why, or put them there with the reason",
            tests.join(", ")
        ),
        Objection::MoreFlakesThan { what, most, seen } => {
            format!("{seen} tests {what} were flaky, at most {most} are borne")
        }
        Objection::MoreDeathsThan { most, seen } => {
            format!("{seen} machines died or hung, at most {most} are borne")
        }
        Objection::Stale(tests) => {
            format!("flakes.toml speaks of {tests}, of which there is nothing to say any more")
        }
    }
}

/// How many tests have passed, in whatever machine.
pub(crate) fn passed(results: &Results) -> usize {
    results.tests.iter().filter(|tested| has_passed(&tested.outcome)).count()
}
