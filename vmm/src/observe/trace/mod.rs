//! Trace of events over time: recorded by every thread into memory of its own, put together when the run is over.
//!
//! Two sources, on one clock. The host's threads note who ran where, who slept and who was kicked. The guest notes, once
//! per critical section and without an exit, when it asked for the lock, had it and left it. Both write into rings of a
//! fixed size, so that a long run costs no more memory than a short one: the latest is kept, what was overwritten is
//! counted. `write` makes a file of all of it.

pub(crate) mod sections;
mod write;

use std::collections::VecDeque;
use std::sync::Mutex;

use haltkick_hypercalls::WorkloadFlags;

use crate::guest::memory::Memory;
use crate::host::clock::Moment;
use crate::host::error::Known;
use crate::host::threads::{lock, unlocked};
use crate::image::file::Image;
use crate::observe::Where;

pub(crate) use sections::Sections;

/// Most events that all threads together keep: 12 MiB.
const HOST_EVENTS: usize = 1 << 19;
/// Most critical sections that all vCPUs together keep: 16 MiB.
const GUEST_SECTIONS: u64 = 1 << 19;
/// Fewest that a thread keeps.
const LEAST_PER_THREAD: usize = 256;

/// Sections in each vCPU's ring, a power of two.
pub(crate) fn sections_per_vcpu(vcpus: u32) -> u64 {
    const { assert!(GUEST_SECTIONS >= haltkick_hypercalls::MAX_VCPUS as u64) };
    GUEST_SECTIONS / u64::from(vcpus.max(1)).next_power_of_two()
}

/// Something that a thread of the VMM saw. vCPUs are counted through all guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Host time.
    pub(crate) at_ns: u64,
    pub(crate) vcpu: u32,
    pub(crate) what: What,
}

/// The event of a vCPU that a thread saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// It got this pCPU; under the host's scheduler, where the pCPU is unknown: it woke up.
    Runs { pcpu: Option<u32> },
    /// It is off its pCPU, and where it went.
    Stops { to: Where },
    /// It is kept off on purpose, and its thread got this pCPU meanwhile.
    Takes { pcpu: u32 },
    /// It is kept off on purpose, and its thread is off its pCPU.
    Leaves,
    /// It sleeps no more, and waits for a pCPU.
    Wakes,
    /// It kicked another vCPU, which slept, or else has it latched.
    Kicks { to: u32, asleep: bool },
}

/// One thread's ring of events.
#[derive(Debug)]
pub(crate) struct Recorder {
    events: VecDeque<Event>,
    dropped: u64,
    most: usize,
}

impl Recorder {
    fn new(most: usize) -> Self {
        Self { events: VecDeque::new(), dropped: 0, most }
    }

    pub(crate) fn note(&mut self, at_ns: u64, vcpu: u32, what: What) {
        if self.events.len() >= self.most {
            self.events.pop_front();
            self.dropped += 1;
        }
        self.events.push_back(Event { at_ns, vcpu, what });
    }
}

#[derive(Debug)]
pub(crate) struct Collector {
    per_thread: usize,
    per_guest: usize,
    recorders: Mutex<Vec<Recorder>>,
    start: Moment,
}

impl Collector {
    /// For a run that `threads` threads record, with half of the room for `guests` whose switches are recorded besides.
    pub(crate) fn new(threads: usize, guests: usize, start: Moment) -> Self {
        let of_threads = if guests > 0 { HOST_EVENTS / 2 } else { HOST_EVENTS };
        let per_thread = (of_threads / threads.max(1)).max(LEAST_PER_THREAD);
        let per_guest = (HOST_EVENTS - of_threads) / guests.max(1);
        Self { per_thread, per_guest, recorders: Mutex::default(), start }
    }

    pub(crate) fn switch_recorder(&self) -> Recorder {
        Recorder::new(self.per_guest)
    }

    pub(crate) fn recorder(&self) -> Recorder {
        Recorder::new(self.per_thread)
    }

    pub(crate) fn hand_in(&self, recorder: Recorder) {
        lock(&self.recorders).push(recorder);
    }

