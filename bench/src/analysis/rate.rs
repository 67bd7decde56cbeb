//! Throughputs as statistics take them.
//!
//! A run may complete no section at all: the lock collapsed, or the window was too short for it. Such a run has no
//! logarithm, and leaving it out would flatter the lock. It counts as half a section, which is less than the least
//! that could have been seen; estimates are by rank, so that a few such runs do not move them. Where they are half
//! of all or more, there is no figure.
//!
//! A window cuts the section at either end, so a run tells its rate to one section. `k` runs that all count `n` sections fit
//! every rate of `n - d` to `n + d` sections a window for which such luck has a chance of 2.5 % or more: with `f` sections more
//! or less than `n`, a window that begins anywhere counts `n` with the chance `1 - f`, so `d = 1 - 0.025^(1/k)`. No interval is
//! narrower than that. (Counts of independent events would scatter by their square root. Those of a lock need not: under a strict
//! queue one follows upon the other at the pace of the slices, which is more regular.)

use crate::analysis::significance;
use crate::analysis::statistics::{Estimate, Interval, TAIL};
use crate::experiment::measure::Measure;
use crate::record::Record;
use crate::record::figures::{ACQUISITIONS, COMPLETION, FEWEST, LOCK_CPU, THROUGHPUT, WINDOW};

/// Sections per second of the window, or of CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    pub(crate) per_second: f64,
    /// No section was completed: the rate stands for half of one.
    pub(crate) is_floor: bool,
    /// One section as a share of those that were counted; 0 where an amount of work was timed instead.
    pub(crate) resolution: f64,
}

impl Rate {
    /// The rate that `measure` measures, in one run; `None` where the run does not tell.
    pub(crate) fn by(measure: &Measure, record: &Record) -> Option<Self> {
        match measure {
            Measure::Throughput | Measure::AllGuests | Measure::SlowestGuest => Self::of(record),
            Measure::SlowestVcpu => Self::counted(record.figure(FEWEST)?, record.figure(WINDOW)?),
            Measure::LockCpu => Self::of_all(record, LOCK_CPU),
            // A figure that is not positive has no ratio to another.
            Measure::Figure(name) | Measure::Printed(name) => record.figure(name).and_then(Self::exact),
        }
    }

    /// The rate of a number of sections in a time.
    fn counted(sections: f64, ns: f64) -> Option<Self> {
        let at_least_half = sections.max(0.5);
        let per_second = at_least_half / (ns / 1e9);
        let rate = Self { per_second, is_floor: sections == 0.0, resolution: 1.0 / at_least_half };
        (ns > 0.0).then_some(rate)
    }

    /// The rate of all sections of a run in the time that a figure has.
    fn of_all(record: &Record, time: &str) -> Option<Self> {
        let counted = Self::counted(record.figure(ACQUISITIONS)?, record.figure(time)?)?;
        let is_timed = record.figure(COMPLETION).is_some();
        Some(Self { resolution: if is_timed { 0.0 } else { counted.resolution }, ..counted })
    }

    /// A positive figure that counts no sections.
    pub(crate) fn exact(value: f64) -> Option<Self> {
        let rate = Self { per_second: value, is_floor: false, resolution: 0.0 };
        (value > 0.0 && value.is_finite()).then_some(rate)
    }

    /// The rate that `measure` measures in a run of several guests, from the rates of each.
    pub(crate) fn of_guests(measure: &Measure, each: impl Iterator<Item = Self>) -> Option<Self> {
        each.reduce(|a, b| match measure {
            Measure::AllGuests => Self {
                per_second: a.per_second + b.per_second,
                is_floor: a.is_floor && b.is_floor,
                // Counts add up. A guest that was timed instead has no count, and a resolution of 0.
                resolution: 1.0 / (1.0 / a.resolution + 1.0 / b.resolution),
            },
            _ if b.per_second < a.per_second => b,
            _ => a,
        })
    }

    /// The throughput of a run, if it tells it.
    pub(crate) fn of(record: &Record) -> Option<Self> {
        let all = Self::of_all(record, WINDOW)?;
        Some(Self {
            per_second: if all.is_floor { all.per_second } else { record.figure(THROUGHPUT)? },
            ..all
        })
    }

    pub(crate) fn over(self, below: Self) -> Self {
        Self {
            per_second: self.per_second / below.per_second,
            is_floor: self.is_floor || below.is_floor,
            resolution: self.resolution.hypot(below.resolution),
        }
    }
}

/// The least half of an interval of `rates`, on a logarithmic scale: what counting whole sections can tell.
fn least_half_width(rates: &[Rate]) -> f64 {
    let runs = rates.len().max(1) as f64;
    let mean_square = rates.iter().map(|rate| rate.resolution.powi(2)).sum::<f64>() / runs;
    (1.0 - TAIL.powf(1.0 / runs)) * mean_square.sqrt()
}

