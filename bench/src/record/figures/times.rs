//! Distributions of times: quantiles of the values that were seen, and of waits that had not ended.
//!
//! A wait is counted when its section ends inside the window. Those that were still pending when the window closed are
//! *censored*: each lasts at least as long as it had until then. Left out, they make a lock look good by what it does to
//! the vCPUs that never get it. They are counted with the length that is known, which makes every quantile a lower bound;
//! it is as good as an exact one if the figure stays within a bucket when all of them are taken to last forever.

use haltkick_vmm::{Known, Outcome, TicksHistogram};

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

/// A value in ticks, and whether it is only known from below.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bound {
    ticks: f64,
    at_least: bool,
}

/// Known times of one kind.
pub(crate) struct Times {
    /// The first part of the names of its figures.
    pub(crate) name: String,
    tsc_khz: u64,
    /// Values that came to their end inside the window, and their sum and the largest, in ticks.
    count: u64,
    sum: f64,
    max: f64,
    /// Values that had not come to their end when the window closed.
    pub(super) unended: Known<f64>,
    /// Values and the known lengths of those that are pending, ascending.
    spans: Vec<Span>,
    /// The spans with the pending ones at infinity.
    if_endless: Vec<Span>,
    /// Known lengths of the pending ones.
    pending: Vec<f64>,
    /// Pairs of a bucket's lower bound in nanoseconds and the number of values in it, empty buckets left out.
    pub(crate) buckets: Vec<(f64, u64)>,
    /// Whether the workload reports it at all.
    is_reported: bool,
}

/// Quantiles, by the end of their names.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];

impl Times {
    /// All times of a run of our own guest, the workload's own behind those that most have.
    pub(crate) fn all(outcome: &Outcome) -> Vec<Self> {
        let pending = outcome.pending_waits.as_deref().map_err(Clone::clone);
        // A section that is not over when the window closes is one of very many: holders do not starve.
        let unlooked = || Err("only waits are looked at".into());
        let khz = outcome.tsc_khz;
        let mut all = vec![
            Self::new("wait", &outcome.wait, pending, khz),
            Self::new("hold", &outcome.hold, unlooked(), khz),
            Self::new("unlock", &outcome.unlock, unlooked(), khz),
        ];
        let seen = |(_, times): &&(String, TicksHistogram)| times.buckets.iter().any(|count| *count > 0);
        let others = outcome.times.iter().filter(seen);
        all.extend(others.map(|(name, times)| Self::new(name, times, unlooked(), khz)));
        if let Ok(closed) = &outcome.closed
            && !closed.free.buckets.is_empty()
        {
            // In nanoseconds, of which there are a million in a millisecond.
            let unended = Err("an absence counts when it ends".into());
            all.push(Self::new("closed_free", &closed.free, unended, 1_000_000));
        }
        all
    }

    pub(super) fn new(name: &str, histogram: &TicksHistogram, pending: Known<&[u64]>, tsc_khz: u64) -> Self {
        let unended = pending.clone().map(|pending| pending.len() as f64);
        let pending = pending.unwrap_or_default();
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
        let to_ns = |ticks: f64| ticks * 1e6 / tsc_khz as f64;
        Self {
            name: name.into(),
            tsc_khz,
            count: histogram.buckets.iter().sum(),
            sum: histogram.sum as f64,
            max: histogram.max as f64,
            unended,
            spans,
            if_endless,
            pending: pending.iter().map(|ticks| *ticks as f64).collect(),
            buckets: histogram.spans().map(|it| (to_ns(it.low as f64), it.count)).collect(),
            is_reported: !histogram.buckets.is_empty(),
        }
    }

    fn to_ns(&self, ticks: f64) -> f64 {
        ticks * 1e6 / self.tsc_khz as f64
    }

    /// Number of values, the pending ones included.
    fn known(&self) -> u64 {
        self.spans.iter().map(|span| span.count).sum()
    }

