//! The nearest name, for people who mistyped one.

pub(crate) use haltkick_vmm::nearest;

/// "unknown lock 'x'", with the nearest name or all of them.
pub(crate) fn unknown(kind: &str, wanted: &str, names: &[&str]) -> String {
    match nearest(wanted, names.iter().copied()) {
        Some(name) => format!("unknown {kind} '{wanted}': did you mean '{name}'?"),
        None => format!("unknown {kind} '{wanted}': there is {}", names.join(", ")),
    }
}

/// As [`unknown`], for names so few that all of them are worth a look.
pub(crate) fn unknown_of_few(kind: &str, wanted: &str, names: &[&str]) -> String {
    let all = names.join(", ");
    match nearest(wanted, names.iter().copied()) {
        Some(name) => format!("unknown {kind} '{wanted}': did you mean '{name}'? There is {all}"),
        None => format!("unknown {kind} '{wanted}': there is {all}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: [&str; 5] = ["none", "tas", "ticket", "mcs", "qspinlock"];

    #[test]
    fn a_mistyped_name_finds_the_one_that_was_meant_or_all() {
        for (typed, meant) in [
            ("qspinlok", "did you mean 'qspinlock'?"),
            ("tikcet", "did you mean 'ticket'?"),
            ("MCS", "did you mean 'mcs'?"),
            ("qspin", "did you mean 'qspinlock'?"),
            ("peterson", "there is none, tas, ticket, mcs, qspinlock"),
        ] {
            assert_eq!(unknown("lock", typed, &LOCKS), format!("unknown lock '{typed}': {meant}"));
        }
    }
}
