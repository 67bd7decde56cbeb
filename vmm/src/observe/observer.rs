//! Notes of one thread on the vCPUs that it runs, for `profile` and `trace`. Costs a test of two options where neither
//! is asked for.

use std::io;

use crate::guest::activity::Activity;
use crate::host::clock::Clock;
use crate::machine::vcpu::Vcpu;
use crate::observe::notes::Notes;
use crate::observe::profile::Sampler;
use crate::observe::trace::{Recorder, What};
use crate::observe::whereabouts::Where;

/// The instruments of one thread.
pub(crate) struct Observer<'a> {
    notes: &'a Notes,
    sampler: Option<Sampler>,
    recorder: Option<Recorder>,
}

impl<'a> Observer<'a> {
    /// For the calling thread, the run's `number`th.
    pub(crate) fn new(notes: &'a Notes, number: u32) -> io::Result<Self> {
        Ok(Self { notes, sampler: notes.sampler(number)?, recorder: notes.recorder() })
    }

    /// For a pCPU of a simulated machine, which takes no samples.
    pub(crate) fn simulated(notes: &'a Notes) -> Self {
        Self { notes, sampler: None, recorder: notes.recorder() }
    }

    /// The vCPU with this number among those of all guests gets this thread, and `pcpu` if that is known.
    /// `counts`: whether a moment does.
    pub(crate) fn runs(&mut self, vcpu: u32, pcpu: Option<u32>, now_ns: u64, counts: impl Fn(u64) -> bool) {
        if let Some(sampler) = &mut self.sampler {
            sampler.turn_begins(now_ns, counts);
        }
        self.note(now_ns, What::Runs { vcpu, pcpu });
    }

    /// The vCPU with this number is off. Where it goes `to` is asked only if it is to be noted.
    pub(crate) fn stops(&mut self, vcpu: u32, now_ns: u64, to: impl FnOnce() -> Where) {
        if self.recorder.is_some() {
            let to = to();
            self.note(now_ns, What::Stops { vcpu, to });
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
            self.note(at_ns, What::Kicks { from, to, asleep });
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

    fn note(&mut self, at_ns: u64, what: What) {
        if let Some(recorder) = &mut self.recorder {
            recorder.note(at_ns, what);
        }
    }
}

impl Drop for Observer<'_> {
    /// Hands everything in, however the thread ends.
    fn drop(&mut self) {
        if let Some(sampler) = self.sampler.take() {
            self.notes.hand_in_samples(sampler);
        }
        if let Some(recorder) = self.recorder.take() {
            self.notes.hand_in(recorder);
        }
    }
}
