//! Names of arms, cells and guests.

/// Name of the lock-free cells.
pub(crate) const LOCK_FREE: &str = "lock-free";

/// Whether an arm of this name would have the name of a cell without a lock, which are numbered from the second one on.
pub(crate) fn is_taken(arm: &str) -> bool {
    let name = slug(arm);
    let number = name.strip_prefix(LOCK_FREE).map(|rest| rest.strip_prefix('-').unwrap_or(rest));
    number.is_some_and(|rest| rest.chars().all(|digit| digit.is_ascii_digit()))
}

/// Stands between the name of an arm and that of a guest which runs alongside its first.
pub(crate) const BESIDE: &str = " / ";

/// The name of the figures of `guest`, which runs alongside the first of `arm`.
pub(crate) fn beside(arm: &str, guest: &str) -> String {
    format!("{arm}{BESIDE}{guest}")
}

/// A name as part of a cell's id: lower case, words joined by hyphens.
pub(crate) fn slug(name: &str) -> String {
    let words = name.split(|c: char| !c.is_alphanumeric() && c != '.').filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_fit_for_shells_and_file_names() {
        assert_eq!(slug("qspinlock PV on"), "qspinlock-pv-on");
        assert_eq!(slug("+3 % (hold=1.03us)"), "3-hold-1.03us");
    }
}
