//! One vCPU's books: how long it was where, in the midst of what it was taken off, and what that cost the others.
//!
//! They also tell of locks that a head has closed to newcomers and then left alone, since it lost its pCPU. The head of a paravirtual
//! qspinlock sets the pending bit while it spins, which forbids stealing. If it loses its pCPU then, no vCPU gets the lock once it is
//! free, until the head is back. No other vCPU clears the bit. So two looks at the word are exact, one when the head is taken off and one
//! when it is back: if the lock is free at the second, it has been since its last owner left
//! ([`Oracle::left_tsc`](haltkick_hypercalls::Oracle::left_tsc)), or since the first if that was later.
//!
//! A [`Timeline`] has the place of a vCPU in each short interval, from the opening of the window on: the data of a heat map. The books know
//! it anyhow whenever a vCPU gets a pCPU or loses it; there they note it, too, in memory that is there from the start, and
//! only for the beginning of the window. Many vCPUs share a fixed number of bins: each has a timeline, and the more there are, the sooner
//! it ends. Longer bins would show no single turns.

use std::hint::black_box;
use std::sync::atomic::Ordering;

use haltkick_hypercalls::{WORD_QSPINLOCK, WORD_QSPINLOCK_WHOLE};

use crate::guest::memory::Memory;
use crate::guest::{Activity, ByActivity};
use crate::host::clock::{Moment, Ticks};
use crate::observe::{TicksHistogram, Where};
use crate::sched::guest_run::{GuestRun, Shared};
use crate::sched::loss::{self, Claim, GuestClock, Losses, ScanBudget};
use crate::sched::quota::Throttled;

/// Slices that were extended for a vCPU that said it held a lock, inside the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Graces {
    /// How often.
    pub granted: u64,
    /// Extensions at the end of which the vCPU was taken off all the same.
    pub expired: u64,
    /// How long the vCPUs ran beyond the end of their slices, in nanoseconds; charged to the next ones.
    pub overrun_ns: u64,
}

/// A time that a vCPU spent in one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spell {
    pub(super) at: Where,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
}

