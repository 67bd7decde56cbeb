//! Locks that a head has closed to newcomers and then left alone, since it lost its pCPU.
//!
//! The head of a paravirtual qspinlock sets the pending bit while it spins, which forbids stealing. If it loses its pCPU then, no vCPU
//! gets the lock once it is free, until the head is back. No other vCPU clears the bit. So two looks at the word are exact, one
//! when the head is taken off and one when it is back: if the lock is free at the second, it has been since its last owner left
//! ([`Oracle::left_tsc`](haltkick_hypercalls::Oracle::left_tsc)), or since the first if that was later.

use std::sync::atomic::Ordering;

use haltkick_hypercalls::{WORD_QSPINLOCK, WORD_QSPINLOCK_WHOLE};

use crate::guest::memory::Memory;
use crate::host::clock::Moment;
use crate::host::time::Ticks;
use crate::observe::ticks_histogram::TicksHistogram;
use crate::sched::guest_run::GuestRun;
use crate::sched::loss::ScanBudget;
use crate::sched::shared::Shared;

/// The locked byte of a qspinlock's word.
const LOCKED: u32 = 0xff;
/// The pending bit.
const PENDING: u32 = 0x100;

/// Heads that were taken off while they forbade stealing, inside the window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClosedByHeads {
    /// How often.
    pub absences: u64,
    /// How long they were off, in nanoseconds.
    pub off_ns: u64,
    /// How long the lock was free meanwhile and no vCPU could take it, in nanoseconds; absences in which it stayed held left out.
    pub free: TicksHistogram,
    /// Time that the other vCPUs waited for the lock while it was free, in nanoseconds.
    pub lost_ns: u64,
}

impl ClosedByHeads {
    /// Adds another vCPU's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.absences += other.absences;
        self.off_ns += other.off_ns;
        self.free.add(&other.free);
        self.lost_ns += other.lost_ns;
    }
}

/// One vCPU's absences as a head.
#[derive(Debug, Default)]
pub(super) struct Absences {
    /// Host time of the present one.
    since_ns: Option<u64>,
    pub(super) ended: ClosedByHeads,
}

impl Absences {
    /// `vcpu`, a head, is taken off.
    pub(super) fn begin(&mut self, shared: &Shared<'_>, vcpu: u32, now_ns: u64) {
        let lock = shared.losses.lock_of(vcpu);
        if lock.is_some_and(|lock| closed_and_free(shared.memory, lock).is_some()) {
            self.since_ns.get_or_insert(now_ns);
        }
    }

    /// `vcpu` is about to run again, having run for `run_ns` in all.
    pub(super) fn end(
        &mut self,
        guest: &GuestRun<'_>,
        vcpu: u32,
        now_ns: u64,
        (scans, run_ns): (&mut ScanBudget, u64),
    ) {
        let Some(since_ns) = self.since_ns.take() else { return };
        let Some(shared) = &guest.shared else { return };
        let Some(lock) = shared.losses.lock_of(vcpu) else { return };
        let off_ns = guest.window.overlap_ns(since_ns, now_ns);
        if off_ns == 0 {
            return;
        }
        self.ended.absences += 1;
        self.ended.off_ns += off_ns;
        if closed_and_free(shared.memory, lock) != Some(true) {
            return;
        }
        let now = Moment { ns: now_ns, tsc: guest.tsc.of_host(guest.clock.tsc()) };
        let left_tsc = shared.memory.oracle(lock).left_tsc.load(Ordering::Relaxed);
        let left_ago_ns = guest.tsc.rate().nanoseconds(Ticks(now.tsc.wrapping_sub(left_tsc))).0;
        let free_since_ns = now_ns.saturating_sub(left_ago_ns).max(since_ns);
        let free_ns = guest.window.overlap_ns(free_since_ns, now_ns);
        if free_ns == 0 {
            return;
        }
        if self.ended.free.buckets.is_empty() {
            self.ended.free = TicksHistogram::empty();
        }
        self.ended.free.count(free_ns, 1);
        self.ended.lost_ns += scans.within(run_ns, || {
            let waited_ns = shared.losses.waited_by_others(vcpu, lock, free_since_ns, now, &guest.window);
            let ticks = guest.tsc.of_host(guest.clock.tsc()).wrapping_sub(now.tsc);
            (waited_ns, guest.tsc.rate().nanoseconds(Ticks(ticks)).0)
        });
    }
}

/// If the word of `lock` is a qspinlock's and forbids stealing: whether the lock is free. The guest writes all that is read here, and
/// may write anything.
fn closed_and_free(memory: &Memory, lock: u32) -> Option<bool> {
    let control = memory.control();
    if !is_qspinlock(control.lock_word.load(Ordering::Relaxed)) {
        return None;
    }
    let offset = u64::from(control.lock_stride.load(Ordering::Relaxed)) * u64::from(lock);
    let bytes = memory.read(control.locks.load(Ordering::Relaxed).checked_add(offset)?, 4)?;
    let word = u32::from_le_bytes(bytes.try_into().ok()?);
    (word & PENDING != 0).then_some(word & LOCKED == 0)
}

/// Whether a lock's word of this format has a pending bit.
pub(crate) fn is_qspinlock(format: u32) -> bool {
    matches!(format, WORD_QSPINLOCK | WORD_QSPINLOCK_WHOLE)
}
