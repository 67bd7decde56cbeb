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
    use super::*;
    use crate::analysis::statistics::median;
    use crate::analysis::summary::Summary;
    use crate::measure::synthetic::{Shape, Sketch, World};

    /// The headline of 30 settings in `blocks` blocks, where runs scatter by 5 %.
    fn headline(blocks: u32, seed: u64) -> Vec<Estimate> {
        let settings: Vec<String> = (1..=30).map(|us| format!("{us}us")).collect();
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let sketch = Sketch::new().axis("hold", &settings).arm("a", "tas").arm("b", "ticket");
        let plan = sketch.compare("b/a", "b", "a").plan(blocks);
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
    }

    #[test]
    fn one_block_shows_nothing_and_the_same_number_shows_the_same() {
        let [one, six] = [1, 6].map(|blocks| headline(blocks, 3).swap_remove(0));
        assert_eq!(smallest_difference(&one, 6), None);
        assert_eq!(smallest_difference(&six, 1), None);
        let same = smallest_difference(&six, 6).unwrap();
        assert!((same / six.half_width().unwrap() - 1.0).abs() < 1e-9);
    }
}
