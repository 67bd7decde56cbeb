//! The smallest difference that a number of blocks can show, by the scatter of earlier results.
//!
//! A comparison shows a difference if its interval excludes 1. So what a plan can show is half the width of the interval that
//! it will get. Earlier results give the scatter of one ratio: half the width of their interval (of logarithms), over that
//! of as many standard normal values. These stand at their expected ranks (Blom, 1958), so that nothing is random.

use statrs::distribution::{ContinuousCDF as _, Normal};

use crate::analysis::statistics::{Estimate, Interval};

/// Half the width that the interval of `earlier` would have with `blocks` blocks, as a share of the ratio. None without an
/// interval on either side.
pub(crate) fn smallest_difference(earlier: &Estimate, blocks: u32) -> Option<f64> {
    let scatter = log_half_width(earlier.interval?) / of_normal(earlier.n)?;
    Some((scatter * of_normal(blocks as usize)?).exp() - 1.0)
}

fn log_half_width(Interval { low, high, .. }: Interval) -> f64 {
    (high / low).ln() / 2.0
}

/// Half the width of the interval of `n` standard normal values at their expected ranks.
fn of_normal(n: usize) -> Option<f64> {
    let at_rank =
        |rank: usize| Normal::standard().inverse_cdf((rank as f64 - 0.375) / (n as f64 + 0.25)).exp();
    let values: Vec<f64> = (1..=n).map(at_rank).collect();
    Estimate::of_positive(&values)?.interval.map(log_half_width)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use haltkick_vmm::Image;

    use super::*;
    use crate::analysis::significance::{corrected, p_of_difference};
    use crate::analysis::statistics::median;
    use crate::analysis::summary::Summary;
    use crate::experiment::outline::OutlineComparison;
    use crate::experiment::overrides::Overrides;
    use crate::experiment::plan::Plan;
    use crate::experiment::{BUILT_IN, Experiment, Source};
    use crate::host::cpulist::CpuList;
    use crate::measure::synthetic::{Scatter, Shape, Sketch, World};
    use crate::record::place::{BESIDE, Role};
    use crate::settings::machines::is_like;
    use crate::settings::{Supply, rounds};

    /// The plans of all built-in experiments and of `haltkick answer`, whole and quick, on two CPUs.
    fn built_in_plans() -> impl Iterator<Item = (String, Experiment, Plan)> {
        let answer = ("answer-pv", include_str!("../commands/answer_pv.toml"));
        let profiles = BUILT_IN.into_iter().chain([answer]).flat_map(|it| [(it, false), (it, true)]);
        profiles.map(|((name, text), quick)| {
            let source = Source { origin: name.into(), text: text.into() };
            let mut experiment = Experiment::parse(source).unwrap();
            experiment.apply(&Overrides { quick, ..Overrides::default() }).unwrap();
            let image = Image::embedded().with_locks(experiment.locks().iter().map(String::as_str)).unwrap();
            let allowed = CpuList(vec![0, 1]);
            let plan = Plan::new(&experiment, Supply { image: &image, allowed: &allowed }, 1).unwrap();
            (format!("{name}{}", if quick { " --quick" } else { "" }), experiment, plan)
        })
    }

    /// Settings of the comparison that has the most, without those of machines that are like another.
    fn most_settings(plan: &Plan) -> usize {
        let at = |name: &str| -> Vec<_> {
            let arm = name.split(BESIDE).next();
            let cells = plan.cells().filter(|cell| cell.role == Role::Arm && Some(&*cell.arm) == arm);
            cells.map(|cell| &cell.setting).filter(|it| !it.values().any(|value| is_like(value))).collect()
        };
        let both = |it: &OutlineComparison| {
            let below = at(&it.baseline);
            at(&it.arm).into_iter().filter(|setting| below.contains(setting)).count()
        };
        plan.outline.comparisons.iter().map(both).max().unwrap_or(0)
    }

    /// Share of the settings of a comparison at which `blocks` blocks show that one arm is twice as fast, where the ratios of blocks
    /// scatter by a fifth. Half of the kept measurements scatter by 6 to 24 %.
    fn doublings_shown(blocks: u32, settings: usize) -> f64 {
        const TRIES: u64 = 400;
        let of_try = |seed| {
            let mut scatter = Scatter::new(seed);
            let mut at_setting = || {
                let ratio = |_| 2.0 * scatter.next(Shape::LogNormal(0.2));
                let ratios: Vec<f64> = (0..blocks).map(ratio).collect();
                (Estimate::of_positive(&ratios).unwrap().verdict(), p_of_difference(&ratios, 0.0))
            };
            let each: Vec<_> = (0..settings).map(|_| at_setting()).collect();
            corrected(&each).into_iter().filter(|verdict| verdict.is_difference()).count()
        };
        (0..TRIES).map(of_try).sum::<usize>() as f64 / (TRIES as usize * settings) as f64
    }

    #[test]
    fn every_built_in_plan_can_decide_and_its_windows_hold_eight_rounds() {
        let mut known = BTreeMap::new();
        for (name, experiment, plan) in built_in_plans() {
            let blocks = experiment.trial_blocks.unwrap_or(experiment.blocks);
            let settings = most_settings(&plan);
            let shown = known.entry((blocks, settings)).or_insert_with(|| doublings_shown(blocks, settings));
            assert!(settings == 0 || *shown >= 0.95, "{name}: {blocks} at {settings} settings: {shown}");
            assert_eq!(rounds::too_few(plan.cells().map(|cell| &cell.run)), None, "{name}");
        }
    }

    /// The headline of 30 settings in `blocks` blocks, where runs scatter by 5 %.
    fn headline(blocks: u32, seed: u64) -> Vec<Estimate> {
        let settings: Vec<String> = (1..=30).map(|us| format!("{us}us")).collect();
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let sketch = Sketch::two().axis("hold", &settings);
        let plan = sketch.compared().plan(blocks);
        let records = World::new(seed).shape(Shape::LogNormal(0.05)).records(&plan);
        let comparisons = Summary::new(&plan.outline, &records).comparisons;
        comparisons.into_iter().map(|it| it.ratio.unwrap()).collect()
    }

    #[test]
    fn predicted_half_widths_are_those_that_the_blocks_then_show() {
        for (earlier, later) in [(3, 7), (6, 12), (8, 20), (20, 6)] {
            let predicted = headline(earlier, 1);
            let predicted: Vec<f64> =
                predicted.iter().map(|it| smallest_difference(it, later).unwrap()).collect();
            let shown: Vec<f64> = headline(later, 2).iter().map(|it| it.half_width().unwrap()).collect();
            let ratio = median(&predicted) / median(&shown);
            assert!((0.7..1.3).contains(&ratio), "{earlier} to {later} blocks: {ratio}");
        }
        // One block shows nothing, and the same number shows the same.
        let [one, six] = [1, 6].map(|blocks| headline(blocks, 3).swap_remove(0));
        assert_eq!((smallest_difference(&one, 6), smallest_difference(&six, 1)), (None, None));
        let same = smallest_difference(&six, 6).unwrap();
        assert!((same / six.half_width().unwrap() - 1.0).abs() < 1e-9);
    }
}
