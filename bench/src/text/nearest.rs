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
    let said = unknown(kind, wanted, names);
    if said.ends_with('?') { format!("{said} There is {}", names.join(", ")) } else { said }
}
