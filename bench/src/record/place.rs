//! Place of a run in an experiment, and the names of arms, cells and guests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Place of a run in an experiment.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Place {
    /// Name of the experiment.
    pub(crate) experiment: String,
    /// Stable name of the cell; the same in every block.
    pub(crate) cell_id: String,
    /// The arm, "lock-free" for the ideal.
    pub(crate) arm: String,
    /// Purpose of the run.
    pub(crate) role: Role,
    /// The settings that the experiment varies, as text.
    pub(crate) setting: BTreeMap<String, String>,
    /// Pass over all cells, from 0.
    pub(crate) block: u32,
    /// Position in the experiment's order, from 0.
    pub(crate) order_index: u64,
    /// Earlier runs of the cell in this block that were disturbed, by their ids: this one counts in their place.
    #[serde(default)]
    pub(crate) replaces: Vec<String>,
}

/// Purpose of a run.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// A thing to compare.
    Arm,
    /// The cell without a lock: the ideal, and the calibration that brackets the arms.
    Ideal,
    /// The second half of the A/A pair.
    Control,
    /// A guest that ran next to the arm's.
    Beside,
}

impl Place {
    /// Returns the place of a guest that runs next to this one.
    pub(crate) fn beside(&self, guest: &str) -> Self {
        Self {
            cell_id: format!("{}_{}", self.cell_id, slug(guest)),
            arm: beside(&self.arm, guest),
            role: if self.role == Role::Arm { Role::Beside } else { self.role },
            ..self.clone()
        }
    }
}

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
