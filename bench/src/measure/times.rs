//! Distributions of times: quantiles of the values that were seen, and of waits that had not ended.
//!
//! A wait is counted when its section ends inside the window. Those that were still pending when the window closed are
//! *censored*: each lasts at least as long as it had until then. Left out, they make a lock look good by what it does to
//! the vCPUs that never get it. They are counted with the length that is known, which makes every quantile a lower bound;
//! it is as good as an exact one if the figure stays within a bucket when all of them are taken to last forever.

use haltkick_vmm::{Known, TicksHistogram};

use crate::record::Distribution;
use crate::record::why::Why;

/// Some values between two bounds, in ticks.
#[derive(Clone, Copy, Debug)]
struct Span {
    low: f64,
    high: f64,
    count: u64,
}

impl Span {
    fn middle(&self) -> f64 {
        f64::midpoint(self.low, self.high)
    }
}

/// A figure, and whether it is only known from below.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figure {
    ticks: f64,
    at_least: bool,
}

/// Known times of one kind.
struct Times {
    /// Values and the known lengths of those that are pending, ascending.
    spans: Vec<Span>,
    /// The spans with the pending ones at infinity.
    if_endless: Vec<Span>,
    /// Known lengths of the pending ones.
    pending: Vec<f64>,
}

impl Times {
    fn new(histogram: &TicksHistogram, pending: &[u64]) -> Self {
        let seen: Vec<Span> = histogram
            .spans()
            .map(|it| Span { low: it.low as f64, high: it.high as f64, count: it.count })
            .collect();
        let exact = |ticks: f64| Span { low: ticks, high: ticks, count: 1 };
        let mut spans = seen.clone();
        spans.extend(pending.iter().map(|ticks| exact(*ticks as f64)));
        spans.sort_by(|a, b| a.middle().total_cmp(&b.middle()));
        let mut if_endless = seen;
        if_endless.extend(pending.iter().map(|_| exact(f64::INFINITY)));
        Self { spans, if_endless, pending: pending.iter().map(|ticks| *ticks as f64).collect() }
    }

    fn count(&self) -> u64 {
        self.spans.iter().map(|span| span.count).sum()
    }

    /// Quantile `q` (0 to 1). Within a bucket the values are taken to lie evenly.
    fn quantile(&self, q: f64) -> Figure {
        let ticks = quantile_of(&self.spans, q);
        Figure { ticks, at_least: quantile_of(&self.if_endless, q) > ticks * BUCKET_STEP }
    }

    /// The longest time such that half of the sum of all goes into times at least as long.
    ///
    /// A wait that is looked at while it goes on has on average as much before it as behind it. Where the figure stays when
    /// each of the pending ones is taken to last twice as long, it is not decided by them.
    fn half_of_time(&self) -> Figure {
        let ticks = half_of(&self.spans);
        let mut doubled = self.if_endless.clone();
        let pending = doubled.iter_mut().filter(|span| span.low.is_infinite());
        for (span, ticks) in pending.zip(&self.pending) {
            (span.low, span.high) = (2.0 * ticks, 2.0 * ticks);
        }
        doubled.sort_by(|a, b| a.middle().total_cmp(&b.middle()));
        Figure { ticks, at_least: half_of(&doubled) > ticks * BUCKET_STEP }
    }

    fn longest(&self) -> Figure {
        let last = self.spans.last().map_or(0.0, |span| span.high);
        Figure { ticks: last, at_least: self.pending.contains(&last) }
    }
}

/// From one bucket of a histogram to the next.
const BUCKET_STEP: f64 = 17.0 / 16.0;

fn half_of(spans: &[Span]) -> f64 {
    let total: f64 = spans.iter().map(|span| span.middle() * span.count as f64).sum();
    let mut longer = 0.0;
    let at_half = spans.iter().rev().find(|span| {
        longer += span.middle() * span.count as f64;
        2.0 * longer >= total
    });
    at_half.map_or(0.0, Span::middle)
}

fn quantile_of(spans: &[Span], q: f64) -> f64 {
    let total: u64 = spans.iter().map(|span| span.count).sum();
    let rank = ((total as f64 * q).ceil() as u64).max(1);
    let mut before = 0;
    for span in spans {
        if before + span.count >= rank {
            if span.low == span.high {
                return span.low;
            }
            let within = ((rank - before) as f64 - 0.5) / span.count as f64;
            return span.low + (span.high - span.low) * within;
        }
        before += span.count;
    }
    0.0
}

