//! A quota of CPU time (`--quota`): a guest's vCPUs may run for a limited time in each period, and then all stop until the next one.
//! Under the VMM's scheduler a purse keeps it; under the host's the kernel keeps that of a control group (`cgroup` in `host/`).
//!
//! As Linux does it (`cpu.max`): a purse for each guest, filled at the beginning of each period, once even if several were missed, up to
//! quota and burst; a vCPU takes a portion out of it before it runs and whenever that is used up, and gives back the rest afterwards, so
//! that several of them run dry at different moments. Time beyond what it took is owed. Unlike there, a portion is a tenth of the quota and
//! not 5 ms, a vCPU that sleeps keeps nothing, and time is charged where a portion ends, not at ticks.

use std::sync::Mutex;
use std::time::Duration;

use crate::host::cgroup::{Bandwidth, inherited};
use crate::host::error::Refused;
use crate::host::text::Span;
use crate::host::threads::lock;

/// A quota of CPU time for the vCPUs of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// The VMM keeps it.
    Own(Bandwidth),
    /// The kernel keeps it: that of the control groups in which this process was started, for all its guests together.
    Inherited,
}

/// Portions of a quota: 5 ms are a tenth where half of a period of 100 ms is allowed.
const PORTIONS: u64 = 10;
/// A shorter rest than this is not worth an entry into the guest: it is left until the purse is filled.
const LEAST_NS: u64 = 5_000;
const SHORTEST_RUN: Duration = Duration::from_micros(20);
const SHORTEST_PERIOD: Duration = Duration::from_micros(100);
const LONGEST_PERIOD: Duration = Duration::from_secs(1);

impl Quota {
    /// Length of a period; zero if there is none to inherit.
    #[must_use]
    pub fn period(self) -> Duration {
        match self {
            Self::Own(quota) => quota.period,
            Self::Inherited => inherited().as_ref().map_or(Duration::ZERO, |quota| quota.bandwidth.period),
        }
    }
}

impl Bandwidth {
    /// Refuses quotas that cannot be kept, or that limit nothing on `pcpus` pCPUs.
    pub(crate) fn check(self, pcpus: usize) -> Result<(), Refused> {
        let Self { run, period, burst } = self;
        let refuse_if = |is_wrong, message: String| Refused::when(is_wrong, "quota", message);
        refuse_if(
            !(SHORTEST_PERIOD..=LONGEST_PERIOD).contains(&period),
            format!("a period of {} is out of range: 100us to 1s", Span(period)),
        )?;
        let (asked, most) = (Span(run), Span(period * pcpus as u32));
        let hardly = format!("{asked} are hardly an entry into the guest: 20us at least");
        refuse_if(run < SHORTEST_RUN, hardly)?;
        let nothing = format!("{asked} limit nothing: {pcpus} pCPUs have {most} in a period");
        refuse_if(run > most.0, nothing)?;
        let burst_of = format!("a burst of {}", Span(burst));
        refuse_if(burst > run, format!("{burst_of} is out of range: {asked}, the quota, at most"))
    }
}

/// Times that a quota kept vCPUs from running, inside the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    /// How often a vCPU was kept until the next period.
    pub times: u64,
    /// How often it held a lock.
    pub holders: u64,
    /// For how long, all together, in nanoseconds.
    pub ns: u64,
}

/// CPU time that a turn has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portion {
    pub(super) since_ns: u64,
    pub(super) ns: u64,
    /// When the slice ends that it is for: others wait until then.
    pub(super) slice_ends_ns: u64,
}

/// The CPU time that a guest has left.
#[derive(Debug)]
pub(crate) struct Purse {
    run_ns: i64,
    /// The most that is taken at once.
    portion_ns: u64,
    period_ns: u64,
    most_ns: i64,
    began_ns: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Below 0: owed.
    left_ns: i64,
    /// Number of the period in which it was filled last.
    period: u64,
}

impl Purse {
    /// The purse of a guest that begins at `began_ns`, filled.
    pub(crate) fn new(quota: Bandwidth, began_ns: u64) -> Self {
        let ns = |time: Duration| time.as_nanos() as i64;
        Self {
            run_ns: ns(quota.run),
            portion_ns: (ns(quota.run) as u64 / PORTIONS).max(4 * LEAST_NS),
            period_ns: quota.period.as_nanos() as u64,
            most_ns: ns(quota.run + quota.burst),
            began_ns,
            state: Mutex::new(State { left_ns: ns(quota.run), period: 0 }),
        }
    }

    /// Takes a portion at `now_ns`, for a slice that lasts for another `slice_ns`.
    ///
    /// # Errors
    /// There is nothing left: the time at which there will be.
    pub(super) fn take(&self, slice_ns: u64, now_ns: u64) -> Result<Portion, u64> {
        let mut state = lock(&self.state);
        let period = now_ns.saturating_sub(self.began_ns) / self.period_ns;
        if period > state.period {
            state.period = period;
            state.left_ns = (state.left_ns + self.run_ns).min(self.most_ns);
        }
        let wanted_ns = slice_ns.min(self.portion_ns);
        let taken_ns = wanted_ns.min(state.left_ns.max(0) as u64);
        if taken_ns < LEAST_NS.min(wanted_ns) {
            return Err(self.began_ns + (period + 1) * self.period_ns);
        }
        state.left_ns -= taken_ns as i64;
        Ok(Portion { since_ns: now_ns, ns: taken_ns, slice_ends_ns: now_ns + slice_ns })
    }

