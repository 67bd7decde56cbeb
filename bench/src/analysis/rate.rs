//! Throughputs as statistics take them.
//!
//! A run may complete no section at all: the lock collapsed, or the window was too short for it. Such a run has no
//! logarithm, and leaving it out would flatter the lock. It counts as half a section, which is less than the least
//! that could have been seen; estimates are by rank, so that a few such runs do not move them. Where they are half
//! of all or more, there is no figure.

use crate::analysis::statistics::Estimate;
use crate::experiment::measure::Measure;
use crate::record::Record;

/// Sections per second of the window, or of CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    pub(crate) per_second: f64,
    /// No section was completed: the rate stands for half of one.
    pub(crate) is_floor: bool,
}

impl Rate {
    /// What `measure` measures, in one run; `None` where the run does not tell.
    pub(crate) fn by(measure: &Measure, record: &Record) -> Option<Self> {
        match measure {
            Measure::Throughput => Some(Self::of(record)),
            Measure::LockCpu => {
                let seconds = record.totals.lock_cpu_ns.filter(|ns| *ns > 0)? as f64 / 1e9;
                let acquisitions = record.totals.acquisitions;
                let is_floor = acquisitions == 0;
                Some(Self { per_second: (acquisitions as f64).max(0.5) / seconds, is_floor })
            }
            // Only Linux guests print any.
            Measure::Figure(_) => None,
        }
    }

    pub(crate) fn of(record: &Record) -> Self {
        let window_s = record.timing.window_ns as f64 / 1e9;
        match record.totals.acquisitions {
            0 => Self { per_second: 0.5 / window_s, is_floor: true },
            _ => Self { per_second: record.totals.acquisitions_per_second, is_floor: false },
        }
    }

    /// `self` over `below`.
    pub(crate) fn over(self, below: Self) -> Self {
        Self { per_second: self.per_second / below.per_second, is_floor: self.is_floor || below.is_floor }
    }
}

/// Whether there are enough rates that were seen to go by.
fn are_seen(rates: &[Rate]) -> bool {
    2 * rates.iter().filter(|rate| rate.is_floor).count() < rates.len()
}

fn values(rates: &[Rate]) -> Vec<f64> {
    rates.iter().map(|rate| rate.per_second).collect()
}

/// The centre of rates, or of ratios of rates.
pub(crate) fn estimate(rates: &[Rate]) -> Option<Estimate> {
    if are_seen(rates) { Estimate::of_positive(&values(rates)) } else { None }
}

/// The ratio of two groups of rates that are not paired.
pub(crate) fn estimate_ratio(above: &[Rate], below: &[Rate]) -> Option<Estimate> {
    if are_seen(above) && are_seen(below) { Estimate::of_ratio(&values(above), &values(below)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: f64) -> Rate {
        Rate { per_second, is_floor: per_second < 1.0 }
    }

    #[test]
    fn a_few_runs_without_sections_do_not_move_the_estimate() {
        let rates = [100.0, 101.0, 99.0, 100.0, 102.0, 98.0, 0.5].map(rate);
        let estimate = estimate(&rates).unwrap();
        assert!((95.0..101.0).contains(&estimate.hodges_lehmann), "{estimate:?}");
        assert!(estimate.interval.unwrap().low < 98.0);
    }

    #[test]
    fn where_half_of_the_runs_have_no_section_there_is_no_figure() {
        assert_eq!(estimate(&[100.0, 0.5].map(rate)), None);
        assert_eq!(estimate(&[]), None);
        assert_eq!(estimate_ratio(&[100.0; 4].map(rate), &[0.5; 4].map(rate)), None);
    }

    #[test]
    fn a_ratio_is_seen_only_if_both_sides_are() {
        assert!(rate(10.0).over(rate(0.5)).is_floor);
        assert_eq!(rate(10.0).over(rate(5.0)), rate(2.0));
    }
}
