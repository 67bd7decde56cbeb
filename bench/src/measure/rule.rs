//! When an experiment has enough blocks.

use std::time::Duration;

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// Blocks that are planned.
    pub(crate) blocks: u32,
    /// Go on, with what is vaguer, until every wanted interval is this narrow.
    pub(crate) target_precision: Option<f64>,
    /// Begin no block that would end later.
    pub(crate) max_time: Option<Duration>,
    /// How often a run that was disturbed is made again, if there is time.
    pub(crate) retries: u32,
}

/// Fewest whole blocks before precision is judged: the exact interval exists from here on.
pub(super) const JUDGED_FROM: u32 = 6;

/// Multiple of the planned blocks after which a precision that was not reached is out of reach.
pub(crate) const MOST_TIMES_PLANNED: u32 = 20;
