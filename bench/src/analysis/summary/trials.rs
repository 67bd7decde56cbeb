//! Verdicts counted over trials.

use super::placed::Placed;
use super::{Comparison, Trials};
use crate::analysis::rate::{self, Rate};
use crate::analysis::statistics;
use crate::analysis::verdict::Verdict;
use crate::experiment::outline::Outline;

/// Cuts the blocks of each comparison into trials and counts the verdicts.
pub(super) fn trials(outline: &Outline, comparisons: &[Comparison], placed: &Placed<'_>) -> Vec<Trials> {
    let Some(blocks_per_trial) = outline.trial_blocks else { return vec![] };
    let of = |comparison: &Comparison| {
        let Comparison { of, setting, arm, baseline, .. } = comparison;
        let pairs = placed.pairs(of, setting, (arm.as_str(), false), (baseline.as_str(), false));
        // With what counting tells: the ratios alone would have intervals without it.
        let rates: Vec<Rate> = pairs.iter().filter_map(|pair| pair.ratio).collect();
        let verdicts: Vec<Verdict> = rates
            .chunks_exact(blocks_per_trial as usize)
            .map(|rates| rate::estimate(rates).map_or(Verdict::TooFewBlocks, |it| it.verdict()))
            .collect();
        let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
        let (faster, slower) = (count(Verdict::Faster), count(Verdict::Slower));
        let (share_low, share_high) = statistics::share_interval(faster + slower, verdicts.len());
        Trials {
            name: comparison.name.clone(),
            setting: setting.clone(),
            blocks_per_trial,
            trials: verdicts.len(),
            faster,
            slower,
            share: (faster + slower) as f64 / verdicts.len().max(1) as f64,
            share_low,
            share_high,
        }
    };
    comparisons.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use crate::analysis::summary::Summary;
    use crate::measure::synthetic::{Sketch, World};
    use crate::record::figures::{ACQUISITIONS, THROUGHPUT, WINDOW};

    #[test]
    fn trials_of_few_sections_show_no_difference_that_counting_hides() {
        let sketch = Sketch::new().arm("a", "tas").arm("b", "ticket").compare("b/a", "b", "a");
        let plan = sketch.head("trial-blocks = 3").plan(6);
        let of_trials = |sections: u64| {
            let mut records = World::new(1).records(&plan);
            for record in &mut records {
                let is_b = record.place.as_ref().unwrap().arm == "b";
                let sections = if is_b { 2 * sections } else { 3 * sections } as f64;
                record.figures.set(ACQUISITIONS, sections);
                let per_second = sections / (record.amount(WINDOW) / 1e9);
                record.figures.set(THROUGHPUT, per_second);
            }
            let trials = Summary::new(&plan.outline, &records).trials;
            (trials[0].trials, trials[0].faster, trials[0].slower)
        };
        assert_eq!(of_trials(1), (2, 0, 0));
        assert_eq!(of_trials(1000), (2, 0, 2));
    }
}
