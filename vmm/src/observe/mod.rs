//! Instruments that a run may have besides its outcome: a profile and a trace, with each thread's notes for them;
//! and a live view while the run goes. Here: what can be asked for, and the words in which it is told: the whereabouts of a vCPU,
//! and histograms of times, with the buckets that the guest uses.
//!
//! The whereabouts are one vocabulary for the schedulers' books, timelines, traces, the live view and explanations. Timelines and
//! traces have codes of their own for them, which are public and written out where they are used.

pub(crate) mod live;
pub(crate) mod notes;
pub(crate) mod profile;
pub(crate) mod trace;

use std::sync::Arc;
use std::time::Duration;

use crate::guest::Activity;
use crate::host::clock::VirtualTime;
use crate::host::error::Refused;
use crate::host::text::Span;
use crate::observe::live::Live;
use crate::observe::profile::PROFILE_PERIODS;

/// The outputs that a run is asked for.
#[derive(Clone, Default)]
pub struct Instruments {
    /// Sample instruction pointers, at this mean distance on each pCPU.
    pub profile: Option<Duration>,
    /// Note which vCPU ran where, which vCPU waited and held what, and which vCPU kicked which.
    pub trace: bool,
    /// Progress of a simulated machine's clock, for display.
    pub virtual_time: Option<Arc<VirtualTime>>,
    /// File of the live view, for runs that are [asked to](crate::Run::live) show themselves.
    pub live: Option<Arc<Live>>,
    /// Listeners to a Linux guest.
    pub linux: Option<LinuxConsole>,
}

/// Takes lines of text as they come.
pub type ConsoleSink = Arc<dyn Fn(&str) + Send + Sync>;

/// Listeners to the console of a Linux guest, and to a warning before it.
#[derive(Clone)]
pub struct LinuxConsole {
    /// Hears every line on the thread of the vCPU that wrote it, which waits meanwhile: must be quick.
    pub hears: ConsoleSink,
    /// Shows it, on a thread of its own. May be slow; of what it does not take in time lines are lost.
    pub shows: ConsoleSink,
    /// Is told before the guest starts if this host is no place for it.
    pub warns: ConsoleSink,
}

/// Listens to nothing.
impl Default for LinuxConsole {
    fn default() -> Self {
        let nothing: ConsoleSink = Arc::new(|_| {});
        Self { hears: Arc::clone(&nothing), shows: Arc::clone(&nothing), warns: nothing }
    }
}

impl Instruments {
    /// Refuses what cannot be shown.
    ///
    /// # Errors
    /// A profile whose samples are too close together, or too far apart.
    pub fn check(&self) -> Result<(), Refused> {
        let (shortest, longest) = PROFILE_PERIODS;
        let Some(period) = self.profile.filter(|period| !(shortest..=longest).contains(period)) else {
            return Ok(());
        };
        let [period, shortest, longest] = [period, shortest, longest].map(Span);
        let message = format!("a period of {period} is out of range: {shortest} to {longest}");
        Err(Refused::new("profile", message))
    }
}

/// The place where a vCPU is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Where {
    /// Not started: the boot vCPU has not let it start.
    #[default]
    NotStarted,
    /// On a pCPU; under the host's scheduler, where it does not report: not asleep, and so on a pCPU or waiting for one.
    Running,
    /// On a pCPU or waiting for one, which only the host's scheduler knows.
    Runnable,
    /// Ready without a pCPU: new, kicked awake, or it gave up its slice.
    Ready,
    /// Taken off its pCPU by a scheduler in the midst of this.
    Preempted(Activity),
    /// Kept off its pCPU on purpose, in the midst of this.
    KeptOut(Activity),
    /// Asleep until it is kicked, in the VMM's hands or in KVM's.
    Asleep,
    /// Asleep for a reason of the host's, such as a page that has to be fetched.
    Blocked,
    /// Done, or failed.
    Left,
}

impl Where {
    /// Its name in the live view; explanations call one of them otherwise.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotStarted => "not-started",
            Self::Running => "running",
            Self::Runnable => "runnable",
            Self::Ready => "ready",
            Self::Preempted(_) | Self::KeptOut(_) => "preempted",
            Self::Asleep => "asleep",
            Self::Blocked => "blocked",
            Self::Left => "left",
        }
    }
}

/// A vCPU's place, and since when it has been there in host time where that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whereabouts {
    pub(crate) at: Where,
    pub(crate) since_ns: Option<u64>,
}

impl From<Where> for Whereabouts {
    /// A place without a time.
    fn from(at: Where) -> Self {
        Self { at, since_ns: None }
    }
}

/// Counts per bucket of `haltkick_hypercalls::Histogram`, summed over vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TicksHistogram {
    /// Values seen per bucket.
    pub buckets: Vec<u64>,
    /// Largest value seen, in TSC ticks.
    pub max: u64,
    /// Sum of the values, in TSC ticks.
    pub sum: u64,
}

impl TicksHistogram {
    /// A histogram without values.
    #[must_use]
    pub fn empty() -> Self {
        Self { buckets: vec![0; haltkick_hypercalls::HISTOGRAM_BUCKETS], max: 0, sum: 0 }
    }

    /// Counts `times` values of `ticks`.
    pub fn count(&mut self, ticks: u64, times: u64) {
        self.buckets[haltkick_hypercalls::histogram_bucket(ticks)] += times;
        self.max = self.max.max(ticks);
        self.sum = self.sum.saturating_add(ticks.saturating_mul(times));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let len = self.buckets.len().max(other.buckets.len());
        self.buckets.resize(len, 0);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sum, count)| *sum += count);
        self.max = self.max.max(other.max);
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// The buckets that are not empty. No value is larger than the largest seen.
    pub fn spans(&self) -> impl Iterator<Item = TicksSpan> {
        self.buckets.iter().enumerate().filter(|(_, count)| **count > 0).map(|(bucket, &count)| {
            let low = haltkick_hypercalls::histogram_lower_bound(bucket).min(self.max);
            let high = haltkick_hypercalls::histogram_lower_bound(bucket + 1).saturating_sub(1);
            TicksSpan { low, high: high.clamp(low, self.max.max(low)), count }
        })
    }
}

/// A bucket of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicksSpan {
    /// The least value in TSC ticks that it can hold.
    pub low: u64,
    /// The largest.
    pub high: u64,
    /// Number of values.
    pub count: u64,
}