    /// Everything, once all threads have ended.
    /// `tsc_offsets`: how far each guest's TSC is ahead of the host's, wrapping.
    pub(crate) fn finish(
        self,
        memories: &[&Memory],
        tsc_offsets: &[u64],
        about: About,
        end: Moment,
    ) -> Trace {
        let recorders = unlocked(self.recorders);
        let (events, dropped_events) = merge(&recorders);
        let dropped_events = dropped_events + about.lost_reports;
        let clock = Clock { start: self.start, end };
        let mut sections = Sections::default();
        for ((memory, &offset), guest) in memories.iter().zip(tsc_offsets).zip(&about.guests) {
            let ahead = |at: Moment| Moment { tsc: at.tsc.wrapping_add(offset), ..at };
            let of_guest = Clock { start: ahead(clock.start), end: ahead(clock.end) };
            sections.read(memory, guest.vcpus, guest.locks, &of_guest);
        }
        Trace { about, clock, events, dropped_events, sections }
    }
}

/// All threads' events in order. What is older than the oldest that a full ring has kept would contradict what that
/// ring has lost: it is dropped too.
fn merge(recorders: &[Recorder]) -> (Vec<Event>, u64) {
    let full = recorders.iter().filter(|recorder| recorder.dropped > 0);
    let from_ns = full.filter_map(|recorder| recorder.events.front()).map(|oldest| oldest.at_ns).max();
    let all: u64 = recorders.iter().map(|recorder| recorder.dropped + recorder.events.len() as u64).sum();
    let kept = recorders.iter().flat_map(|recorder| &recorder.events);
    let mut events: Vec<_> = kept.filter(|event| Some(event.at_ns) >= from_ns).copied().collect();
    events.sort_by_key(|event| event.at_ns);
    let dropped = all - events.len() as u64;
    (events, dropped)
}

/// Description of the run, for the names of tracks.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) guests: Vec<AboutGuest>,
    /// The pCPUs, if the VMM knows who ran on them.
    pub(crate) pcpus: Vec<u32>,
    /// When the measuring window was open, in host time; `u64::MAX`: never.
    pub(crate) window_ns: [u64; 2],
    /// Reports of switches that never came.
    pub(crate) lost_reports: u64,
    pub(crate) missing: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct AboutGuest {
    pub(crate) name: String,
    pub(crate) vcpus: u32,
    pub(crate) locks: u32,
    pub(crate) workload: String,
}

impl About {
    /// `switches`, where the host's scheduler decides: how many reports of switches of the vCPUs' threads got lost, or why there
    /// were none.
    pub(crate) fn new(
        guests: Vec<AboutGuest>,
        pcpus: &[u32],
        image: &Image,
        window_ns: [u64; 2],
        switches: Option<&Known<u64>>,
    ) -> Self {
        let no_switches = switches.and_then(|switches| switches.as_ref().err());
        Self {
            pcpus: if no_switches.is_some() { vec![] } else { pcpus.to_vec() },
            window_ns,
            lost_reports: switches.and_then(|switches| switches.as_ref().ok()).copied().unwrap_or(0),
            missing: missing(&guests, image, no_switches.map(|reason| &*reason.0)),
            guests,
        }
    }

    fn vcpu_names(&self) -> Vec<String> {
        let several = self.guests.len() > 1;
        let named = |guest: &AboutGuest, vcpu| match several {
            true => format!("{} vCPU {vcpu}", guest.name),
            false => format!("vCPU {vcpu}"),
        };
        self.guests.iter().flat_map(|guest| (0..guest.vcpus).map(move |vcpu| named(guest, vcpu))).collect()
    }
}

fn missing(guests: &[AboutGuest], image: &Image, no_switches: Option<&str>) -> Vec<String> {
    let mut missing = Vec::new();
    if let Some(reason) = no_switches {
        missing.push(format!("who ran on which pCPU: {reason}"));
    }
    let noting =
        image.workloads.iter().filter(|entry| entry.workload_flags().has(WorkloadFlags::NOTES_SECTIONS));
    let notes = |name: &str| noting.clone().any(|entry| entry.name == name);
    let mut silent: Vec<_> =
        guests.iter().map(|guest| guest.workload.as_str()).filter(|name| !notes(name)).collect();
    silent.dedup();
    if !silent.is_empty() {
        let noting = noting.filter(|entry| !entry.is_selftest());
        let noting: Vec<_> = noting.map(|entry| entry.name.as_str()).collect();
        missing.push(format!(
            "critical sections: {} does not note them, {} do",
            silent.join(", "),
            noting.join(", ")
        ));
    }
    missing
}

/// From the guest's clock to the host's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Moment,
    end: Moment,
}

