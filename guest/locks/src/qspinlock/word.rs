//! The lock word: its fields, and every way in which they change.
//!
//! | field | [`Packed`](super::Packed) | [`Whole`] | values |
//! |---|---|---|---|
//! | locked | bits 0-7 | bits 0-7 | 0 free, [`LOCKED`], [`SLOW`] |
//! | pending | bit 8, alone in its byte | bit 8 | 0, 1 |
//! | tail: node index | bits 16-17 | bits 9-10 | nesting level of the last node |
//! | tail: CPU + 1 | bits 18-31 | bits 11-31 | 0: no queue |
//!
//! A state is written (tail, pending, locked), `n` for some queue and `*` for anything:
//!
//! | state | native | paravirtual |
//! |---|---|---|
//! | (0,0,0) | free | free |
//! | (0,0,1) | held, no waiters | the same |
//! | (0,1,1) | held, one CPU waits in the pending bit | - |
//! | (0,1,0) | on its way from the owner to the pending CPU | - |
//! | (n,0,1) | held, CPUs queue | held, the head sleeps or is not there yet: newcomers may steal |
//! | (n,1,1) | held, one pending, CPUs queue | held, the head spins: no stealing |
//! | (n,*,0) | on its way to the pending CPU, else to the head | free to the head; to thieves as well if not pending |
//! | (n,*,3) | - | held; a sleeping head stands in the hash table, and unlock has to kick it |
//!
//! Rust gives no meaning to atomic accesses of different width that race, so there are two layouts. `Whole`
//! uses nothing but 32-bit atomics: it is what the model checkers and Miri see, and what every target can
//! run. `Packed` does what a kernel on x86 does, byte stores included, in assembly.
//!
//! # Native unlock of a [`Whole`] word
//!
//! A store on AArch64, a read-modify-write elsewhere. The store is sound although widths mix:
//!
//! Rust code never accesses the word other than as one `AtomicU32`. The store of its locked byte is, for all other CPUs, one change of the
//! word that leaves the other bytes as they are. A read-modify-write of another CPU does not undo it: an exclusive store fails after
//! any write to its granule, and an atomic instruction owns the line. Only the owner writes that byte: a native lock has no head that hashes
//! it.

use crate::{
    contract::sealed,
    faults::mutant::mutant,
    memory::{AtomicU32, Ordering::*},
};

/// Locked byte: held.
pub(crate) const LOCKED: u32 = 1;
/// Locked byte: held, and unlock must look for a sleeper.
pub(super) const SLOW: u32 = 3;
pub(crate) const LOCKED_MASK: u32 = 0xff;
pub(super) const PENDING: u32 = 1 << 8;
/// Everything but the tail.
pub(crate) const LOCKED_PENDING: u32 = LOCKED_MASK | PENDING;
/// The tail, with bits that no layout uses.
pub(crate) const TAIL_MASK: u32 = !LOCKED_PENDING;

/// (0,0,0) -> (0,0,1). Acquire: pairs with unlock.
#[inline(always)]
pub(crate) fn try_lock(word: &AtomicU32) -> bool {
    // Relaxed: failing needs no ordering, and spares the line when the lock is held.
    word.load(Relaxed) == 0 && word.compare_exchange(0, LOCKED, Acquire, Relaxed).is_ok()
}

/// How the fields of a lock word are changed.
///
/// Loads are always of the whole word. Each method is one transition, named with the step of the protocol in
/// the documentation of the module that uses it, and stands for one atomic read-modify-write of the whole
/// word.
pub trait Word: sealed::Sealed + Send + Sync + 'static {
    /// First bit of the tail.
    const TAIL_SHIFT: u32;

    /// How many CPUs the tail can name.
    const MAX_CPUS: usize = (1 << (30 - Self::TAIL_SHIFT)) - 1;

    /// N3: (*,*,*) -> (*,1,*). Returns the word as it was, as far as it matters there. Acquire.
    fn set_pending(word: &AtomicU32) -> u32;

    /// P1: (*,0,*) -> (*,1,*), by the head alone. Relaxed: forbids stealing, orders nothing.
    fn announce_spinning(word: &AtomicU32);

    /// N4, P1: (*,1,*) -> (*,0,*). Relaxed: takes back what orders nothing.
    fn clear_pending(word: &AtomicU32);

    /// N6: (*,1,0) -> (*,0,1), by the pending CPU alone. Relaxed: it has acquired in N3 or N5.
    fn pending_to_locked(word: &AtomicU32);

    /// Q3: (p,*,*) -> (n,*,*); returns the node code `p`. Release: publishes the initialised node. Acquire:
    /// the predecessor's node is initialised.
    fn swap_tail(word: &AtomicU32, code: u32) -> u32;

    /// Q7: (*,*,0) -> (*,*,1), by the head alone. Relaxed: it has acquired in Q5.
    fn set_locked(word: &AtomicU32);

    /// Native unlock: (*,*,1) -> (*,*,0). Release: pairs with every acquire of this trait, and with the
    /// acquiring loads and compare-exchanges of the protocol.
    fn unlock(word: &AtomicU32);

    /// Stealing: (*,0,0) -> (*,0,1), given the word last seen. It fails if a head has set the pending bit since. Acquire: pairs with
    /// unlock.
    fn steal(word: &AtomicU32, seen: u32) -> bool;

    /// P1: (*,1,0) -> (*,0,1), by the spinning head alone. Acquire: pairs with unlock.
    fn spinning_to_locked(word: &AtomicU32) -> bool;

    /// P3: (*,*,x) -> (*,*,3), by the head alone; returns x. Release: publishes the hash entry to the slow
    /// unlock. Acquire: x may be 0, which makes the head the owner.
    fn swap_slow(word: &AtomicU32) -> u32;

    /// K2: (*,*,1) -> (*,*,3), by the owner. Relaxed: only the owner's own unlock depends on it.
    fn mark_slow(word: &AtomicU32);

    /// P3: (*,*,3) -> (*,*,1), by the owner. Relaxed: as `mark_slow`.
    fn unmark_slow(word: &AtomicU32);

    /// U1: (*,*,1) -> (*,*,0); fails with the locked byte if that is not 1. Release: as `unlock`. A failure
    /// orders nothing.
    fn try_unlock(word: &AtomicU32) -> Result<(), u32>;
}

