//! Native unlock of a [`Whole`](super::Whole) word: a store on AArch64, a read-modify-write elsewhere.
//!
//! # Why the store is sound although widths mix
//!
//! Rust code never accesses the word other than as one `AtomicU32`. The store of its locked byte is, for all other CPUs, one change of the
//! word that leaves the other bytes as they are. A read-modify-write of another CPU does not undo it: an exclusive store fails after
//! any write to its granule, and an atomic instruction owns the line. Only the owner writes that byte: a native lock has no head that hashes
//! it.

use crate::memory::sync::AtomicU32;

/// (*,*,1) -> (*,*,0), of a word whose `locked` byte is the first. Release: as [`Word::unlock`](super::word::Word::unlock).
#[cfg(all(target_arch = "aarch64", target_endian = "little", not(any(loom, shuttle, liveness, miri))))]
#[expect(unsafe_code, reason = "a byte store to a 32-bit atomic exists only in assembly")]
#[inline(always)]
pub(super) fn unlock(word: &AtomicU32, _locked: u32) {
    // SAFETY: `word` is valid for four bytes, of which the first is the locked byte; the module documentation says why the access may
    // race with 32-bit atomics. The block clobbers memory, which keeps the compiler from moving accesses across it.
    unsafe {
        core::arch::asm!("stlrb wzr, [{word}]", word = in(reg) word.as_ptr(), options(nostack, preserves_flags));
    }
}

/// (*,*,1) -> (*,*,0), of a word with these bits `locked`. Release: as [`Word::unlock`](super::word::Word::unlock).
#[cfg(not(all(target_arch = "aarch64", target_endian = "little", not(any(loom, shuttle, liveness, miri)))))]
#[inline(always)]
pub(super) fn unlock(word: &AtomicU32, locked: u32) {
    use crate::{faults::mutant::mutant, memory::sync::Ordering::*};

    word.fetch_and(!locked, mutant!("relaxed-unlock": Release => Relaxed));
}