    /// Why there is nothing, if so.
    fn seen(&self) -> Known<()> {
        match self.known() {
            0 if self.is_reported => Err("no section was completed inside the window".into()),
            0 => Err("this workload reports no such time".into()),
            _ => Ok(()),
        }
    }

    pub(super) fn count(&self) -> Known<f64> {
        if self.is_reported {
            Ok(self.count as f64)
        } else {
            Err("this workload reports no such time".into())
        }
    }

    pub(super) fn mean(&self) -> Known<f64> {
        self.of_ended(|| self.to_ns(self.sum) / self.count as f64)
    }

    pub(super) fn max(&self) -> Known<f64> {
        self.of_ended(|| self.to_ns(self.max))
    }

    fn of_ended(&self, value: impl Fn() -> f64) -> Known<f64> {
        self.seen()?;
        match self.count {
            0 => Err("none came to its end inside the window".into()),
            _ => Ok(value()),
        }
    }

    pub(super) fn longest(&self) -> Known<f64> {
        self.seen().map(|()| self.to_ns(self.longest_ticks().ticks))
    }

    pub(super) fn half_of_time(&self) -> Known<f64> {
        self.seen().map(|()| self.to_ns(self.half_of_time_ticks().ticks))
    }

    pub(super) fn quantile(&self, q: f64) -> Known<f64> {
        self.seen()?;
        // Fewer values than that have none beyond the quantile: it would be the largest by another name.
        let needed = (1.0 / (1.0 - q)).round() as u64;
        if self.known() < needed {
            return Err(format!("{} values do not tell: it takes {needed}", self.known()).into());
        }
        Ok(self.to_ns(self.quantile_ticks(q).ticks))
    }

    /// Names of its figures that are lower bounds, since pending values decide them.
    pub(crate) fn at_least(&self) -> Vec<String> {
        let quantiles = QUANTILES.iter().filter(|(_, q)| self.quantile(*q).is_ok());
        let quantiles = quantiles.map(|(end, q)| (*end, self.quantile_ticks(*q)));
        let others = [("longest", self.longest_ticks()), ("half_of_time", self.half_of_time_ticks())];
        let all = quantiles.chain(others.into_iter().filter(|_| self.seen().is_ok()));
        all.filter(|(_, it)| it.at_least).map(|(end, _)| format!("{}_{end}_ns", self.name)).collect()
    }

    /// Quantile `q` (0 to 1). Within a bucket the values are taken to lie evenly.
    fn quantile_ticks(&self, q: f64) -> Bound {
        let ticks = quantile_of(&self.spans, q);
        Bound { ticks, at_least: quantile_of(&self.if_endless, q) > ticks * BUCKET_STEP }
    }

    /// The longest time such that half of the sum of all goes into times at least as long.
    ///
    /// A wait that is looked at while it goes on has on average as much before it as behind it. Where the figure stays when
    /// each of the pending ones is taken to last twice as long, it is not decided by them.
    fn half_of_time_ticks(&self) -> Bound {
        let ticks = half_of(&self.spans);
        let mut doubled = self.if_endless.clone();
        let pending = doubled.iter_mut().filter(|span| span.low.is_infinite());
        for (span, ticks) in pending.zip(&self.pending) {
            (span.low, span.high) = (2.0 * ticks, 2.0 * ticks);
        }
        doubled.sort_by(|a, b| a.middle().total_cmp(&b.middle()));
        Bound { ticks, at_least: half_of(&doubled) > ticks * BUCKET_STEP }
    }

