//! The guest's half of a trace: its critical sections, from the rings that it wrote.
//!
//! The guest wrote them and may have written anything. A section counts if its times lie in the run and in order, after
//! those of the section before, and if there is such a lock; others are counted and left out.

use std::sync::atomic::Ordering;

use haltkick_hypercalls::{TRACE_SECTION_BYTES, TRACE_SECTIONS_OFFSET};

use super::Clock;
use crate::guest::Activity;
use crate::guest::memory::Memory;

/// One critical section, in host time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) asked_ns: u64,
    pub(crate) had_ns: u64,
    pub(crate) left_ns: u64,
    pub(crate) lock: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Sections {
    pub(crate) per_vcpu: Vec<Vec<Section>>,
    /// Activity of each vCPU when the run ended, in words, and since when. A holder's time begins when it asked: more is not known.
    pub(crate) unfinished: Vec<Option<(u64, String)>>,
    /// Overwritten in the rings.
    pub(crate) dropped: u64,
    /// Written with values that cannot be.
    pub(crate) implausible: u64,
}

impl Sections {
    /// Adds those in the rings of a guest that has stopped.
    pub(super) fn read(&mut self, memory: &Memory, vcpus: u32, locks: u32, clock: &Clock) {
        for vcpu in 0..vcpus {
            let ring = memory.trace_ring(vcpu);
            let of_vcpu = ring.map_or_else(Vec::new, |ring| self.parse(&ring, locks, clock));
            let since_ns = of_vcpu.last().map_or(0, |section| section.left_ns);
            self.unfinished.push(unfinished(memory, vcpu, locks, clock, since_ns));
            self.per_vcpu.push(of_vcpu);
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.per_vcpu.iter().map(|sections| sections.len() as u64).sum()
    }

    fn parse(&mut self, ring: &[u8], locks: u32, clock: &Clock) -> Vec<Section> {
        let written = word(ring, 0);
        let records = &ring[TRACE_SECTIONS_OFFSET..];
        let capacity = (records.len() / TRACE_SECTION_BYTES) as u64;
        let kept = written.min(capacity);
        self.dropped = self.dropped.saturating_add(written - kept);
        let mut before_ns = 0;
        let mut sections = Vec::with_capacity(kept as usize);
        for number in written - kept..written {
            let at = (number % capacity) as usize * TRACE_SECTION_BYTES;
            match section(&records[at..at + TRACE_SECTION_BYTES], locks, clock) {
                Some(section) if section.asked_ns >= before_ns => {
                    before_ns = section.left_ns;
                    sections.push(section);
                }
                _ => self.implausible += 1,
            }
        }
        sections
    }
}

/// The section or wait that `vcpu` says it is in, if that began after `since_ns`.
fn unfinished(memory: &Memory, vcpu: u32, locks: u32, clock: &Clock, since_ns: u64) -> Option<(u64, String)> {
    let activity = &memory.area(vcpu).activity;
    let doing = Activity::of(memory.area(vcpu));
    let lock = activity.lock.load(Ordering::Relaxed);
    let asked_ns = clock.ns(activity.since_tsc.load(Ordering::Relaxed))?;
    let plausible = doing != Activity::Other && lock < locks && asked_ns >= since_ns;
    let does = if doing == Activity::Holder { "hold" } else { "wait for" };
    plausible.then(|| (asked_ns, format!("{does} lock {lock}")))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// A record, if it can be one. Partner of `TraceSection` in the ABI.
fn section(record: &[u8], locks: u32, clock: &Clock) -> Option<Section> {
    let [asked, had, left, lock] = [0, 8, 16, 24].map(|at| word(record, at));
    let ordered = asked <= had && had <= left;
    let section = Section {
        asked_ns: clock.ns(asked)?,
        had_ns: clock.ns(had)?,
        left_ns: clock.ns(left)?,
        lock: u32::try_from(lock).ok()?,
    };
    (ordered && section.lock < locks).then_some(section)
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed {
    use haltkick_fuzzing::{Script, Target};
    use haltkick_hypercalls::{TRACE_SECTION_BYTES, TRACE_SECTIONS_OFFSET};

    use super::{Clock, Sections};
    use crate::host::clock::Moment;

    pub(crate) const TARGET: Target = Target { name: "sections", most_bytes: 512, seeds: Vec::new, execute };

    const CAPACITY: usize = 8;
    const LOCKS: u32 = 2;

    /// Anything in a ring, and a run of any length: sections that count lie in the run and in order.
    fn execute(bytes: &[u8]) {
        let mut script = Script::new(bytes);
        let mut moment = || Moment { ns: script.number(), tsc: script.number() };
        let (start, end) = (moment(), moment());
        // The VMM's own clock runs forwards.
        let end = Moment { ns: end.ns.max(start.ns), ..end };
        let clock = Clock { start, end };
        let mut ring = vec![0; TRACE_SECTIONS_OFFSET + CAPACITY * TRACE_SECTION_BYTES];
        put(&mut ring, 0, script.number());
        let (mut at, mut last) = (TRACE_SECTIONS_OFFSET, start.tsc);
        while !script.is_over() && at < ring.len() {
            // Mostly a little later than before.
            last = if script.byte().is_multiple_of(8) {
                script.number()
            } else {
                last.wrapping_add(script.number() % 64)
            };
            let is_lock = at % TRACE_SECTION_BYTES == (TRACE_SECTIONS_OFFSET + 24) % TRACE_SECTION_BYTES;
            put(&mut ring, at, if is_lock { script.number() } else { last });
            at += 8;
        }
        let mut sections = Sections::default();
        let found = sections.parse(&ring, LOCKS, &clock);
        for section in &found {
            assert!(
                section.lock < LOCKS
                    && section.asked_ns <= section.had_ns
                    && section.had_ns <= section.left_ns
            );
            assert!(
                start.ns <= section.asked_ns && section.left_ns <= end.ns,
                "{section:?} in {start:?} to {end:?}"
            );
        }
        assert!(found.is_sorted_by(|before, after| before.left_ns <= after.asked_ns));
    }

    pub(super) fn put(ring: &mut [u8], at: usize, value: u64) {
        ring[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::fuzzed::put;
    use super::*;
    use crate::host::clock::Moment;

    /// One nanosecond per tick.
    const CLOCK: Clock =
        Clock { start: Moment { ns: 1_000, tsc: 1_000 }, end: Moment { ns: 9_000, tsc: 9_000 } };

    /// A ring of `capacity` records into which `sections` were written one after the other.
    fn ring(capacity: usize, sections: &[[u64; 4]]) -> Vec<u8> {
        let mut ring = vec![0; TRACE_SECTIONS_OFFSET + capacity * TRACE_SECTION_BYTES];
        put(&mut ring, 0, sections.len() as u64);
        for (number, section) in sections.iter().enumerate() {
            let at = TRACE_SECTIONS_OFFSET + number % capacity * TRACE_SECTION_BYTES;
            (at..).step_by(8).zip(section).for_each(|(at, value)| put(&mut ring, at, *value));
        }
        ring
    }

    fn parse(ring: &[u8]) -> (Vec<u64>, u64, u64) {
        let mut sections = Sections::default();
        let asked = sections.parse(ring, 2, &CLOCK).iter().map(|section| section.asked_ns).collect();
        (asked, sections.dropped, sections.implausible)
    }

    #[test]
    fn the_latest_sections_are_in_order_around_the_rings_end() {
        let sections: Vec<_> = (1..=7).map(|i| [i * 1_000, i * 1_000 + 1, i * 1_000 + 2, 1]).collect();
        assert_eq!(parse(&ring(4, &sections)), (vec![4_000, 5_000, 6_000, 7_000], 3, 0));
        assert_eq!(parse(&ring(8, &sections)).0.len(), 7);
        assert_eq!(parse(&ring(4, &[])), (vec![], 0, 0));
    }

    #[test]
    fn nonsense_is_counted_and_left_out() {
        let good = [2_000, 2_001, 2_002, 0];
        for nonsense in [
            [0, 2_001, 2_002, 0],            // before the run
            [3_000, 3_001, u64::MAX, 0],     // after it
            [3_002, 3_001, 3_003, 0],        // had before asked
            [3_000, 3_002, 3_001, 0],        // left before had
            [2_001, 2_003, 2_004, 0],        // within the section before
            [3_000, 3_001, 3_002, 2],        // no such lock
            [3_000, 3_001, 3_002, u64::MAX], // nor such
        ] {
            assert_eq!(parse(&ring(4, &[good, nonsense])), (vec![2_000], 0, 1), "{nonsense:?}");
        }
        let mut ring = ring(4, &[good]);
        put(&mut ring, 0, u64::MAX);
        let (kept, dropped, implausible) = parse(&ring);
        assert_eq!((kept.len() as u64 + implausible, dropped), (4, u64::MAX - 4));
        let mut sections = Sections::default();
        for _ in 0..2 {
            sections.parse(&ring, 2, &CLOCK);
        }
        assert_eq!(sections.dropped, u64::MAX, "of several vCPUs that say so");
    }
}
