//! Work that a guest has done, by time.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::guest::memory::Memory;
use crate::host::error::RunError;
use crate::run::asked::OurGuest;
use crate::sched::Scheduler;
use crate::sched::guest_run::GuestRun;
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
    /// The present state.
    pub(super) fn take(scheduler: &Scheduler<'_>, guest: &GuestRun<'_>, memory: &Memory, locks: u32) -> Self {
        let now = guest.tsc.of_host(guest.clock.tsc());
        // Relaxed: nothing runs while this is read.
        let since = |vcpu| memory.area(vcpu).activity.awaited_since_tsc.load(Ordering::Relaxed);
        let waits = (0..guest.vcpus).map(since).filter(|since| (1..=now).contains(since));
        let (mut waiting, mut longest) = (0, 0);
        for since in waits {
            waiting += 1;
            longest = longest.max(now - since);
        }
        let [idle_ns, vmm_ns] = scheduler.outside().map(|time| time.as_nanos() as u64);
        let entered = |lock| memory.oracle(lock).entered.load(Ordering::Relaxed);
        Self {
            worked_ns: scheduler.worked().as_nanos() as u64,
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
    locks: u32,
    stop: &'a AtomicBool,
}

impl<'a> Curve<'a> {
    /// A curve without samples.
    pub(super) fn new(asked: OurGuest<'_>, stop: &'a AtomicBool) -> Self {
        Self { samples: Vec::new(), order: Order::new(asked), locks: asked.ours.lock_count, stop }
    }

    /// Adds the present state.
    pub(super) fn sample(&mut self, scheduler: &Scheduler<'_>, guest: &GuestRun<'_>, memory: &Memory) {
        self.samples.push(Sample::take(scheduler, guest, memory, self.locks));
    }

    /// Lets a tick pass and adds a sample of it, unless the guest has failed or a vCPU was overtaken against the lock's promise, which
    /// ends the curve. `stopped` is told how many vCPUs sleep when one is cut.
    ///
    /// # Errors
    /// A request to stop.
    pub(super) fn tick(
        &mut self,
        (scheduler, guest, memory): (&Scheduler<'_>, &GuestRun<'_>, &Memory),
        stopped: &mut dyn FnMut(u32),
    ) -> Result<ControlFlow<()>, RunError> {
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
        self.sample(scheduler, guest, memory);
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
