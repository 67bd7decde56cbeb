//! Every interleaving and every permitted reordering around a sequence count, which shuttle, whose memory is sequentially
//! consistent, knows nothing of.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p haltkick-mm --test loom`
//!
//! The source of the crate's own `Sequence`, over loom's atomics.
//!
//! The writer is the thread that begins, and the reader the one that it starts. The other way round loom lets the reader's first
//! look at the number come before all changes: of each atomic it remembers the last access alone, and takes a store to race
//! with that one. A writer looks at the number itself before it stores, which hides the reader's look from loom.

#![cfg(loom)]

#[path = "../../src/records/sequence.rs"]
mod sequence;

use std::sync::atomic::AtomicBool;

use haltkick_testing::play_once;
// All that `sequence.rs` uses of its parent.
use loom::sync::atomic::{
    AtomicU32,
    Ordering::{self, Relaxed},
    fence,
};
use sequence::Sequence;

/// Two numbers that are changed together, one after the other.
struct Pair {
    sequence: Sequence,
    numbers: [AtomicU32; 2],
}

impl Pair {
    fn new() -> Self {
        Self { sequence: Sequence::new(), numbers: [AtomicU32::new(0), AtomicU32::new(0)] }
    }

    fn change(&self, to: u32) {
        self.sequence.begin();
        self.numbers.iter().for_each(|number| number.store(to, Relaxed));
        self.sequence.end();
    }

    /// The pair, if it has not changed meanwhile.
    fn read(&self) -> Option<[u32; 2]> {
        let seen = self.sequence.read();
        let numbers = self.numbers.each_ref().map(|number| number.load(Relaxed));
        (seen.is_multiple_of(2) && self.sequence.is_still(seen)).then_some(numbers)
    }
}

#[test]
fn what_is_read_between_two_looks_at_the_same_number_belongs_together() {
    // Number of changes that a reader can find: none, the first, both.
    static FOUND: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
    let play = |cpu, pair: &Pair| {
        if cpu == 0 {
            pair.change(1);
            pair.change(2);
        } else if let Some([a, b]) = pair.read() {
            assert_eq!(a, b, "half of a change");
            FOUND[a as usize].store(true, Relaxed);
        }
    };
    loom::model(move || play_once(2, Pair::new(), play, |pair| assert_eq!(pair.read(), Some([2, 2]))));
    assert!(FOUND.iter().all(|found| found.load(Relaxed)), "no execution has come to one of {FOUND:?}");
}

/// As an area that is taken away: what follows the mark is never seen by one who finds the number as it was.
#[test]
fn a_change_that_has_begun_is_noticed_with_its_first_store() {
    let play = |cpu, pair: &Pair| {
        if cpu == 0 {
            pair.sequence.begin();
            pair.numbers[0].store(1, Relaxed);
        } else {
            let seen = pair.sequence.read();
            let first = pair.numbers[0].load(Relaxed);
            assert!(first == 0 || seen != 0 || !pair.sequence.is_still(seen), "the mark came too late");
        }
    };
    loom::model(move || play_once(2, Pair::new(), play, |_| ()));
}