/// The layout for any target and for 2^21 CPUs: every change is one 32-bit atomic operation, or a short
/// compare-exchange loop.
#[derive(Debug)]
pub enum Whole {}

impl sealed::Sealed for Whole {}

impl Word for Whole {
    const TAIL_SHIFT: u32 = 9;

    #[inline(always)]
    fn set_pending(word: &AtomicU32) -> u32 {
        word.fetch_or(PENDING, Acquire)
    }

    #[inline(always)]
    fn announce_spinning(word: &AtomicU32) {
        word.fetch_or(PENDING, Relaxed);
    }

    #[inline(always)]
    fn clear_pending(word: &AtomicU32) {
        word.fetch_and(!PENDING, Relaxed);
    }

    #[inline(always)]
    fn pending_to_locked(word: &AtomicU32) {
        word.fetch_sub(PENDING - LOCKED, Relaxed);
    }

    #[inline(always)]
    fn swap_tail(word: &AtomicU32, code: u32) -> u32 {
        // Relaxed: the exchange validates the value.
        let mut seen = word.load(Relaxed);
        loop {
            let new = seen & LOCKED_PENDING | code << Self::TAIL_SHIFT;
            match word.compare_exchange_weak(seen, new, mutant!("relaxed-tail": AcqRel => Relaxed), Relaxed) {
                Ok(_) => return seen >> Self::TAIL_SHIFT,
                Err(now) => seen = now,
            }
        }
    }

    #[inline(always)]
    fn set_locked(word: &AtomicU32) {
        word.fetch_or(LOCKED, Relaxed);
    }

    #[inline(always)]
    fn unlock(word: &AtomicU32) {
        unlock_locked(word, LOCKED_MASK);
    }

    #[inline(always)]
    fn steal(word: &AtomicU32, seen: u32) -> bool {
        let acquire = mutant!("relaxed-steal": Acquire => Relaxed);
        // Like the other layout, whose exchange sees the lower half alone: only that counts.
        let counts = mutant!("steal-past-pending": LOCKED_PENDING => LOCKED_MASK);
        let mut seen = seen;
        while seen & counts == 0 {
            match word.compare_exchange_weak(seen, seen | LOCKED, acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    #[inline(always)]
    fn spinning_to_locked(word: &AtomicU32) -> bool {
        // Relaxed: the exchange validates the value.
        let mut seen = word.load(Relaxed);
        let acquire = mutant!("relaxed-spinning-head": Acquire => Relaxed);
        while seen & LOCKED_MASK == 0 {
            match word.compare_exchange_weak(seen, seen & !PENDING | LOCKED, acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    #[inline(always)]
    fn swap_slow(word: &AtomicU32) -> u32 {
        word.fetch_or(SLOW, mutant!("relaxed-slow": AcqRel => Relaxed)) & LOCKED_MASK
    }

    #[inline(always)]
    fn mark_slow(word: &AtomicU32) {
        word.fetch_or(SLOW, Relaxed);
    }

    #[inline(always)]
    fn unmark_slow(word: &AtomicU32) {
        word.fetch_sub(SLOW - LOCKED, Relaxed);
    }

    #[inline(always)]
    fn try_unlock(word: &AtomicU32) -> Result<(), u32> {
        // Relaxed: the exchange validates the value.
        let mut seen = word.load(Relaxed);
        while seen & LOCKED_MASK == LOCKED {
            let release = mutant!("relaxed-pv-unlock": Release => Relaxed);
            match word.compare_exchange_weak(seen, seen & !LOCKED_MASK, release, Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
        Err(seen & LOCKED_MASK)
    }
}

/// (*,*,1) -> (*,*,0), of a word whose `locked` byte is the first. Release: as [`Word::unlock`](Word::unlock).
#[cfg(all(target_arch = "aarch64", target_endian = "little", not(any(loom, shuttle, liveness, miri))))]
#[expect(unsafe_code, reason = "a byte store to a 32-bit atomic exists only in assembly")]
#[inline(always)]
fn unlock_locked(word: &AtomicU32, _locked: u32) {
    // SAFETY: `word` is valid for four bytes, of which the first is the locked byte; the module documentation says why the access may
    // race with 32-bit atomics. The block clobbers memory, which keeps the compiler from moving accesses across it.
    unsafe {
        core::arch::asm!("stlrb wzr, [{word}]", word = in(reg) word.as_ptr(), options(nostack, preserves_flags));
    }
}

/// (*,*,1) -> (*,*,0), of a word with these bits `locked`. Release: as [`Word::unlock`](Word::unlock).
#[cfg(not(all(target_arch = "aarch64", target_endian = "little", not(any(loom, shuttle, liveness, miri)))))]
#[inline(always)]
fn unlock_locked(word: &AtomicU32, locked: u32) {
    word.fetch_and(!locked, mutant!("relaxed-unlock": Release => Relaxed));
}
