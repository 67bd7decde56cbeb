//! A set of the CPUs that sleep until one lock is released, or are about to.
//!
//! A waiter enters itself, looks at the lock once more, and sleeps then. So either that look finds the lock free, or the unlock finds the
//! waiter in the set: case T1.
//!
//! A CPU in the set of a lock is asking for it. An unlock that wakes one CPU relies on that: the CPU that it takes out either acquires,
//! and wakes the next one at its own unlock, or fails because another CPU has acquired, which will. So every way out of
//! the sleep takes the CPU out of the set, a kick that was meant for an earlier sleep included. With the bit left
//! behind, a CPU that acquires and goes on to other things would be woken in the place of one that sleeps.

use crate::{
    faults::mutant::mutant,
    memory::sync::{AtomicUsize, Ordering, array, const_unless_loom, fence},
};

const BITS: usize = usize::BITS as usize;

/// One bit for each CPU, below `WORDS` times the length of a word.
#[derive(Debug)]
pub(crate) struct Sleepers<const WORDS: usize>([AtomicUsize; WORDS]);

impl<const WORDS: usize> Sleepers<WORDS> {
    const_unless_loom! {
        /// An empty set.
        pub(crate) const fn new() -> Self {
            Self(array![AtomicUsize::new(0); WORDS])
        }
    }

    /// T1: the caller's next look at the lock comes after the fence, which pairs with the one in `take_one`. The insertion alone is a
    /// full fence on x86 only.
    pub(crate) fn insert(&self, cpu: usize) {
        // Relaxed: ordered by the fence.
        self.0[cpu / BITS].fetch_or(1 << (cpu % BITS), Ordering::Relaxed);
        if !mutant!("sleepers-no-fence": false => true) {
            fence(Ordering::SeqCst);
        }
    }

    /// Whether `cpu` was still in it.
    pub(crate) fn remove(&self, cpu: usize) -> bool {
        let bit = 1 << (cpu % BITS);
        // Relaxed: decides who kicks, and publishes nothing.
        self.0[cpu / BITS].fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// Takes the next CPU after `cpu` out, by number and around, if there is any.
    pub(crate) fn take_one(&self, cpu: usize) -> Option<usize> {
        // The caller has written the lock's word, and reads the set after that; pairs with the fence in `insert`.
        fence(Ordering::SeqCst);
        let first = cpu + 1;
        let (first_word, not_before) = (first / BITS % WORDS, usize::MAX << (first % BITS));
        for step in 0..=WORDS {
            let index = (first_word + step) % WORDS;
            // Relaxed: ordered by the fence; `remove` decides.
            let mut bits = self.0[index].load(Ordering::Relaxed);
            if step == 0 {
                bits &= not_before;
            } else if step == WORDS {
                bits &= !not_before;
            }
            while bits != 0 {
                let cpu = index * BITS + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if self.remove(cpu) {
                    return Some(cpu);
                }
            }
        }
        None
    }

    /// Whether `cpu` is in it.
    pub(crate) fn contains(&self, cpu: usize) -> bool {
        self.0[cpu / BITS].load(Ordering::Relaxed) & 1 << (cpu % BITS) != 0
    }
}
