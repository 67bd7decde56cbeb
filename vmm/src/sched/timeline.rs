//! Where a vCPU was from one short while to the next, from when the window opened on: what a heat map is drawn from.
//!
//! The books know it anyhow whenever a vCPU gets a pCPU or loses it; here they note it, too, in memory that is there from the start, and
//! only for the beginning of the window.

use crate::guest::activity::Activity;

/// Bins of a timeline, at most.
pub const TIMELINE_BINS: usize = 100;
/// Bins in a slice. Fewer would show no single turns.
const BINS_PER_SLICE: u64 = 2;
/// Most vCPUs of a run of which timelines are kept.
pub const MOST_TIMELINES: usize = 128;

/// What a vCPU does, as the scheduler knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It is on a pCPU.
    Runs,
    /// It was taken off its pCPU while it held a lock.
    Holder,
    /// The same while it was the first in a queue.
    Head,
    /// The same while it was queued behind the first.
    Waiter,
    /// The same while it did neither, or nobody knows what.
    Other,
    /// It waits for a pCPU that it gave up, or since it was kicked awake.
    Ready,
    /// It sleeps.
    Sleeps,
}

/// Kinds of what a vCPU may do.
const KINDS: usize = 7;

impl Doing {
    /// All of them but [`Self::Runs`].
    pub const OFF: [Self; KINDS - 1] =
        [Self::Holder, Self::Head, Self::Waiter, Self::Other, Self::Ready, Self::Sleeps];

    /// Taken off in the midst of `activity`.
    pub(crate) fn taken_off(activity: Activity) -> Self {
        match activity {
            Activity::Holder => Self::Holder,
            Activity::Head => Self::Head,
            Activity::Waiter => Self::Waiter,
            Activity::Other => Self::Other,
        }
    }
}

/// Nanoseconds of each kind, in each bin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    bin_ns: u64,
    bins: Vec<[u32; KINDS]>,
}

impl Timeline {
    /// Nothing yet; for slices of this length.
    pub(crate) fn new(slice_ns: u64) -> Self {
        // In a bin of 32 bits there is room for 4 s: slices are at most 100 ms long.
        let bin_ns = (slice_ns / BINS_PER_SLICE).clamp(1, u64::from(u32::MAX));
        Self { bin_ns, bins: vec![[0; KINDS]; TIMELINE_BINS] }
    }

    /// The vCPU did this from `from_ns` to `to_ns` after the window had opened.
    pub(crate) fn add(&mut self, doing: Doing, from_ns: u64, to_ns: u64) {
        let (index, mut from_ns) = (doing as usize, from_ns);
        let to_ns = to_ns.min(self.bin_ns * TIMELINE_BINS as u64);
        while from_ns < to_ns {
            let bin = from_ns / self.bin_ns;
            let until_ns = to_ns.min((bin + 1) * self.bin_ns);
            // Less than a bin, whose length fits.
            self.bins[bin as usize][index] += (until_ns - from_ns) as u32;
            from_ns = until_ns;
        }
    }

    /// Length of a bin, in nanoseconds.
    pub fn bin_ns(&self) -> u64 {
        self.bin_ns
    }

    /// Nanoseconds that the vCPU did `doing`, bin by bin, up to the end of a window of this length.
    pub fn of(&self, doing: Doing, window_ns: u64) -> impl Iterator<Item = u32> {
        let within = window_ns.div_ceil(self.bin_ns).min(TIMELINE_BINS as u64);
        let index = doing as usize;
        self.bins[..within as usize].iter().map(move |bin| bin[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_falls_into_its_bins_and_what_comes_after_the_last_is_not_kept() {
        let mut timeline = Timeline::new(200);
        let holder = Doing::taken_off(Activity::Holder);
        timeline.add(Doing::Runs, 0, 150);
        timeline.add(holder, 150, 420);
        timeline.add(Doing::Sleeps, 9_950, 20_000);
        timeline.add(Doing::Ready, 20_000, 30_000);
        let of = |doing| timeline.of(doing, 1_000_000).collect::<Vec<_>>();
        assert_eq!(timeline.bin_ns(), 100);
        assert_eq!(of(Doing::Runs)[..3], [100, 50, 0]);
        assert_eq!(of(holder)[..6], [0, 50, 100, 100, 20, 0]);
        assert_eq!((of(Doing::Sleeps).len(), of(Doing::Sleeps)[TIMELINE_BINS - 1]), (TIMELINE_BINS, 50));
        assert!(of(Doing::Ready).iter().all(|ns| *ns == 0));
        assert_eq!(timeline.of(Doing::Runs, 250).count(), 3, "a short window has fewer bins");
    }
}
