//! Notes of a run's threads on the vCPUs that they run, for `profile` and `trace`, and their collection. To note costs a test of two
//! options where neither is asked for.

use std::io;

use crate::guest::Activity;
use crate::guest::memory::Memory;
use crate::host::clock::{Clock, Moment};
use crate::image::file::Image;
use crate::machine::vcpu::Vcpu;
use crate::observe::profile::{Profile, Sampler, Samples};
use crate::observe::trace::{About, Collector, Recorder, Trace, What};
use crate::observe::{Instruments, Where};

#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) samples: Option<Samples>,
    pub(crate) trace: Option<Collector>,
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

/// The instruments of one thread.
pub(crate) struct Observer<'a> {
    notes: &'a Notes,
    sampler: Option<Sampler>,
    recorder: Option<Recorder>,
}

impl<'a> Observer<'a> {
    /// For the calling thread, the run's `number`th.
    pub(crate) fn new(notes: &'a Notes, number: u32) -> io::Result<Self> {
        let sampler = notes.samples.as_ref().map(|samples| samples.sampler(number)).transpose()?;
        Ok(Self { notes, sampler, recorder: notes.trace.as_ref().map(Collector::recorder) })
    }

    /// For a pCPU of a simulated machine, which takes no samples.
    pub(crate) fn simulated(notes: &'a Notes) -> Self {
        Self { notes, sampler: None, recorder: notes.trace.as_ref().map(Collector::recorder) }
    }

    /// The vCPU with this number among those of all guests gets this thread, and `pcpu` if that is known.
    /// `counts`: whether a moment does.
    pub(crate) fn runs(&mut self, vcpu: u32, pcpu: Option<u32>, now_ns: u64, counts: impl Fn(u64) -> bool) {
        if let Some(sampler) = &mut self.sampler {
            sampler.turn_begins(now_ns, counts);
        }
        self.note(now_ns, vcpu, What::Runs { pcpu });
    }

    /// The vCPU with this number is off. Where it goes `to` is asked only if it is to be noted.
    pub(crate) fn stops(&mut self, vcpu: u32, now_ns: u64, to: impl FnOnce() -> Where) {
        if self.recorder.is_some() {
            let to = to();
            self.note(now_ns, vcpu, What::Stops { to });
        }
    }

    /// The vCPU with the number `from` kicks the one with the number `to`: `kick` does it, and says whether `to` slept, if there
    /// is such a vCPU. The rest of its answer is the caller's.
    pub(crate) fn kicks<T>(
        &mut self,
        clock: &Clock,
        (from, to): (u32, u32),
        kick: impl FnOnce() -> (Option<bool>, T),
    ) -> T {
        // The clock first: `to` may run before this vCPU goes on.
        let at_ns = if self.recorder.is_some() { clock.now_ns() } else { 0 };
        let (asleep, rest) = kick();
        if let Some(asleep) = asleep {
            self.note(at_ns, from, What::Kicks { to, asleep });
        }
        rest
    }

    /// The guest is about to be entered, at the time that `now_ns` says.
    pub(crate) fn enters(&mut self, now_ns: impl FnOnce() -> u64) {
        if let Some(sampler) = &mut self.sampler {
            sampler.enters(now_ns());
        }
    }

    /// KVM_RUN was interrupted at `now_ns`: `does` says what the vCPU does, and whether that moment counts.
    pub(crate) fn interrupted(&mut self, vcpu: &Vcpu, now_ns: u64, does: impl FnOnce() -> (Activity, bool)) {
        if let Some(sampler) = &mut self.sampler {
            let (activity, counts) = does();
            sampler.interrupted(vcpu, activity, now_ns, counts);
        }
    }

    fn note(&mut self, at_ns: u64, vcpu: u32, what: What) {
        if let Some(recorder) = &mut self.recorder {
            recorder.note(at_ns, vcpu, what);
        }
    }
}

impl Drop for Observer<'_> {
    /// Hands everything in, however the thread ends.
    fn drop(&mut self) {
        if let (Some(samples), Some(sampler)) = (&self.notes.samples, self.sampler.take()) {
            samples.hand_in(sampler);
        }
        if let (Some(trace), Some(recorder)) = (&self.notes.trace, self.recorder.take()) {
            trace.hand_in(recorder);
        }
    }
}
