//! Lines below the table: uncontended costs, and verdicts counted over trials.

use super::of_setting;
use crate::analysis::summary::{ArmCost, Summary, Trials};
use crate::record::figures::{CPU_BYTES, LOCK_BYTES, PAIRS};
use crate::text::quantity::significant;

/// Header of the uncontended costs.
pub(crate) const LOCK_COSTS: [&str; 6] =
    ["uncontended, TSC cycles a pair", "patched", "table", "compiled in", "bytes/lock", "bytes/vCPU"];

/// The uncontended cost of each lock: a line of fields for each arm.
pub(crate) fn lock_costs(costs: &[ArmCost]) -> Vec<Vec<String>> {
    let line = |cost: &ArmCost| {
        let cycles =
            |name| cost.figures.get(name)?.estimate.as_ref().map(|it| significant(it.hodges_lehmann));
        let bytes = |name| cost.figures.get(name).map(|it| format!("{:.0}", it.median));
        let figures = PAIRS.map(cycles).into_iter().chain([LOCK_BYTES, CPU_BYTES].map(bytes));
        let fields = figures.map(|text: Option<String>| text.unwrap_or_else(|| "-".into()));
        std::iter::once(cost.arm.clone()).chain(fields).collect()
    };
    costs.iter().map(line).collect()
}

/// A sentence for each comparison whose verdicts are counted.
pub(crate) fn trials(summary: &Summary) -> Vec<String> {
    summary.trials.iter().map(sentence).collect()
}

fn sentence(trials: &Trials) -> String {
    let percent = |share: f64| significant(share * 100.0);
    format!(
        "{}{}: {} trials of {} blocks: {} faster, {} slower; {} % show a difference (95 % interval {} to {} %)",
        trials.name,
        of_setting(&trials.setting),
        trials.trials,
        trials.blocks_per_trial,
        trials.faster,
        trials.slower,
        percent(trials.share),
        percent(trials.share_low),
        percent(trials.share_high),
    )
}
