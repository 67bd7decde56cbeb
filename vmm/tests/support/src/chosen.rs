//! Which tests a machine of `just test-nested` runs: those that `HALTKICK_TESTS` names, with commas between them.

use libtest_mimic::Trial;

/// All trials where the variable is not set. Names that are no test's would leave something untested without a word.
pub fn chosen(mut trials: Vec<Trial>) -> Vec<Trial> {
    let Ok(names) = std::env::var("HALTKICK_TESTS") else {
        return trials;
    };
    let names: Vec<_> = names.split(',').collect();
    trials.retain(|trial| names.contains(&trial.name()));
    assert_eq!(trials.len(), names.len(), "HALTKICK_TESTS has names that are no test's, or a name twice");
    trials
}
