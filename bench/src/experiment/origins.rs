//! The origin of each setting of an experiment: the file, with the line, the command line, or else the default.

use std::collections::BTreeMap;

use super::contents::{Arm, Experiment};
use super::keys;
use super::source::At;
use crate::settings::table;

/// One line for every setting there is, and where arms are kernels for what boots them.
pub(crate) fn origins(experiment: &Experiment) -> BTreeMap<String, String> {
    let boot = keys::BOOT.iter().copied().filter(|_| experiment.has_kernels());
    table::names().into_iter().chain(boot).map(|key| (key.to_owned(), origin(experiment, key))).collect()
}

fn origin(experiment: &Experiment, key: &str) -> String {
    let place = |at: Option<&At>| match at {
        Some(at) => format!("line {}", experiment.source.line_and_column(at).0),
        None => "command line".into(),
    };
    let points = experiment.points.iter().filter(|point| point.0.iter().any(|(known, _)| known == key));
    let points: Vec<_> = points.map(|point| place(Some(&point.1))).collect();
    if !points.is_empty() {
        return format!("points, {}", points.join(", "));
    }
    if let Some(axis) = experiment.axes.iter().find(|axis| axis.key == key) {
        return format!("grid, {}", place(axis.values.first().and_then(|(_, at)| at.as_ref())));
    }
    let of_arm = |arm: &Arm| arm.patch.place(key).or_else(|| arm.boot.place(key)).map(place);
    let arms = experiment.arms.iter().filter_map(|arm| Some((&arm.name, of_arm(arm)?)));
    let mut origins: Vec<_> = arms.map(|(name, place)| format!("arm '{name}', {place}")).collect();
    // Arms that do not set it have it from here.
    if origins.len() < experiment.arms.len() {
        let of_all = experiment.settings.place(key).or_else(|| experiment.boot.place(key));
        origins.push(of_all.map_or_else(|| default(experiment, key), place));
    }
    origins.join("; ")
}

/// The origin of a setting that was not given: the user's default or the program's. One that says the same thing as `key` goes
/// before it.
fn default(experiment: &Experiment, key: &str) -> String {
    let other = table::find(key).and_then(|setting| setting.instead_of);
    let is_displaced = other.is_some_and(|other| {
        experiment.settings.place(other).is_some()
            || experiment.varying().iter().any(|axis| axis.key == other)
    });
    match experiment.defaults.origin(key) {
        Some(origin) if !is_displaced => format!("default of {origin}"),
        _ => "default".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Source;
    use crate::experiment::defaults::{Defaults, UserDefault};
    use crate::experiment::overrides::Overrides;

    const TEXT: &str = "\
format = 1
name = \"mine\"
title = \"Mine\"

[settings]
hold = \"2us\"
window = \"1s\"

[grid]
ratio = [1, 2]

[[arm]]
name = \"ticket\"
lock = \"ticket\"

[[arm]]
name = \"pv\"
lock = \"qspinlock\"
pv = \"on\"

[quick]
blocks = 2
warmup = \"5ms\"
";

    #[test]
    fn every_setting_has_an_origin_and_it_is_the_last_that_spoke() {
        let mut experiment =
            Experiment::parse(Source { origin: "mine.toml".into(), text: TEXT.into() }).unwrap();
        let sets = vec![("think".into(), "9us".into()), ("window".into(), "2s".into())];
        experiment.apply(&Overrides { quick: true, sets, ..Overrides::default() }).unwrap();
        let of_user = [("slice", "2ms"), ("ratio", "4"), ("vcpus", "4"), ("pv", "off"), ("think", "1us")];
        let of_user = of_user.map(|(key, value)| UserDefault {
            key: key.into(),
            value: value.into(),
            origin: "a file".into(),
        });
        experiment.defaults = Defaults::new(of_user.into()).unwrap();
        let origins = origins(&experiment);
        assert_eq!(origins.len(), table::all().count());
        for (key, expected) in [
            ("hold", "line 6"),
            ("window", "command line"),
            ("think", "command line"),
            ("warmup", "line 23"),
            ("ratio", "grid, line 10"),
            ("lock", "arm 'ticket', line 14; arm 'pv', line 18"),
            ("pv", "arm 'pv', line 19; default of a file"),
            ("slice", "default of a file"),
            ("vcpus", "default"),
            ("grace", "default"),
        ] {
            assert_eq!(origins[key], expected, "{key}");
        }
    }
}