    fn longest_ticks(&self) -> Bound {
        let last = self.spans.last().map_or(0.0, |span| span.high);
        Bound { ticks: last, at_least: self.pending.contains(&last) }
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

/// The middle of `values`, which must not be empty.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks of a nanosecond each.
    const KHZ: u64 = 1_000_000;

    fn histogram(values: &[(u64, u64)]) -> TicksHistogram {
        let mut histogram = TicksHistogram::empty();
        values.iter().for_each(|&(value, times)| histogram.count(value, times));
        histogram
    }

    fn waits(values: &[(u64, u64)], pending: &[u64]) -> Times {
        Times::new("wait", &histogram(values), Ok(pending), KHZ)
    }

    fn near(figure: &Known<f64>, wanted: f64) -> bool {
        figure.as_ref().is_ok_and(|figure| (figure / wanted - 1.0).abs() <= 1.0 / 16.0)
    }

    fn reason(figure: &Known<f64>) -> &str {
        &figure.as_ref().expect_err("no figure").0
    }

    #[test]
    fn waits_that_have_not_ended_count_with_what_is_known_of_them() {
        // Nine vCPUs pass the lock among themselves, a hundred times each; seven never get it.
        let times = waits(&[(200, 900)], &[60_000_000; 100]);
        assert!(near(&times.quantile(0.5), 200.0) && near(&times.max(), 200.0));
        assert_eq!((times.quantile(0.99), times.longest()), (Ok(60_000_000.0), Ok(60_000_000.0)));
        assert_eq!((times.unended.clone(), times.count()), (Ok(100.0), Ok(900.0)));
        let is_bound = |name: &str| times.at_least().iter().any(|it| it == name);
        assert_eq!(["wait_p50_ns", "wait_p99_ns"].map(is_bound), [false, true]);
    }

    #[test]
    fn half_of_the_waiting_time_shows_what_a_quantile_hides() {
        // A thousand sections of 100 ns and ten waits of 1 ms: p90 sees the former, nearly all time goes into the latter.
        let times = waits(&[(100, 1000), (1_000_000, 10)], &[]);
        assert!(near(&times.quantile(0.9), 100.0));
        assert!(near(&times.half_of_time(), 1e6));
        assert_eq!(times.at_least(), [""; 0], "nothing is pending");
        let times = waits(&[(1_000_000, 10_000)], &[500_000; 7]);
        assert_eq!(times.at_least(), [""; 0], "a few that wait as long as all others decide nothing");
        let times = waits(&[(100, 10_000)], &[500_000; 7]);
        assert_eq!(times.at_least(), ["wait_longest_ns", "wait_half_of_time_ns"]);
    }

    #[test]
    fn a_quantile_is_null_where_no_value_can_lie_beyond_it() {
        let times = waits(&[(100, 99)], &[]);
        assert_eq!(reason(&times.quantile(0.99)), "99 values do not tell: it takes 100");
        assert!(times.quantile(0.999).is_err() && times.quantile(0.9).is_ok());
        assert!(waits(&[(100, 99)], &[100]).quantile(0.99).is_ok(), "a pending wait is a value, too");
        let times = Times::new("wait", &histogram(&[(100, 200)]), Err("nobody looked".into()), KHZ);
        assert_eq!(reason(&times.unended), "nobody looked");
        assert!(times.quantile(0.99).is_ok());
    }

    #[test]
    fn values_lie_evenly_in_their_bucket_and_below_the_largest() {
        // One bucket, 1024 to 1087 ticks: its lower bound would be 3 % less than the middle.
        let times = waits(&[(1060, 1000)], &[]);
        let p50 = times.quantile(0.5).unwrap();
        assert!((1040.0..=1045.0).contains(&p50), "{p50}");
        assert!(times.quantile(0.999).unwrap() <= 1060.0);
    }

    #[test]
    fn a_window_without_an_acquisition_gives_lower_bounds_of_waits() {
        let times = waits(&[], &[5_000_000; 4]);
        assert_eq!(times.quantile(0.5), Ok(5e6));
        assert!(times.mean().is_err() && times.max().is_err());
        assert_eq!(times.at_least(), ["wait_p50_ns", "wait_longest_ns", "wait_half_of_time_ns"]);
    }
}