impl Clock {
    /// Host time of a TSC value; `None` when that lies outside the run.
    pub(crate) fn ns(&self, tsc: u64) -> Option<u64> {
        // The guest's clock may begin after the trace did, and with it at 0: the start is before that.
        let [ticks, all] = [tsc, self.end.tsc].map(|tsc| tsc.wrapping_sub(self.start.tsc));
        if ticks > all {
            return None;
        }
        let ns = u128::from(self.end.ns - self.start.ns);
        Some(self.start.ns + (u128::from(ticks) * ns / u128::from(all).max(1)) as u64)
    }
}

/// The recording of a run.
#[derive(Debug)]
pub struct Trace {
    about: About,
    clock: Clock,
    events: Vec<Event>,
    dropped_events: u64,
    sections: Sections,
}

impl Trace {
    /// Events of the host that it holds, and those that were dropped for lack of room.
    #[must_use]
    pub fn host_events(&self) -> (u64, u64) {
        (self.events.len() as u64, self.dropped_events)
    }

    /// Critical sections of the guest that it holds, and those that were dropped for lack of room.
    #[must_use]
    pub fn guest_sections(&self) -> (u64, u64) {
        (self.sections.count(), self.sections.dropped)
    }

    /// The gaps of the trace with their reasons, one line for each.
    #[must_use]
    pub fn missing(&self) -> &[String] {
        &self.about.missing
    }

    /// Sections that the guest noted with times or locks that cannot be: they are left out.
    #[must_use]
    pub fn implausible_sections(&self) -> u64 {
        self.sections.implausible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(at_ns: u64, vcpu: u32) -> Event {
        Event { at_ns, vcpu, what: What::Runs { pcpu: None } }
    }

    fn recorded(most: usize, events: &[Event]) -> Recorder {
        let mut recorder = Recorder::new(most);
        events.iter().for_each(|event| recorder.note(event.at_ns, event.vcpu, event.what));
        recorder
    }

    #[test]
    fn full_rings_keep_the_latest_from_where_all_are_complete() {
        let long: Vec<_> = (1..=10).map(|at_ns| runs(at_ns * 10, 0)).collect();
        let short = [runs(15, 1), runs(85, 1)];
        let (kept, dropped) = merge(&[recorded(4, &long), recorded(4, &short)]);
        let times: Vec<_> = kept.iter().map(|event| event.at_ns).collect();
        // The event at 15 lies in the time of which the other thread has forgotten everything.
        assert_eq!((times, dropped), (vec![70, 80, 85, 90, 100], 7));
    }

    #[test]
    fn guest_time_is_host_time_between_two_readings_and_nothing_outside() {
        let clock =
            Clock { start: Moment { ns: 1_000, tsc: 50_000 }, end: Moment { ns: 2_000, tsc: 52_000 } };
        assert_eq!(clock.ns(50_000), Some(1_000));
        assert_eq!(clock.ns(51_000), Some(1_500));
        assert_eq!(clock.ns(52_000), Some(2_000));
        assert_eq!((clock.ns(49_999), clock.ns(52_001), clock.ns(u64::MAX)), (None, None, None));
    }

    #[test]
    fn a_trace_without_some_switches_is_a_doubtful_schedule() {
        let image = Image::embedded();
        let rows = [(Ok(0), None), (Ok(3), Some("were lost")), (Err("x".into()), Some("not in it"))];
        for (switches, expected) in rows {
            let (name, workload) = ("main".into(), "critical-section".into());
            let guest = AboutGuest { name, vcpus: 1, locks: 1, workload };
            let about = About::new(vec![guest], &[], &image, [0, 90], Some(&switches));
            let dropped_events = about.lost_reports;
            let what = What::Stops { to: Where::Preempted(crate::guest::Activity::Other) };
            let events = vec![runs(10, 0), Event { at_ns: 20, vcpu: 0, what }, runs(60, 0)];
            let clock = Clock { start: Moment { ns: 0, tsc: 0 }, end: Moment { ns: 90, tsc: 90 } };
            let trace = Trace { about, clock, events, dropped_events, sections: Sections::default() };
            let mut bytes = Vec::new();
            let length = trace.write(&mut bytes).expect("memory takes all");
            assert_eq!(length, bytes.len() as u64);
            let schedule = haltkick_sim::schedule::Schedule::parse("x", &bytes).expect("an absence");
            let doubts = schedule.doubts.as_deref();
            assert_eq!((schedule.count(), doubts.is_some()), (1, expected.is_some()), "{doubts:?}");
            assert!(doubts.unwrap_or_default().contains(expected.unwrap_or_default()), "{doubts:?}");
        }
    }
}
