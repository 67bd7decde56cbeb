//! Sequence counts: readers notice that something changed, writers never wait.

use haltkick_locks::mutant::mutant;

use super::{AtomicU32, Ordering::*, fence};

/// Odd while what it guards is being changed. Writers exclude each other by other means.
#[derive(Debug)]
pub(crate) struct Sequence(AtomicU32);

impl Sequence {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// For a reader to begin with; odd: a writer is at it.
    pub(crate) fn read(&self) -> u32 {
        // Acquire: pairs with the release in `end`; what is read next is at least as new.
        self.0.load(mutant!("sequence-relaxed-read": Acquire => Relaxed))
    }

    /// Whether nothing has changed since `read` returned `seen`.
    pub(crate) fn is_still(&self, seen: u32) -> bool {
        // Earlier reads come before this load. Pairs with the fence in `begin`: if any of them was new, so is
        // this.
        mutant!("sequence-no-fence-in-reader": fence(Acquire) => ());
        self.0.load(Relaxed) == seen
    }

    /// A change begins. Does nothing if one is going on.
    pub(crate) fn begin(&self) {
        // Relaxed: only writers write, one at a time.
        self.0.store(self.0.load(Relaxed) | 1, Relaxed);
        // A reader that sees a store that follows sees the odd number. Pairs with the fence in `is_still`.
        mutant!("sequence-no-fence-in-writer": fence(Release) => ());
    }

    /// The change is complete.
    pub(crate) fn end(&self) {
        // Relaxed load: as above. Release: pairs with the acquire in `read`.
        self.0.store(
            (self.0.load(Relaxed) | 1).wrapping_add(1),
            mutant!("sequence-relaxed-end": Release => Relaxed),
        );
    }
}