/// The distribution called `path`. `pending`: the values that had not come to an end, or why they are not known.
pub(super) fn distribution(
    path: &str,
    histogram: &TicksHistogram,
    pending: Known<&[u64]>,
    tsc_khz: u64,
    why: &mut Why,
) -> Distribution {
    let count: u64 = histogram.buckets.iter().sum();
    let times = Times::new(histogram, pending.as_ref().copied().unwrap_or_default());
    let pending = why.known(format!("{path}.pending"), pending.map(|pending| pending.len() as u64));
    if times.count() == 0 {
        let reason = match histogram.buckets.is_empty() {
            true => "this workload reports no such time: see times_ns",
            false => "no section was completed inside the window",
        };
        why.explain(path, reason);
        return Distribution { pending, ..Distribution::default() };
    }
    let to_ns = |ticks: f64| ticks * 1e6 / tsc_khz as f64;
    let mut at_least = Vec::new();
    let mut figure = |name: &str, figure: Figure| {
        if figure.at_least {
            at_least.push(name.to_owned());
        }
        Some(to_ns(figure.ticks))
    };
    let mut quantile = |name: &str, q: f64| {
        // Fewer values than that have none beyond the quantile: it would be the largest by another name.
        let needed = (1.0 / (1.0 - q)).round() as u64;
        if times.count() < needed {
            let reason = format!("{} values do not tell: it takes {needed}", times.count());
            why.explain(format!("{path}.{name}"), reason);
            return None;
        }
        figure(name, times.quantile(q))
    };
    let [p50, p90, p99, p999] =
        [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)].map(|(name, q)| quantile(name, q));
    if count == 0 {
        for name in ["mean", "max"] {
            why.explain(format!("{path}.{name}"), "none came to its end inside the window");
        }
    }
    Distribution {
        count,
        mean: (count > 0).then(|| to_ns(histogram.sum as f64) / count as f64),
        p50,
        p90,
        p99,
        p999,
        max: (count > 0).then(|| to_ns(histogram.max as f64)),
        pending,
        longest: figure("longest", times.longest()),
        half_of_time: figure("half_of_time", times.half_of_time()),
        at_least,
        buckets: histogram.occupied().map(|(ticks, count)| (to_ns(ticks as f64), count)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Ticks of a nanosecond each.
    const KHZ: u64 = 1_000_000;

    fn histogram(values: &[(u64, u64)]) -> TicksHistogram {
        let mut histogram = TicksHistogram::empty();
        values.iter().for_each(|&(value, times)| histogram.count(value, times));
        histogram
    }

    fn waits(values: &[(u64, u64)], pending: &[u64]) -> (Distribution, BTreeMap<String, String>) {
        let mut why = Why::default();
        (distribution("wait_ns", &histogram(values), Ok(pending), KHZ, &mut why), why.0)
    }

    fn near(figure: Option<f64>, wanted: f64) -> bool {
        figure.is_some_and(|figure| (figure / wanted - 1.0).abs() <= 1.0 / 16.0)
    }

    #[test]
    fn waits_that_have_not_ended_count_with_what_is_known_of_them() {
        // Nine vCPUs pass the lock among themselves, a hundred times each; seven never get it.
        let (times, _) = waits(&[(200, 900)], &[60_000_000; 100]);
        assert!(near(times.p50, 200.0) && !times.at_least.contains(&"p50".to_owned()), "{times:?}");
        assert_eq!(times.p99, Some(60_000_000.0));
        assert!(times.at_least.contains(&"p99".to_owned()), "{times:?}");
        assert_eq!((times.pending, times.count), (Some(100), 900));
        assert_eq!(times.longest, Some(60_000_000.0));
        assert!(near(times.max, 200.0));
    }

    #[test]
    fn half_of_the_waiting_time_shows_what_a_quantile_hides() {
        // A thousand sections of 100 ns and ten waits of 1 ms: p90 sees the former, nearly all time goes into the latter.
        let (times, _) = waits(&[(100, 1000), (1_000_000, 10)], &[]);
        assert!(near(times.p90, 100.0), "{times:?}");
        assert!(near(times.half_of_time, 1e6), "{times:?}");
        assert!(times.at_least.is_empty(), "nothing is pending: {times:?}");
        let (times, _) = waits(&[(1_000_000, 10_000)], &[500_000; 7]);
        assert!(times.at_least.is_empty(), "a few that wait as long as all others decide nothing: {times:?}");
        let (times, _) = waits(&[(100, 10_000)], &[500_000; 7]);
        assert_eq!(times.at_least, ["longest", "half_of_time"]);
    }

    #[test]
    fn a_quantile_is_null_where_no_value_can_lie_beyond_it() {
        let (times, why) = waits(&[(100, 99)], &[]);
        assert_eq!((times.p99, times.p999), (None, None));
        assert!(times.p90.is_some());
        assert!(why["wait_ns.p99"].contains("99 values do not tell: it takes 100"), "{why:?}");
        assert!(waits(&[(100, 99)], &[100]).0.p99.is_some(), "a pending wait is a value, too");
    }

    #[test]
    fn values_lie_evenly_in_their_bucket_and_below_the_largest() {
        // One bucket, 1024 to 1087 ticks: its lower bound would be 3 % less than the middle.
        let (times, _) = waits(&[(1060, 1000)], &[]);
        assert!((1040.0..=1045.0).contains(&times.p50.unwrap()), "{times:?}");
        assert!(times.p999.unwrap() <= 1060.0, "{times:?}");
    }

    #[test]
    fn a_window_without_an_acquisition_gives_lower_bounds_of_waits() {
        let (times, why) = waits(&[], &[5_000_000; 4]);
        assert_eq!((times.p50, times.mean, times.max), (Some(5e6), None, None));
        assert_eq!(times.at_least, ["p50", "longest", "half_of_time"]);
        assert!(why.contains_key("wait_ns.mean") && !why.contains_key("wait_ns"), "{why:?}");
    }

    #[test]
    fn where_pending_waits_are_not_known_that_is_said() {
        let mut why = Why::default();
        let unknown = Err("nobody looked".into());
        let times = distribution("wait_ns", &histogram(&[(100, 200)]), unknown, KHZ, &mut why);
        assert_eq!(times.pending, None);
        assert_eq!(why.0["wait_ns.pending"], "nobody looked");
        assert!(times.p99.is_some());
    }
}
