//! Place of a vCPU in each short interval, from the opening of the window on: the data of a heat map.
//!
//! The books know it anyhow whenever a vCPU gets a pCPU or loses it; here they note it, too, in memory that is there from the start, and
//! only for the beginning of the window. Many vCPUs share a fixed number of bins: each has a timeline, and the more there are, the sooner
//! it ends. Longer bins would show no single turns.

use std::hint::black_box;

use crate::guest::activity::Activity;
use crate::observe::whereabouts::Where;

/// Bins of a timeline, at most.
pub const TIMELINE_BINS: usize = 100;
/// Bins in a slice. Fewer would show no single turns.
const BINS_PER_SLICE: u64 = 2;
/// Bins of the timelines of all vCPUs of a run, at most: 700 KiB of memory, and 57 KB of a record, which has 99 KB more of 1024 vCPUs.
pub const MOST_TIMELINE_BINS: usize = 25_600;

/// Kinds of places that a timeline tells apart.
const KINDS: usize = 7;

/// Number of the kind of a place; `None` for those at which no vCPU of the VMM's scheduler is.
fn kind(at: Where) -> Option<usize> {
    Some(match at {
        Where::Running => 0,
        Where::Preempted(Activity::Holder) | Where::KeptOut(Activity::Holder) => 1,
        Where::Preempted(Activity::Head) | Where::KeptOut(Activity::Head) => 2,
        Where::Preempted(Activity::Waiter) | Where::KeptOut(Activity::Waiter) => 3,
        Where::Preempted(Activity::Other) | Where::KeptOut(Activity::Other) => 4,
        Where::Ready => 5,
        Where::Asleep => 6,
        Where::NotStarted | Where::Runnable | Where::Blocked | Where::Left => return None,
    })
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
        let of = |at| timeline.of(at, 1_000_000).collect::<Vec<_>>();
        assert_eq!(timeline.bin_ns(), 100);
        assert_eq!(of(Where::Running)[..3], [100, 50, 0]);
        assert_eq!(of(holder)[..6], [0, 50, 100, 100, 20, 0]);
        assert_eq!(of(Where::Preempted(Activity::Holder)), of(holder));
        assert_eq!((of(Where::Asleep).len(), of(Where::Asleep)[TIMELINE_BINS - 1]), (TIMELINE_BINS, 50));
        assert!(of(Where::Ready).iter().all(|ns| *ns == 0));
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
        let mut short = Timeline::new(200, 1024);
        short.add(Where::Ready, 2_450, 9_999);
        assert_eq!(short.of(Where::Ready, 1_000_000).last(), Some(50), "it ends with its last bin");
    }
}
