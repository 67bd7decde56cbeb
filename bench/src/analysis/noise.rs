//! Other load during an experiment: the sum of the noise of its runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::host::noise::{Noise, OTHERS_SHARE_LIMIT, STEAL_SHARE_LIMIT};
use crate::record::Record;
use crate::text::quantity::significant;

/// Other load during all runs of an experiment together. Hundreds of runs can show noise that one short run cannot tell
/// from a tick.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Overall {
    /// Busy with other processes and interrupts, as a share of the pCPUs' time; null where no run tells.
    pub(crate) others_share: Option<f64>,
    /// Taken by the outer host, likewise.
    pub(crate) steal_share: Option<f64>,
    /// Share of their lives that the runs' threads were ready and had no pCPU because others used it.
    pub(crate) run_delay_share: Option<f64>,
}

impl Overall {
    pub(crate) fn of(records: &[Record]) -> Self {
        // Guests of one run have the noise in common.
        let runs: BTreeMap<&str, &Noise> =
            records.iter().map(|record| (record.run_id.as_str(), &record.noise)).collect();
        let mean = |share: fn(&Noise) -> Option<f64>| {
            let shares = runs.values().filter_map(|noise| Some((share(noise)?, noise.of_ns as f64)));
            let (taken, whole) =
                shares.fold((0.0, 0.0), |(taken, whole), (share, of)| (taken + share * of, whole + of));
            (whole > 0.0).then(|| taken / whole)
        };
        Self {
            others_share: mean(|noise| noise.others_share),
            steal_share: mean(|noise| noise.steal_share),
            run_delay_share: mean(|noise| noise.run_delay_share),
        }
    }

    /// Returns warnings about the time lost to others over the whole experiment, where it is more than single runs may
    /// lose.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let checks = [
            ("other processes used", self.others_share, OTHERS_SHARE_LIMIT),
            ("the runs' threads waited for others during", self.run_delay_share, OTHERS_SHARE_LIMIT),
            ("the outer host took", self.steal_share, STEAL_SHARE_LIMIT),
        ];
        let above = checks.into_iter().filter_map(|(what, share, limit)| {
            let percent = significant(share.filter(|share| *share > limit)? * 100.0);
            Some(format!(
                "{what} {percent} % of the pCPUs' time over all runs together: levels are low by about that, and levels and ratios \
                 of strict queues (ticket, mcs, qspinlock pv off) may be off tenfold; --wait-for-quiet TIME waits for a quiet host, \
                 and --set engine=sim needs none"
            ))
        });
        above.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::summary::Summary;
    use crate::measure::synthetic::{Sketch, World};

    #[test]
    fn what_single_runs_cannot_tell_is_summed_over_the_experiment() {
        let plan = Sketch::two().plan(20);
        let mut records = World::new(1).records(&plan);
        for record in &mut records {
            // Below the limit that ticks set to a short run, and below that of nanoseconds.
            record.noise = Noise {
                others_share: Some(0.08),
                steal_share: None,
                of_ns: 1_000_000,
                run_delay_share: Some(0.01),
                stopped_share: Some(0.0),
            };
        }
        records[0].noise.others_share = None;
        let summary = Summary::new(&plan.outline, &records);
        assert!((summary.noise.others_share.unwrap() - 0.08).abs() < 1e-9, "{:?}", summary.noise);
        assert_eq!((summary.noise.steal_share, summary.noise.run_delay_share.is_some()), (None, true));
        let expected = "other processes used 8.00 % of the pCPUs' time over all runs together: levels are low by about that, and \
                        levels and ratios of strict queues (ticket, mcs, qspinlock pv off) may be off tenfold; --wait-for-quiet TIME \
                        waits for a quiet host, and --set engine=sim needs none";
        assert!(summary.warnings.iter().any(|warning| warning == expected), "{:?}", summary.warnings);
    }
}
