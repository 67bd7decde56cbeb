//! Native unlock of a [`Whole`](super::Whole) word: a store on AArch64, a read-modify-write elsewhere.
//!
//! # Why the store is sound although widths mix
//!
//! Rust code never accesses the word other than as one `AtomicU32`. The store of its locked byte is, for all other CPUs, one change of the
//! word that leaves the other bytes as they are. A read-modify-write of another CPU does not undo it: an exclusive store fails after
//! any write to its granule, and an atomic instruction owns the line. Only the owner writes the byte but for a head that hashes the
//! lock, which a native lock has none of.

use crate::memory::sync::AtomicU32;

/// (*,*,1) -> (*,*,0). Release: as [`Word::unlock`](super::word::Word::unlock).
#[cfg(all(target_arch = "aarch64", target_endian = "little", not(any(loom, shuttle, liveness, miri))))]
#[expect(unsafe_code, reason = "a byte store to a 32-bit atomic exists only in assembly")]
#[inline(always)]
pub(super) fn unlock(word: &AtomicU32) {
    // SAFETY: `word` is valid for four bytes, of which the first is the locked byte; the module documentation says why the access may
    // race with 32-bit atomics. The block clobbers memory, which keeps the compiler from moving accesses across it.
    unsafe {
        core::arch::asm!("stlrb wzr, [{word}]", word = in(reg) word.as_ptr(), options(nostack, preserves_flags));
    }
}

/// (*,*,1) -> (*,*,0). Release: as [`Word::unlock`](super::word::Word::unlock).
#[cfg(not(all(target_arch = "aarch64", target_endian = "little", not(any(loom, shuttle, liveness, miri)))))]
#[inline(always)]
pub(super) fn unlock(word: &AtomicU32) {
    use super::word::LOCKED_MASK;
    use crate::{faults::mutant::mutant, memory::sync::Ordering::*};

    word.fetch_and(!LOCKED_MASK, mutant!("relaxed-unlock": Release => Relaxed));
}
