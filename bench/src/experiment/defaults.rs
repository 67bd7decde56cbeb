//! Defaults of a user instead of the program's. A command or an experiment overrides them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::settings::Settings;
use crate::text::exit::{Failure, Result};

/// How the names of variables begin: `HALTKICK_SLICE` is `slice`.
const PREFIX: &str = "HALTKICK_";

/// A setting that a user has another default for.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct UserDefault {
    /// The setting.
    pub(crate) key: String,
    /// Its value, as it would be written.
    pub(crate) value: String,
    /// The variable, or the file and its line.
    pub(crate) origin: String,
}

/// All of them, and what they are together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Defaults {
    pub(crate) each: Vec<UserDefault>,
    pub(crate) settings: Settings,
}

impl Defaults {
    /// Each in the order of its rank: the first that says something goes before the others.
    pub(crate) fn new(each: Vec<UserDefault>) -> Result<Self> {
        let mut defaults = Self::default();
        for one in each {
            let mut setting = Settings::default();
            let read = setting.set(&one.key, &one.value);
            read.map_err(|error| Failure::usage(format!("{}: {}: {error}", one.origin, one.key)))?;
            let both = defaults.settings.clone().over(&setting);
            if both != defaults.settings {
                defaults.settings = both;
                defaults.each.push(one);
            }
        }
        Ok(defaults)
    }

    /// Returns the origin of the default of `key`, if a user has one.
    pub(crate) fn origin(&self, key: &str) -> Option<&str> {
        self.each.iter().find(|one| one.key == key).map(|one| one.origin.as_str())
    }

    /// Keeps the defaults of `each` that `wanted` names.
    pub(crate) fn only(self, wanted: impl Fn(&str) -> bool) -> Result<Self> {
        Self::new(self.each.into_iter().filter(|one| wanted(&one.key)).collect())
    }

    /// Returns them in one line, as a reminder; `None` without any.
    pub(crate) fn told(&self) -> Option<String> {
        let each: Vec<String> =
            self.each.iter().map(|one| format!("{}={} ({})", one.key, one.value, one.origin)).collect();
        (!each.is_empty()).then(|| format!("defaults: {}", each.join(", ")))
    }
}

/// The variable of a setting.
pub(crate) fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.to_uppercase().replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(key: &str, value: &str, origin: &str) -> UserDefault {
        UserDefault { key: key.into(), value: value.into(), origin: origin.into() }
    }

    #[test]
    fn the_first_default_wins_even_if_two_are_the_same() {
        let each =
            vec![one("vcpus", "4", "first"), one("slice", "2ms", "second"), one("ratio", "8", "third")];
        let defaults = Defaults::new(each).unwrap();
        assert_eq!((defaults.origin("vcpus"), defaults.origin("ratio")), (Some("first"), None));
        assert_eq!(defaults.told().unwrap(), "defaults: vcpus=4 (first), slice=2ms (second)");
        let error = Defaults::new(vec![one("slice", "2", "HALTKICK_SLICE")]).unwrap_err();
        assert!(error.message.starts_with("HALTKICK_SLICE: slice: '2' has no unit"), "{error}");
        assert_eq!(Defaults::default().told(), None);
    }

    #[test]
    fn a_variable_bears_the_name_of_its_setting() {
        assert_eq!(variable("spin-threshold"), "HALTKICK_SPIN_THRESHOLD");
    }
}