impl Spell {
    pub(super) fn length_ns(self) -> u64 {
        self.to_ns.saturating_sub(self.from_ns)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Books {
    /// Time on a pCPU, inside the window.
    pub(crate) run_ns: u64,
    /// Time runnable without a pCPU, whole run.
    pub(crate) steal_ns: u64,
    /// Times taken off while running, whole run.
    pub(crate) preemptions: u64,
    /// Times taken off inside the window, by activity; also sleeps.
    pub(crate) preemptions_by: ByActivity,
    /// How long those were off for, inside the window.
    pub(crate) preempted_ns_by: ByActivity,
    /// Time that the others lost to it, inside the window.
    pub(crate) lost_ns_by: ByActivity,
    /// Times taken off on purpose, inside the window.
    pub(crate) injected_by: ByActivity,
    /// How often its slice was extended inside the window, and how often that was not enough.
    pub(crate) graces: Graces,
    pub(crate) throttled: Throttled,
    /// Since when and until when it is kept, unless that has been entered.
    kept: Option<(u64, u64)>,
    /// Sleeps, whole run.
    pub(crate) waits: u64,
    /// Kicks received, whole run. Counted by the scheduler, where kicks arrive.
    pub(crate) kicks: u64,
    /// Looks for what the others lost to it.
    pub(crate) scans: ScanBudget,
    claim: Option<Claim>,
    /// Since when it is off, if it went as a head that forbade stealing.
    closed_since_ns: Option<u64>,
    pub(crate) closed: ClosedByHeads,
    /// Its places in the beginning of the window, if they are to be known.
    pub(crate) timeline: Option<Timeline>,
}

impl Books {
    /// Adds what is inside the window in another vCPU's books, run time aside.
    pub(crate) fn add(&mut self, other: &Self) {
        self.preemptions_by.add(&other.preemptions_by);
        self.preempted_ns_by.add(&other.preempted_ns_by);
        self.lost_ns_by.add(&other.lost_ns_by);
        self.injected_by.add(&other.injected_by);
        self.graces.granted += other.graces.granted;
        self.graces.expired += other.graces.expired;
        self.graces.overrun_ns += other.graces.overrun_ns;
        self.throttled.times += other.throttled.times;
        self.throttled.holders += other.throttled.holders;
        self.throttled.ns += other.throttled.ns;
        self.scans.skipped += other.scans.skipped;
        self.closed.add(&other.closed);
    }

    /// Enters a spell that has ended since the vCPU goes `to` another place.
    pub(super) fn enter(&mut self, guest: &GuestRun<'_>, vcpu: u32, spell: Spell, to: Where) {
        self.settle(guest, vcpu, spell);
        let now_ns = spell.to_ns;
        let in_window = guest.window.contains(now_ns);
        match to {
            Where::Preempted(activity) | Where::KeptOut(activity) => {
                if let Some(shared) = guest.shared.as_ref().filter(|shared| shared.attribution)
                    && let Some(lock) = shared.losses.lock_of(vcpu)
                {
                    // Looks at its lock: its return needs to know since when that has been free.
                    shared.losses.idle_since(lock, now_ns);
                    if activity == Activity::Head && closed_and_free(shared.memory, lock).is_some() {
                        self.closed_since_ns.get_or_insert(now_ns);
                    }
                }
                self.preemptions += 1;
                if in_window {
                    *self.preemptions_by.of(activity) += 1;
                    *self.injected_by.of(activity) += u64::from(matches!(to, Where::KeptOut(_)));
                }
            }
            Where::Asleep => {
                self.waits += 1;
                self.preemptions_by.halted += u64::from(in_window);
            }
            Where::Running | Where::Left => self.end_closing(guest, vcpu, now_ns),
            _ => {}
        }
    }

    /// The quota of its guest keeps the vCPU, which is in `at`, from `now_ns` until `until_ns`.
    pub(super) fn throttle(&mut self, guest: &GuestRun<'_>, at: Where, now_ns: u64, until_ns: u64) {
        self.settle_quota(guest);
        self.kept = Some((now_ns, until_ns));
        if guest.window.contains(now_ns) {
            self.throttled.times += 1;
            self.throttled.holders += u64::from(at == Where::Preempted(Activity::Holder));
        }
    }

    /// The vCPU is kept no longer, or the run is over and the window closed.
    pub(super) fn settle_quota(&mut self, guest: &GuestRun<'_>) {
        if let Some((from_ns, to_ns)) = self.kept.take() {
            self.throttled.ns += guest.window.overlap_ns(from_ns, to_ns);
        }
    }

    fn settle(&mut self, guest: &GuestRun<'_>, vcpu: u32, spell: Spell) {
        self.note(guest, spell);
        let in_window_ns = guest.window.overlap_ns(spell.from_ns, spell.to_ns);
        match spell.at {
            Where::Running => {
                self.run_ns += in_window_ns;
                // The only place that learns whether the others waited for this vCPU.
                if let Some(claim) = self.claim.take() {
                    claim.settle(entered(guest, vcpu), &mut self.lost_ns_by);
                }
            }
            Where::Asleep => self.preempted_ns_by.halted += in_window_ns,
            at => {
                self.steal_ns += spell.length_ns();
                if let Where::Preempted(activity) | Where::KeptOut(activity) = at {
                    *self.preempted_ns_by.of(activity) += in_window_ns;
                    if let Some(shared) = guest.shared.as_ref().filter(|shared| shared.attribution) {
                        self.settle_loss(guest, shared, vcpu, activity, spell);
                    }
                }
            }
        }
    }

    fn note(&mut self, guest: &GuestRun<'_>, spell: Spell) {
        if let Some(timeline) = &mut self.timeline
            && let Some((from_ns, to_ns)) = guest.window.clip(spell.from_ns, spell.to_ns)
        {
            let [open_ns, _] = guest.window.times();
            timeline.add(spell.at, from_ns.saturating_sub(open_ns), to_ns.saturating_sub(open_ns));
        }
    }

    /// See `loss` for what is lost to which vCPU.
    fn settle_loss(
        &mut self,
        guest: &GuestRun<'_>,
        shared: &Shared<'_>,
        vcpu: u32,
        activity: Activity,
        Spell { from_ns, to_ns, .. }: Spell,
    ) {
        let losses = &shared.losses;
        let Some(lock) = losses.lock_of(vcpu) else { return };
        let clock = guest.clock_at(Moment { ns: to_ns, tsc: guest.clock.tsc() });
        let waited_since = |since_ns: u64| {
            // Outside the window nothing is lost, and so nothing scanned.
            let is_inside = guest.window.clip(since_ns, to_ns).is_some();
            if is_inside { self.waited_by_others(guest, losses, (vcpu, lock), since_ns, clock) } else { 0 }
        };
        let (idle_ns, entered) = (losses.idle_since(lock, to_ns), entered(guest, vcpu));
        let (lost_ns, claim) = loss::on_return(activity, from_ns, idle_ns, entered, waited_since);
        self.lost_ns_by.holder += lost_ns;
        self.claim = claim.or(self.claim.take());
    }

    /// Time that all but a vCPU have waited for the lock that it is at since `since_ns`, as far as there is time to look.
    fn waited_by_others(
        &mut self,
        guest: &GuestRun<'_>,
        losses: &Losses<'_>,
        (vcpu, lock): (u32, u32),
        since_ns: u64,
        clock: GuestClock<'_>,
    ) -> u64 {
        self.scans.within(self.run_ns, || {
            let found = losses.waited_by_others(vcpu, lock, since_ns, clock);
            let ticks = guest.tsc.of_host(guest.clock.tsc()).wrapping_sub(clock.now.tsc);
            (found, clock.rate.nanoseconds(Ticks(ticks)).0)
        })
    }

    /// The vCPU is about to run again, or has left: if it went as a head that forbade stealing, its absence ends.
    fn end_closing(&mut self, guest: &GuestRun<'_>, vcpu: u32, now_ns: u64) {
        let Some(since_ns) = self.closed_since_ns.take() else { return };
        let Some(shared) = &guest.shared else { return };
        let Some(lock) = shared.losses.lock_of(vcpu) else { return };
        let off_ns = guest.window.overlap_ns(since_ns, now_ns);
        if off_ns == 0 {
            return;
        }
        self.closed.absences += 1;
        self.closed.off_ns += off_ns;
        if closed_and_free(shared.memory, lock) != Some(true) {
            return;
        }
        let clock = guest.clock_at(Moment { ns: now_ns, tsc: guest.clock.tsc() });
        let left_tsc = shared.memory.oracle(lock).left_tsc.load(Ordering::Relaxed);
        let left_ago_ns = clock.rate.nanoseconds(Ticks(clock.now.tsc.wrapping_sub(left_tsc))).0;
        let free_since_ns = now_ns.saturating_sub(left_ago_ns).max(since_ns);
        let free_ns = guest.window.overlap_ns(free_since_ns, now_ns);
        if free_ns == 0 {
            return;
        }
        if self.closed.free.buckets.is_empty() {
            self.closed.free = TicksHistogram::empty();
        }
        self.closed.free.count(free_ns, 1);
        self.closed.lost_ns +=
            self.waited_by_others(guest, &shared.losses, (vcpu, lock), free_since_ns, clock);
    }
}

fn entered(guest: &GuestRun<'_>, vcpu: u32) -> u64 {
    let shared = guest.shared.as_ref();
    shared.map_or(0, |shared| shared.area(vcpu).results.entered.load(Ordering::Relaxed))
}

/// The locked byte of a qspinlock's word.
const LOCKED: u32 = 0xff;
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
    pub(crate) fn add(&mut self, other: &Self) {
        self.absences += other.absences;
        self.off_ns += other.off_ns;
        self.free.add(&other.free);
        self.lost_ns += other.lost_ns;
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

/// Bins of a timeline, at most.
const TIMELINE_BINS: usize = 100;
/// Bins in a slice. Fewer would show no single turns.
const BINS_PER_SLICE: u64 = 2;
/// Bins of the timelines of all vCPUs of a run, at most: 700 KiB of memory, and 57 KB of a record, which has 99 KB more of 1024 vCPUs.
const MOST_TIMELINE_BINS: usize = 25_600;

/// Kinds of places that a timeline tells apart.
const KINDS: usize = 7;

/// Number of the kind of a place: running, or one of [`Timeline::OFF`]; `None` for those at which no vCPU of the VMM's scheduler is.
fn kind(at: Where) -> Option<usize> {
    let at = if let Where::KeptOut(activity) = at { Where::Preempted(activity) } else { at };
    let off = Timeline::OFF.iter().position(|off| *off == at);
    if at == Where::Running { Some(0) } else { off.map(|off| 1 + off) }
}

/// Nanoseconds of each kind, in each bin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    bin_ns: u64,
    bins: Vec<[u32; KINDS]>,
}

impl Timeline {
    /// The places off a pCPU that it tells apart. A vCPU that is kept out on purpose counts as preempted.
    pub const OFF: [Where; KINDS - 1] = [
        Where::Preempted(Activity::Holder),
        Where::Preempted(Activity::Head),
        Where::Preempted(Activity::Waiter),
        Where::Preempted(Activity::Other),
        Where::Ready,
        Where::Asleep,
    ];

    /// Makes an empty timeline for one of `vcpus` vCPUs of a run, with slices of this length.
    pub(crate) fn new(slice_ns: u64, vcpus: usize) -> Self {
        // In a bin of 32 bits there is room for 4 s: slices are at most 100 ms long.
        let bin_ns = (slice_ns / BINS_PER_SLICE).clamp(1, u64::from(u32::MAX));
        let count = (MOST_TIMELINE_BINS / vcpus.max(1)).clamp(1, TIMELINE_BINS);
        // Written here, since a first touch of memory during the run would be a page fault of the scheduler's.
        let mut bins = black_box(vec![[0; KINDS]; count]);
        bins.fill([0; KINDS]);
        Self { bin_ns, bins }
    }

    /// The vCPU was there from `from_ns` to `to_ns` after the window had opened.
    pub(crate) fn add(&mut self, at: Where, mut from_ns: u64, to_ns: u64) {
        let Some(kind) = kind(at) else { return };
        let to_ns = to_ns.min(self.bin_ns * self.bins.len() as u64);
        while from_ns < to_ns {
            let bin = from_ns / self.bin_ns;
            let until_ns = to_ns.min((bin + 1) * self.bin_ns);
            // Less than a bin, whose length fits.
            self.bins[bin as usize][kind] += (until_ns - from_ns) as u32;
            from_ns = until_ns;
        }
    }

    /// Length of a bin, in nanoseconds.
    pub fn bin_ns(&self) -> u64 {
        self.bin_ns
    }

    /// Nanoseconds that the vCPU was `at` a place, bin by bin, up to the end of a window of this length.
    pub fn of(&self, at: Where, window_ns: u64) -> impl Iterator<Item = u32> {
        let within = window_ns.div_ceil(self.bin_ns).min(self.bins.len() as u64);
        self.bins[..within as usize].iter().map(move |bin| kind(at).map_or(0, |kind| bin[kind]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_falls_into_its_bins_and_ends_with_the_last() {
        let mut timeline = Timeline::new(200, 256);
        let holder = Where::KeptOut(Activity::Holder);
        timeline.add(Where::Running, 0, 150);
        timeline.add(holder, 150, 420);
        timeline.add(Where::Asleep, 9_950, 20_000);
        timeline.add(Where::Ready, 20_000, 30_000);
        let stretches = |at| timeline.of(at, 1_000_000).collect::<Vec<_>>();
        assert_eq!(timeline.bin_ns(), 100);
        assert_eq!(stretches(Where::Running)[..3], [100, 50, 0]);
        assert_eq!(stretches(holder)[..6], [0, 50, 100, 100, 20, 0]);
        assert_eq!(stretches(Where::Preempted(Activity::Holder)), stretches(holder));
        assert_eq!(
            (stretches(Where::Asleep).len(), stretches(Where::Asleep)[TIMELINE_BINS - 1]),
            (TIMELINE_BINS, 50)
        );
        assert!(stretches(Where::Ready).iter().all(|ns| *ns == 0));
        assert_eq!(timeline.of(Where::Running, 250).count(), 3, "a short window has fewer bins");
    }

    #[test]
    fn all_vcpus_have_timelines_and_together_no_more_bins_than_allowed() {
        for (vcpus, bins) in [(1, 100), (256, 100), (257, 99), (1024, 25), (30_000, 1)] {
            let timeline = Timeline::new(200, vcpus);
            let found = timeline.of(Where::Running, u64::MAX).count();
            assert_eq!(found, bins, "{vcpus} vCPUs");
            assert!(vcpus > MOST_TIMELINE_BINS || vcpus * found <= MOST_TIMELINE_BINS, "{vcpus} vCPUs");
        }
    }
}
