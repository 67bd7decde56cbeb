//! Collection of the notes of a run's threads, for `profile` and `trace`.

use std::io;

use crate::guest::memory::Memory;
use crate::host::clock::Moment;
use crate::image::file::Image;
use crate::observe::instruments::Instruments;
use crate::observe::profile::{Profile, Sampler, Samples, Spent};
use crate::observe::trace::{About, Collector, Recorder, Trace};

/// Collects the notes of a run's threads, for all its guests.
#[derive(Debug)]
pub(crate) struct Notes {
    samples: Option<Samples>,
    trace: Option<Collector>,
}

impl Notes {
    /// Notes for a run that begins now, of `threads` threads and in addition `reported_guests` guests whose switches are reported.
    /// `seed` draws the sampling moments of a profile.
    pub(crate) fn new(
        instruments: &Instruments,
        (threads, reported_guests): (usize, usize),
        seed: u64,
        start: Moment,
    ) -> Self {
        Self {
            samples: instruments.profile.map(|period| Samples::new(period, seed)),
            trace: instruments.trace.then(|| Collector::new(threads, reported_guests, start)),
        }
    }

    /// For a run that is asked for neither.
    pub(crate) fn none() -> Self {
        Self { samples: None, trace: None }
    }

    /// A recorder for the switches of a guest's vCPUs, if there is to be a trace.
    pub(crate) fn switch_recorder(&self) -> Option<Recorder> {
        self.trace.as_ref().map(Collector::switch_recorder)
    }

    /// Takes a recorder back.
    pub(crate) fn hand_in(&self, recorder: Recorder) {
        if let Some(trace) = &self.trace {
            trace.hand_in(recorder);
        }
    }

    /// A sampler for the calling thread, the run's `number`th, if there is to be a profile.
    pub(crate) fn sampler(&self, number: u32) -> io::Result<Option<Sampler>> {
        self.samples.as_ref().map(|samples| samples.sampler(number)).transpose()
    }

    /// Whether there is to be a profile.
    pub(crate) fn is_profiled(&self) -> bool {
        self.samples.is_some()
    }

    /// Takes what a simulated machine counted instead of samples.
    pub(crate) fn hand_in_all_time(&self, spent: impl IntoIterator<Item = Spent>, nobody_ns: u64) {
        if let Some(samples) = &self.samples {
            samples.hand_in_all(spent, nobody_ns);
        }
    }

    /// A recorder for a thread, if there is to be a trace.
    pub(crate) fn recorder(&self) -> Option<Recorder> {
        self.trace.as_ref().map(Collector::recorder)
    }

    /// Takes a sampler back.
    pub(crate) fn hand_in_samples(&self, sampler: Sampler) {
        if let Some(samples) = &self.samples {
            samples.hand_in(sampler);
        }
    }

    /// Everything, once all threads have ended.
    pub(crate) fn finish(
        self,
        image: &Image,
        memories: &[&Memory],
        tsc_offsets: &[u64],
        about: About,
        end: Moment,
    ) -> (Option<Profile>, Option<Trace>) {
        let profile = self.samples.map(|samples| samples.finish(image));
        (profile, self.trace.map(|trace| trace.finish(memories, tsc_offsets, about, end)))
    }
}
