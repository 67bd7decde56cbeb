//! Work that a guest has done, by time, and what a cut does to it, compared with the run without the cut.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::host::error::RunError;
use crate::run::asked::OurGuest;
use crate::run::supervise::Stage;
use crate::worst::overtaking::Order;

/// Time from one sample to the next.
pub(super) const TICK_NS: u64 = 10_000;

/// The state of a guest at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Work that all vCPUs have done since the start.
    pub worked_ns: u64,
    /// Sections that were entered since the start.
    pub entered: u64,
    /// vCPUs that wait for a lock.
    pub waiting: u32,
    /// The longest that one of them has waited so far.
    pub longest_wait_ns: u64,
    /// Time in which pCPUs were idle since the start.
    pub idle_ns: u64,
    /// Time in the VMM since the start, of all pCPUs.
    pub vmm_ns: u64,
}

impl Sample {
    fn take(Stage { scheduler, guest, memory }: Stage<'_>, locks: u32) -> Self {
        let now = guest.tsc.of_host(guest.clock.tsc());
        // Relaxed: nothing runs while this is read.
        let since = |vcpu| memory.area(vcpu).activity.awaited_since_tsc.load(Ordering::Relaxed);
        let waits = (0..guest.vcpus).map(since).filter(|since| (1..=now).contains(since));
        let waiting = waits.clone().count() as u32;
        let longest = waits.map(|since| now - since).max().unwrap_or(0);
        let [worked_ns, idle_ns, vmm_ns] = scheduler.spent().map(|time| time.as_nanos() as u64);
        let entered = |lock| memory.oracle(lock).entered.load(Ordering::Relaxed);
        Self {
            worked_ns,
            entered: (0..locks).map(entered).fold(0, u64::wrapping_add),
            waiting,
            longest_wait_ns: guest.tsc.rate().nanoseconds(crate::host::clock::Ticks(longest)).0,
            idle_ns,
            vmm_ns,
        }
    }
}

/// A guest from the opening of the window on.
pub(super) struct Curve<'a> {
    /// One a tick.
    pub(super) samples: Vec<Sample>,
    order: Order,
    pub(super) locks: u32,
    stop: &'a AtomicBool,
}

impl<'a> Curve<'a> {
    pub(super) fn new(asked: OurGuest<'_>, stop: &'a AtomicBool) -> Self {
        Self { samples: Vec::new(), order: Order::new(asked), locks: asked.ours.lock_count, stop }
    }

    pub(super) fn sample(&mut self, stage: Stage<'_>) {
        self.samples.push(Sample::take(stage, self.locks));
    }

    /// Lets a tick pass and adds a sample of it, unless the guest has failed or a vCPU was overtaken against the lock's promise, which
    /// ends the curve. `stopped` is told how many vCPUs sleep when one is cut.
    ///
    /// # Errors
    /// A request to stop.
    pub(super) fn tick(
        &mut self,
        stage: Stage<'_>,
        stopped: &mut dyn FnMut(u32),
    ) -> Result<ControlFlow<()>, RunError> {
        let Stage { scheduler, guest, memory } = stage;
        scheduler.pass_watched(Duration::from_nanos(TICK_NS), stopped);
        if let Some(overtaken) = self.order.look(memory, self.locks, || scheduler.whereabouts()) {
            guest.fail(RunError::Overtaken(overtaken));
        }
        if guest.failed() {
            return Ok(ControlFlow::Break(()));
        }
        // Relaxed: a request.
        if self.stop.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        self.sample(stage);
        Ok(ControlFlow::Continue(()))
    }
}