    /// The vCPU that has taken `portion` has run until `now_ns`.
    pub(super) fn settle(&self, portion: Portion, now_ns: u64) {
        let mut state = lock(&self.state);
        let ran_ns = now_ns.saturating_sub(portion.since_ns);
        let owed_ns = (state.left_ns + portion.ns as i64).saturating_sub_unsigned(ran_ns);
        // The host may have kept the thread off its CPU for long: that is paid in one period.
        state.left_ns = owed_ns.clamp(-self.run_ns, self.most_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    fn quota(run_us: u64, period_us: u64, burst_us: u64) -> Bandwidth {
        let [run, period, burst] = [run_us, period_us, burst_us].map(Duration::from_micros);
        Bandwidth { run, period, burst }
    }

    /// A purse of which any portion can be taken.
    fn full(quota: Bandwidth, began_ns: u64) -> Purse {
        Purse { portion_ns: u64::MAX, ..Purse::new(quota, began_ns) }
    }

    fn portion(ns: u64) -> Portion {
        Portion { since_ns: 0, ns, slice_ends_ns: ns }
    }

    /// Takes what is wanted out of `purse`, each at its time, in microseconds: what is given, or when there will be something.
    fn take(purse: &Purse, wanted: &[(u64, u64)]) -> Vec<Result<u64, u64>> {
        let take = |&(wanted_us, now_us): &(u64, u64)| match purse.take(wanted_us * US, now_us * US) {
            Ok(portion) => Ok(portion.ns / US),
            Err(until_ns) => Err(until_ns / US),
        };
        wanted.iter().map(take).collect()
    }

    #[test]
    fn a_turn_takes_a_tenth_of_the_quota_at_once() {
        let purse = Purse::new(quota(300, 1000, 0), 0);
        let first = purse.take(200 * US, 5 * US).expect("it is full");
        assert_eq!((first.ns, first.slice_ends_ns), (30 * US, 205 * US));
        assert_eq!(take(&purse, &[(20, 5)]), [Ok(20)]);
        assert_eq!(take(&Purse::new(quota(50, 1000, 0), 0), &[(200, 0)]), [Ok(20)]);
    }

    #[test]
    fn a_purse_is_filled_once_a_period_and_gives_no_more() {
        // Several periods fill it once.
        let wanted = [(200, 7), (200, 7), (200, 900), (200, 1006), (1000, 5500), (1000, 5500)];
        let given = [Ok(200), Ok(100), Err(1007), Err(1007), Ok(300), Err(6007)];
        assert_eq!(take(&full(quota(300, 1000, 0), 7 * US), &wanted), given);
        // A burst keeps what earlier periods have left, also a rest that is too short to run.
        let wanted = [(1000, 1000), (297, 2000), (1000, 2000), (1000, 3000)];
        let given = [Ok(400), Ok(297), Err(3000), Ok(303)];
        assert_eq!(take(&full(quota(300, 1000, 100), 0), &wanted), given);
    }

    #[test]
    fn a_rest_comes_back_and_time_beyond_a_portion_is_owed() {
        let purse = full(quota(300, 1000, 0), 0);
        assert_eq!(take(&purse, &[(200, 0)]), [Ok(200)]);
        purse.settle(portion(200 * US), 50 * US);
        assert_eq!(take(&purse, &[(1000, 0)]), [Ok(250)]);
        purse.settle(portion(250 * US), 350 * US);
        assert_eq!(take(&purse, &[(1000, 1000)]), [Ok(200)]);
        // A long absence of the thread costs a period, and no more.
        purse.settle(portion(200 * US), 90_000 * US);
        assert_eq!(take(&purse, &[(1000, 2000), (1000, 3000)]), [Err(3000), Ok(300)]);
    }

    #[test]
    fn a_quota_that_cannot_be_or_limits_nothing_is_refused() {
        let refused = |run, period, burst| quota(run, period, burst).check(2).map_err(|error| error.message);
        assert_eq!(refused(200, 1000, 200), Ok(()));
        for (run, period, burst, says) in [
            (200, 50, 0, "a period of 50us is out of range"),
            (200, 2_000_000, 0, "a period of 2s is out of range"),
            (10, 1000, 0, "10us are hardly an entry"),
            (3000, 1000, 0, "3ms limit nothing: 2 pCPUs have 2ms in a period"),
            (200, 1000, 300, "a burst of 300us is out of range: 200us, the quota, at most"),
        ] {
            let message = refused(run, period, burst).expect_err(says);
            assert!(message.starts_with(says), "{message}");
        }
    }
}
