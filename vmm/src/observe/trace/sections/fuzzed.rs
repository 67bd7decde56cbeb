//! Rings of a guest that has written anything.

use haltkick_fuzzing::{Script, Target, no_seeds};
use haltkick_hypercalls::{TRACE_SECTION_BYTES, TRACE_SECTIONS_OFFSET};

use super::{Clock, Sections};
use crate::host::clock::Moment;

pub(crate) const TARGET: Target = Target { name: "sections", most_bytes: 512, seeds: no_seeds, execute };

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
            section.lock < LOCKS && section.asked_ns <= section.had_ns && section.had_ns <= section.left_ns
        );
        assert!(
            start.ns <= section.asked_ns && section.left_ns <= end.ns,
            "{section:?} in {start:?} to {end:?}"
        );
    }
    assert!(found.is_sorted_by(|before, after| before.left_ns <= after.asked_ns));
}

fn put(ring: &mut [u8], at: usize, value: u64) {
    ring[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    #[test]
    fn fuzz_sections_of_any_ring_those_count_that_can_be() {
        super::TARGET.run();
    }
}