/// With an interval that is at least so wide, if there is one.
fn widened(estimate: Estimate, least_half: f64) -> Estimate {
    let (low, high) =
        (estimate.hodges_lehmann * (-least_half).exp(), estimate.hodges_lehmann * least_half.exp());
    let wide = |it: Interval| Interval { low: it.low.min(low), high: it.high.max(high), ..it };
    Estimate { interval: estimate.interval.map(wide), ..estimate }
}

/// Whether there are enough rates that were seen to go by.
pub(crate) fn are_seen(rates: &[Rate]) -> bool {
    2 * rates.iter().filter(|rate| rate.is_floor).count() < rates.len()
}

pub(crate) fn values(rates: &[Rate]) -> Vec<f64> {
    rates.iter().map(|rate| rate.per_second).collect()
}

/// The centre of rates, or of ratios of rates.
pub(crate) fn estimate(rates: &[Rate]) -> Option<Estimate> {
    let estimate = if are_seen(rates) { Estimate::of_positive(&values(rates)) } else { None };
    estimate.map(|it| widened(it, least_half_width(rates)))
}

/// The ratio of two groups of rates that are not paired.
pub(crate) fn estimate_ratio(above: &[Rate], below: &[Rate]) -> Option<Estimate> {
    if !are_seen(above) || !are_seen(below) {
        return None;
    }
    let least_half = least_half_width(above).hypot(least_half_width(below));
    Estimate::of_ratio(&values(above), &values(below)).map(|it| widened(it, least_half))
}

/// The p-value of a difference that these ratios show.
pub(crate) fn p_of_difference(ratios: &[Rate]) -> Option<f64> {
    significance::p_of_difference(&values(ratios), least_half_width(ratios))
}

/// The p-value of a difference between two groups of rates that are not paired.
pub(crate) fn p_of_two_groups(above: &[Rate], below: &[Rate]) -> Option<f64> {
    let least_half = least_half_width(above).hypot(least_half_width(below));
    significance::p_of_two_groups(&values(above), &values(below), least_half)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: f64) -> Rate {
        Rate { per_second, is_floor: per_second < 1.0, resolution: 0.0 }
    }

    #[test]
    fn runs_without_sections_move_no_estimate_and_half_of_all_leave_none() {
        let few = estimate(&[100.0, 101.0, 99.0, 100.0, 102.0, 98.0, 0.5].map(rate)).unwrap();
        assert!((95.0..101.0).contains(&few.hodges_lehmann) && few.interval.unwrap().low < 98.0, "{few:?}");
        assert_eq!(estimate(&[100.0, 0.5].map(rate)), None);
        assert_eq!(estimate(&[]), None);
        assert_eq!(estimate_ratio(&[100.0; 4].map(rate), &[0.5; 4].map(rate)), None);
        assert!(rate(10.0).over(rate(0.5)).is_floor);
        assert_eq!(rate(10.0).over(rate(5.0)), rate(2.0));
        let none_counted = Rate { resolution: 2.0, ..rate(0.5) };
        assert_eq!([1e9, 0.0].map(|ns| Rate::counted(0.0, ns)), [Some(none_counted), None]);
    }

    #[test]
    fn counts_that_are_all_alike_leave_room_for_cut_sections() {
        let eight = Rate { resolution: 1.0 / 8.0, ..rate(133.0) };
        for (runs, sections) in [(3, 0.71), (7, 0.41), (20, 0.17)] {
            let interval = estimate(&vec![eight; runs]).unwrap().interval.unwrap();
            let [low, high] = [interval.low, interval.high].map(|end| end * 8.0 / 133.0);
            assert!([8.0 - low, high - 8.0].iter().all(|it| (it - sections).abs() < 0.04), "{low} {high}");
        }
        let many = Rate { resolution: 1e-6, ..rate(133.0) };
        let low = |rate| estimate(&[rate; 3]).unwrap().interval.unwrap().low;
        assert!(low(many) > 132.99 && low(rate(133.0)) > low(many), "{}", low(many));
        assert!((eight.over(eight).resolution - 2f64.sqrt() / 8.0).abs() < 1e-9);
    }

    #[test]
    fn guests_count_together_or_by_the_slowest() {
        let each = [(100.0, 0.5), (300.0, 0.25)];
        let each = each.map(|(per_second, resolution)| Rate { per_second, is_floor: false, resolution });
        let rate = |measure| Rate::of_guests(&measure, each.into_iter()).unwrap();
        let all = rate(Measure::AllGuests);
        // Two sections and four are six.
        assert!(all.per_second == 400.0 && (all.resolution - 1.0 / 6.0).abs() < 1e-9, "{all:?}");
        assert_eq!(rate(Measure::SlowestGuest), each[0]);
        let idle = Rate { is_floor: true, ..each[1] };
        assert!(!Rate::of_guests(&Measure::AllGuests, [each[0], idle].into_iter()).unwrap().is_floor);
    }
}
