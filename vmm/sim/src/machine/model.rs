//! The `[model]` section of a machine file: choices between ways in which real machines may behave. A finding that depends on one
//! of them says so, after it was tried with all.

use serde::{Deserialize, Deserializer, Serialize};

use crate::sourced::choice;

/// Most of [`Model::jitter`]: every transfer takes some time.
const MOST_JITTER: f64 = 0.5;

/// Choices, each of which has a default.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Model {
    /// pCPU of a vCPU that wakes up.
    pub placement: Placement,
    /// The transfer of a line takes up to this share longer or shorter than the machine's figure, drawn anew for each.
    #[serde(deserialize_with = "jitter")]
    pub jitter: f64,
    /// How stores in a store buffer get their lines.
    pub ownership: Ownership,
    /// Time of a vCPU that has others drop translations.
    pub invalidation: Invalidation,
    /// Work that takes speed from the other thread of a core.
    pub smt: Smt,
    /// How long a store stays in the store buffer.
    pub stores: Stores,
}

fn jitter<'d, D: Deserializer<'d>>(from: D) -> Result<f64, D::Error> {
    choice(from, MOST_JITTER)
}

impl Default for Model {
    fn default() -> Self {
        Self {
            placement: Placement::Last,
            jitter: 0.05,
            ownership: Ownership::Serial,
            invalidation: Invalidation::Free,
            smt: Smt::Busy,
            stores: Stores::Prompt,
        }
    }
}

impl Model {
    /// The least that a transfer takes whose figure is `ps`.
    pub(crate) fn least_ps(&self, ps: u64) -> u64 {
        ps - self.jitter_ps(ps)
    }

    /// Time of a transfer whose figure is `ps`, by a random number.
    pub(crate) fn jittered_ps(&self, ps: u64, random: u64) -> u64 {
        self.least_ps(ps) + random % (2 * self.jitter_ps(ps) + 1)
    }

    fn jitter_ps(&self, ps: u64) -> u64 {
        (ps as f64 * self.jitter) as u64
    }
}

/// pCPU of a vCPU that wakes up, if several pCPUs are idle.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The one that it ran on last; if that is busy, one nearby, as Linux and KVM place threads.
    Last,
    /// On the pCPU with the lowest number.
    Lowest,
}

/// How stores in a store buffer get their lines.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Ownership {
    /// Each store asks for its line when it is the first, also for one that the core owns. A store to such a line is visible at once
    /// if no other waits, whichever thread of the core wrote the line last.
    Serial,
    /// All stores ask at once, unless the core owns the line. A line that the core's other thread wrote last takes `sibling-ns`.
    Overlap,
}

/// Time of a vCPU that has others drop translations, beyond its exit.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Invalidation {
    /// One message reaches all, and takes no time beyond the exit.
    Free,
    /// `kick-ns` for each of them that runs.
    Kicks,
}

/// How long a store to a line that other cores have used stays in the store buffer.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Stores {
    /// Until its line has come.
    Prompt,
    /// For up to [`MOST_LATE_PS`] longer, drawn anew for each. x86 allows that: a lock that it breaks lacks a barrier.
    Late,
}

/// How much longer a late store stays in the store buffer at most: about as long as it takes to leave the guest, which empties it.
pub const MOST_LATE_PS: u64 = 400 * super::PS_PER_NS;

/// Work that takes speed from the other thread of a core.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Smt {
    /// All but a parked spin loop: stalls on lines, too.
    Busy,
    /// Instructions only: all of `busy-sibling-speed` while a thread executes, a tenth of that loss while it spins with PAUSE, none
    /// while it waits for lines.
    Issue,
}