/// A number that two curves share only if they are alike.
pub(super) fn fingerprint(samples: &[Sample]) -> u64 {
    let words = samples.iter().flat_map(|sample| {
        [sample.worked_ns, sample.entered, u64::from(sample.waiting), sample.longest_wait_ns]
    });
    // FNV-1a.
    words
        .flat_map(u64::to_le_bytes)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The difference that a cut made.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Effect {
    /// How much later as much work was done as without it by the end of the horizon; negative: earlier.
    pub late_ns: i64,
    /// Part of `late_ns`, times the pCPUs, in which pCPUs were idle.
    pub idle_ns: i64,
    /// Part of it in which they were in the VMM. In the rest vCPUs ran and did not work: they spun, or executed the lock.
    pub vmm_ns: i64,
    /// It was not done by three horizons: `late_ns` is a lower bound.
    pub censored: bool,
    /// Sections that were entered within the horizon, fewer than without it.
    pub fewer_entries: i64,
    /// The longest wait within the horizon, and that without the cut.
    pub longest_wait_ns: [u64; 2],
    /// Time of vCPUs that waited while no vCPU entered, within the horizon, and that without the cut.
    pub blocked_ns: [u64; 2],
    /// After this time no more was lost, if that was before the last quarter of the horizon.
    pub heals_ns: Option<u64>,
    /// The run went on as it does without the cut, in all that is sampled.
    pub unchanged: bool,
    /// A number that two branches share only if their curves are alike.
    pub fingerprint: u64,
}

/// A branch in which the guest failed.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Broken {
    /// It made no progress; else it broke mutual exclusion, or worse.
    pub is_stuck: bool,
    /// The event in one line.
    pub what: String,
    /// Which vCPU is at fault.
    pub explanation: String,
}

/// Deficits below this share of the whole one count as none, in percent.
const HEALED_PERCENT: i64 = 10;

impl Effect {
    /// Compares `samples`, from the opening of the window on, with those without the cut, which was at tick `at`.
    pub(super) fn between(base: &[Sample], samples: &[Sample], at: usize, horizon: usize) -> Self {
        let end = at + horizon;
        let goal = base[end].worked_ns;
        let reached = (at..samples.len()).find(|tick| samples[*tick].worked_ns >= goal);
        let done =
            reached.map_or_else(|| Moment::at(samples, samples.len() - 1), |tick| done(samples, tick, goal));
        let base_done = done_of_base(base, end, goal);
        let within = at..samples.len().min(end + 1);
        let longest = |samples: &[Sample]| {
            samples[within.clone()].iter().map(|sample| sample.longest_wait_ns).max().unwrap_or(0)
        };
        let last = &samples[within.end - 1];
        Self {
            late_ns: done.at_ns as i64 - base_done.at_ns as i64,
            idle_ns: done.idle_ns as i64 - base_done.idle_ns as i64,
            vmm_ns: done.vmm_ns as i64 - base_done.vmm_ns as i64,
            censored: reached.is_none(),
            fewer_entries: base[end].entered.wrapping_sub(last.entered) as i64,
            longest_wait_ns: [longest(samples), longest(base)],
            blocked_ns: [samples, base].map(|samples| blocked_ns(&samples[within.clone()])),
            heals_ns: heals_ns(base, samples, at, horizon),
            unchanged: base.starts_with(samples),
            fingerprint: fingerprint(samples),
        }
    }
}

/// A moment of a run, and where the pCPUs' time went by then.
struct Moment {
    at_ns: u64,
    idle_ns: u64,
    vmm_ns: u64,
}

impl Moment {
    fn at(samples: &[Sample], tick: usize) -> Self {
        let Sample { idle_ns, vmm_ns, .. } = samples[tick];
        Self { at_ns: tick as u64 * TICK_NS, idle_ns, vmm_ns }
    }
}

/// The moment when `goal` was done, which is so at `tick` for the first time: between the ticks as if all went on evenly.
fn done(samples: &[Sample], tick: usize, goal: u64) -> Moment {
    let end = Moment::at(samples, tick);
    let Some(before) = tick.checked_sub(1) else { return end };
    let (worked_ns, before) = (samples[before].worked_ns, Moment::at(samples, before));
    let (done_ns, over_ns) = (samples[tick].worked_ns - worked_ns, samples[tick].worked_ns - goal);
    // A switch counts when it begins, with all that it takes: what is left, the idle time, may step back a little.
    let between = |before: u64, end: u64| {
        let part = (i128::from(end) - i128::from(before)) * i128::from(over_ns);
        (i128::from(end) - part.checked_div(done_ns.into()).unwrap_or(0)) as u64
    };
    Moment {
        at_ns: between(before.at_ns, end.at_ns),
        idle_ns: between(before.idle_ns, end.idle_ns),
        vmm_ns: between(before.vmm_ns, end.vmm_ns),
    }
}

