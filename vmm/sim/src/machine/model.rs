//! The `[model]` section of a machine file: choices between ways in which real machines may behave. A finding that depends on one
//! of them says so, after it was tried with all.

use serde::{Deserialize, Serialize};

/// Choices, each of which has a default.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Model {
    /// Where a vCPU that wakes up runs.
    pub placement: Placement,
}

impl Default for Model {
    fn default() -> Self {
        Self { placement: Placement::Last }
    }
}

/// Where a vCPU that wakes up runs, if several pCPUs are idle.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Where it ran last; if that pCPU is busy, on one nearby, as Linux and KVM place threads.
    Last,
    /// On the pCPU with the lowest number.
    Lowest,
}
