//! The nearest name, for people who mistyped one.

/// The name closest to `wanted`, if one is close enough to have been meant.
#[must_use]
pub fn nearest<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    names
        .into_iter()
        .map(|name| (if is_abbreviation(wanted, name) { 0 } else { distance(wanted, name) }, name))
        .filter(|(distance, name)| *distance <= 1 + name.len().min(wanted.len()) / 3)
        .min()
        .map(|(_, name)| name)
}

fn is_abbreviation(wanted: &str, name: &str) -> bool {
    wanted.len() >= 3 && name.starts_with(wanted)
}

/// Edits (insert, delete, replace, swap neighbours) between two names, case ignored.
fn distance(a: &str, b: &str) -> usize {
    strsim::osa_distance(&a.to_lowercase(), &b.to_lowercase())
}