/// The moment at which the run without the cut had done `goal`: its last ticks may add no work.
fn done_of_base(base: &[Sample], end: usize, goal: u64) -> Moment {
    let first = (0..=end).rev().take_while(|tick| base[*tick].worked_ns >= goal).last().unwrap_or(end);
    done(base, first, goal)
}

/// Time of vCPUs that waited in ticks within which no vCPU entered.
fn blocked_ns(samples: &[Sample]) -> u64 {
    let blocked = samples.windows(2).filter(|pair| pair[0].entered == pair[1].entered);
    blocked.map(|pair| u64::from(pair[1].waiting) * TICK_NS).sum()
}

/// The last time at which the deficit was not yet what it is at the end.
fn heals_ns(base: &[Sample], samples: &[Sample], at: usize, horizon: usize) -> Option<u64> {
    let deficit = |tick: usize| base[tick].worked_ns as i64 - samples[tick].worked_ns as i64;
    let end = (at + horizon).min(samples.len() - 1);
    let whole = deficit(end);
    let still = |tick: &usize| (deficit(*tick) - whole).abs() * 100 > whole.abs() * HEALED_PERCENT;
    let last = (at..=end).rev().find(still).map_or(0, |tick| tick + 1 - at);
    (last <= horizon * 3 / 4).then_some(last as u64 * TICK_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest that does a tick's work in each tick, but in those of `lost`, in which one vCPU waits.
    fn curve(ticks: usize, lost: std::ops::Range<usize>) -> Vec<Sample> {
        let mut samples = vec![Sample::default()];
        for tick in 1..=ticks {
            let before = samples[tick - 1];
            let works = !lost.contains(&tick);
            samples.push(Sample {
                worked_ns: before.worked_ns + if works { 3 * TICK_NS } else { 0 },
                entered: before.entered + u64::from(works),
                waiting: 1,
                longest_wait_ns: if works { 0 } else { before.longest_wait_ns + TICK_NS },
                idle_ns: before.idle_ns + if works { 0 } else { 2 * TICK_NS },
                vmm_ns: before.vmm_ns + if works { 0 } else { TICK_NS / 2 },
            });
        }
        samples
    }

    #[test]
    fn an_effect_is_how_much_later_as_much_work_is_done() {
        let (base, cut) = (curve(40, 0..0), curve(40, 12..17));
        let effect = Effect::between(&base, &cut, 10, 20);
        assert_eq!((effect.late_ns, effect.censored, effect.fewer_entries), (5 * TICK_NS as i64, false, 5));
        // Two of the three pCPUs were idle all the time, and one was in the VMM for half of it.
        assert_eq!((effect.idle_ns, effect.vmm_ns), (10 * TICK_NS as i64, 5 * TICK_NS as i64 / 2));
        assert_eq!(effect.longest_wait_ns, [5 * TICK_NS, 0]);
        assert_eq!(effect.blocked_ns, [5 * TICK_NS, 0]);
        // All is lost by tick 16, and tick 10 is the cut's.
        assert_eq!((effect.heals_ns, effect.unchanged), (Some(6 * TICK_NS), false));
        let short = Effect::between(&base, &curve(40, 12..41), 10, 20);
        assert_eq!((short.late_ns, short.censored, short.heals_ns), (10 * TICK_NS as i64, true, None));
        // The run without the cut has done its work before its last ticks, which add none.
        let idle_at_the_end = Effect::between(&curve(40, 28..31), &cut, 10, 20);
        assert_eq!(idle_at_the_end.late_ns, 5 * TICK_NS as i64);
        let same = Effect::between(&base, &base[..32], 10, 20);
        assert_eq!((same.late_ns, same.heals_ns, same.unchanged), (0, Some(0), true));
    }
}
