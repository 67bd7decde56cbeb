//! Place of a run in an experiment.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::names::{beside, slug};

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
