//! Lines below the table: uncontended costs, and verdicts counted over trials.

use super::of_setting;
use crate::analysis::statistics::Estimate;
use crate::analysis::summary::{ArmCost, Summary, Trials};
use crate::text::quantity::significant;

/// Header of the uncontended costs.
pub(crate) const LOCK_COSTS: [&str; 6] =
    ["uncontended, TSC cycles a pair", "patched", "table", "compiled in", "bytes/lock", "bytes/vCPU"];

/// The uncontended cost of each lock: a line of fields for each arm.
pub(crate) fn lock_costs(costs: &[ArmCost]) -> Vec<Vec<String>> {
    let cycles = |estimate: &Option<Estimate>| {
        estimate.as_ref().map_or("-".into(), |it| significant(it.hodges_lehmann))
    };
    let bytes = |bytes: Option<u32>| bytes.map_or("-".into(), |bytes| bytes.to_string());
    let line = |cost: &ArmCost| {
        vec![
            cost.arm.clone(),
            cycles(&cost.patched_tsc_cycles),
            cycles(&cost.through_table_tsc_cycles),
            cycles(&cost.compiled_in_tsc_cycles),
            bytes(cost.lock_bytes),
            bytes(cost.cpu_bytes),
        ]
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
