//! P1: how the head of a queue spins for the lock, if it is not courteous (`courtesy.rs`).

use super::{
    policy::Policy,
    word::{LOCKED, LOCKED_MASK, Word},
};
use crate::{
    contract::{Platform, Point},
    faults::mutant::mutant,
    memory::sync::{AtomicU32, Ordering::*},
    waiting::patience::Patience,
};

/// P1: spins for the lock. `Some` with the word as last seen, locked if this took the lock.
pub(super) fn spin_for_lock<T: Policy, W: Word, P: Platform>(
    word: &AtomicU32,
    platform: &P,
    patience: &mut Patience<'_, P>,
) -> Option<u32> {
    if T::STEALING {
        return insist::<W, P>(word, platform, patience);
    }
    loop {
        // Acquire: pairs with unlock. No other CPU can take the lock, so Q6 or Q7 will.
        let seen = word.load(mutant!("v16-relaxed-head": Acquire => Relaxed));
        if seen & LOCKED_MASK == 0 {
            return Some(seen);
        }
        if !patience.pause() {
            return None;
        }
    }
}

/// P1 of a head that forbids stealing.
pub(super) fn insist<W: Word, P: Platform>(
    word: &AtomicU32,
    platform: &P,
    patience: &mut Patience<'_, P>,
) -> Option<u32> {
    // (*,0,*) -> (*,1,*)
    W::announce_spinning(word);
    platform.point(Point::HeadSpinning);
    loop {
        // (*,1,0) -> (*,0,1)
        if W::spinning_to_locked(word) {
            // Relaxed: only tells Q6 whether a CPU has queued behind.
            return Some(word.load(Relaxed) | LOCKED);
        }
        if !patience.pause() {
            // (*,1,*) -> (*,0,*)
            W::clear_pending(word);
            return None;
        }
    }
}
