//! Distributions of times: quantiles of the values that were seen, and of waits that had not ended.
//!
//! A wait is counted when its section ends inside the window. Those that were still pending when the window closed are
//! *censored*: each lasts at least as long as it had until then. Left out, they make a lock look good by what it does to
//! the vCPUs that never get it. They are counted with the length that is known, which makes every quantile a lower bound;
//! it is as good as an exact one if the figure stays within a bucket when all of them are taken to last forever.

use haltkick_vmm::{Known, Outcome, TicksHistogram, TicksSpan};

/// Known times of one kind, in ticks.
pub(crate) struct Times<'a> {
    /// The first part of the names of its figures.
    pub(crate) name: &'a str,
    tsc_khz: u64,
    /// Values that came to their end inside the window; without buckets if the workload reports none.
    ended: &'a TicksHistogram,
    /// Known lengths of those that had not come to their end when the window closed.
    pending: Known<&'a [u64]>,
    /// All of these values, ascending.
    spans: Vec<TicksSpan>,
}

/// Quantiles, by the end of their names.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];

impl<'a> Times<'a> {
    /// All times of a run of our own guest, the workload's own behind those that most have.
    pub(crate) fn all(outcome: &'a Outcome) -> Vec<Self> {
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

    fn new(name: &'a str, ended: &'a TicksHistogram, pending: Known<&'a [u64]>, tsc_khz: u64) -> Self {
        let mut times = Self { name, tsc_khz, ended, pending, spans: vec![] };
        times.spans = times.spans_if(|ticks| ticks);
        times
    }

    fn pending(&self) -> &[u64] {
        self.pending.as_deref().unwrap_or_default()
    }

    /// All values, ascending, with pending ones as long as `lasts` has them by their known lengths.
    fn spans_if(&self, lasts: impl Fn(u64) -> u64) -> Vec<TicksSpan> {
        let exact = |ticks: u64| TicksSpan { low: ticks, high: ticks, count: 1 };
        let pending = self.pending().iter().map(|ticks| exact(lasts(*ticks)));
        let mut spans: Vec<TicksSpan> = self.ended.spans().chain(pending).collect();
        spans.sort_by(|a, b| middle(a).total_cmp(&middle(b)));
        spans
    }

    fn to_ns(&self, ticks: f64) -> f64 {
        ticks * 1e6 / self.tsc_khz as f64
    }

    /// Pairs of a bucket's lower bound in nanoseconds and the number of values in it, empty buckets left out.
    pub(crate) fn buckets(&self) -> Vec<(f64, u64)> {
        self.ended.spans().map(|it| (self.to_ns(it.low as f64), it.count)).collect()
    }

    /// Number of values, the pending ones included.
    fn known(&self) -> u64 {
        self.spans.iter().map(|span| span.count).sum()
    }

    pub(super) fn count(&self) -> Known<f64> {
        match self.ended.buckets.is_empty() {
            true => Err("this workload reports no such time".into()),
            false => Ok(self.ended.buckets.iter().sum::<u64>() as f64),
        }
    }

    pub(super) fn unended(&self) -> Known<f64> {
        self.pending.clone().map(|pending| pending.len() as f64)
    }

    /// Why there is nothing, if so.
    fn seen(&self) -> Known<()> {
        match self.known() {
            0 => self.count().and_then(|_| Err("no section was completed inside the window".into())),
            _ => Ok(()),
        }
    }

    pub(super) fn mean(&self) -> Known<f64> {
        Ok(self.to_ns(self.ended.sum as f64) / self.some_ended()?)
    }

    pub(super) fn max(&self) -> Known<f64> {
        self.some_ended().map(|_| self.to_ns(self.ended.max as f64))
    }

    /// How many came to their end, if any did.
    fn some_ended(&self) -> Known<f64> {
        self.seen()?;
        let some = self.count().ok().filter(|count| *count > 0.0);
        some.ok_or_else(|| "none came to its end inside the window".into())
    }

    pub(super) fn longest(&self) -> Known<f64> {
        self.seen().map(|()| self.to_ns(self.longest_ticks() as f64))
    }

    fn longest_ticks(&self) -> u64 {
        self.spans.last().map_or(0, |span| span.high)
    }

    /// The longest time such that half of the sum of all goes into times at least as long.
    pub(super) fn half_of_time(&self) -> Known<f64> {
        self.seen().map(|()| self.to_ns(half_of(&self.spans)))
    }

    /// Quantile `q` (0 to 1). Within a bucket the values are taken to lie evenly.
    pub(super) fn quantile(&self, q: f64) -> Known<f64> {
        self.seen()?;
        // Fewer values than that have none beyond the quantile: it would be the largest by another name.
        let needed = (1.0 / (1.0 - q)).round() as u64;
        if self.known() < needed {
            return Err(format!("{} values do not tell: it takes {needed}", self.known()).into());
        }
        Ok(self.to_ns(quantile_of(&self.spans, q)))
    }

    /// Names of its figures that are lower bounds, since pending values decide them.
    pub(crate) fn at_least(&self) -> Vec<String> {
        if self.seen().is_err() {
            return vec![];
        }
        let endless = self.spans_if(|_| u64::MAX);
        // A wait that is looked at while it goes on has on average as much before it as behind it. Where the figure stays when each of the
        // pending ones is taken to last twice as long, it is not decided by them.
        let doubled = self.spans_if(|ticks| ticks.saturating_mul(2));
        let grows = |from: f64, to: f64| to > from * BUCKET_STEP;
        let is_bound = |q: f64| grows(quantile_of(&self.spans, q), quantile_of(&endless, q));
        let quantiles = QUANTILES.map(|(end, q)| (end, self.quantile(q).is_ok() && is_bound(q)));
        let others = [
            ("longest", self.pending().contains(&self.longest_ticks())),
            ("half_of_time", grows(half_of(&self.spans), half_of(&doubled))),
        ];
        let all = quantiles.into_iter().chain(others).filter(|(_, is_bound)| *is_bound);
        all.map(|(end, _)| format!("{}_{end}_ns", self.name)).collect()
    }
}

fn middle(span: &TicksSpan) -> f64 {
    f64::midpoint(span.low as f64, span.high as f64)
}

/// From one bucket of a histogram to the next.
const BUCKET_STEP: f64 = 17.0 / 16.0;

fn half_of(spans: &[TicksSpan]) -> f64 {
    let total: f64 = spans.iter().map(|span| middle(span) * span.count as f64).sum();
    let mut longer = 0.0;
    let at_half = spans.iter().rev().find(|span| {
        longer += middle(span) * span.count as f64;
        2.0 * longer >= total
    });
    at_half.map_or(0.0, middle)
}

fn quantile_of(spans: &[TicksSpan], q: f64) -> f64 {
    let total: u64 = spans.iter().map(|span| span.count).sum();
    let rank = ((total as f64 * q).ceil() as u64).max(1);
    let mut before = 0_u64;
    for TicksSpan { low, high, count } in spans {
        if before + count >= rank {
            let within = ((rank - before) as f64 - 0.5) / *count as f64;
            return if low == high { *low as f64 } else { *low as f64 + (high - low) as f64 * within };
        }
        before += count;
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

    fn waits<'a>(values: &[(u64, u64)], pending: &'a [u64]) -> Times<'a> {
        Times::new("wait", Box::leak(Box::new(histogram(values))), Ok(pending), KHZ)
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
        assert_eq!((times.unended(), times.count()), (Ok(100.0), Ok(900.0)));
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
    fn a_quantile_lies_within_its_bucket_or_is_null_beyond_all_values() {
        let times = waits(&[(100, 99)], &[]);
        assert_eq!(reason(&times.quantile(0.99)), "99 values do not tell: it takes 100");
        assert!(times.quantile(0.999).is_err() && times.quantile(0.9).is_ok());
        // Values lie evenly in their bucket, 1024 to 1087 ticks, and below the largest.
        let times = waits(&[(1060, 1000)], &[]);
        let [p50, p999] = [0.5, 0.999].map(|q| times.quantile(q).unwrap());
        assert!((1040.0..=1045.0).contains(&p50) && p999 <= 1060.0, "{p50} {p999}");
        assert!(waits(&[(100, 99)], &[100]).quantile(0.99).is_ok(), "a pending wait is a value, too");
        let ended = histogram(&[(100, 200)]);
        let times = Times::new("wait", &ended, Err("nobody looked".into()), KHZ);
        assert_eq!(reason(&times.unended()), "nobody looked");
        assert!(times.quantile(0.99).is_ok());
    }

    #[test]
    fn a_window_without_an_acquisition_gives_lower_bounds_of_waits() {
        let times = waits(&[], &[5_000_000; 4]);
        assert_eq!(times.quantile(0.5), Ok(5e6));
        assert!(times.mean().is_err() && times.max().is_err());
        assert_eq!(times.at_least(), ["wait_p50_ns", "wait_longest_ns", "wait_half_of_time_ns"]);
    }
}
