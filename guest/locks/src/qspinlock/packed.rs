//! The layout of x86 kernels: locked and pending are bytes, the tail is a 16-bit half.
//!
//! # Why this is sound although widths mix
//!
//! Rust code never accesses the word other than as one `AtomicU32`. What the assembly does to a part of it
//! is, for all other CPUs, one atomic read-modify-write of the whole word that changes only that part:
//!
//! - a LOCKed operation on a part owns the whole line while it reads and writes;
//! - a plain store to a part merges into the line in one step when it leaves the store buffer, and a later
//!   32-bit load on the same CPU does not complete before that, since a partly overlapping store cannot be
//!   forwarded. It is what a relaxed or releasing read-modify-write could do, only cheaper: later accesses to
//!   *other* memory may pass it. x86 keeps stores in order, which makes each of them a release.
//!
//! Each function below names the 32-bit operation of [`Whole`](super::Whole) that it stands for. Each `asm!` block
//! clobbers memory, which keeps the compiler from moving accesses across it.

#![expect(unsafe_code, reason = "byte and 16-bit accesses to a 32-bit atomic exist only in assembly")]

use core::arch::asm;

use super::word::{LOCKED, LOCKED_MASK, PENDING, SLOW, Word};
use crate::contract::sealed;
use crate::memory::{AtomicU32, Ordering::*};

/// The layout for x86-64 and fewer than 2^14 CPUs: unlock is one byte store.
#[derive(Debug)]
pub enum Packed {}

impl sealed::Sealed for Packed {}

/// Offset of the locked byte, and of the half {pending, locked}.
const LOCKED_AT: usize = 0;
/// Offset of the pending byte.
const PENDING_AT: usize = 1;
/// Offset of the tail half.
const TAIL_AT: usize = 2;
/// The half {pending, locked} of a held lock.
const HALF_LOCKED: u16 = LOCKED as u16;
/// The half {pending, locked} of a lock that is free to its spinning head.
const HALF_PENDING: u16 = PENDING as u16;

/// Stands for a read-modify-write that replaces byte `AT` by `VALUE`: relaxed, or releasing.
#[inline(always)]
fn store_byte<const AT: usize, const VALUE: u8>(word: &AtomicU32) {
    // SAFETY: `word` is valid for four bytes and `AT` is below four; the module documentation says why the
    // access may race with 32-bit atomics.
    unsafe {
        asm!(
            "mov byte ptr [{word} + {at}], {value}",
            word = in(reg) word.as_ptr(), at = const AT, value = const VALUE,
            options(nostack, preserves_flags),
        );
    }
}

/// Stands for a compare-exchange (sequentially consistent) of byte 0; returns the byte it found.
#[inline(always)]
fn compare_exchange_locked<const OLD: u8, const NEW: u8>(word: &AtomicU32) -> u8 {
    let found;
    // SAFETY: as in `store_byte`.
    unsafe {
        asm!(
            "lock cmpxchg byte ptr [{word} + {at}], {new}",
            word = in(reg) word.as_ptr(), at = const LOCKED_AT, new = in(reg_byte) NEW,
            inout("al") OLD => found,
            options(nostack),
        );
    }
    found
}

/// Stands for a compare-exchange (sequentially consistent) of pending and locked, from `OLD` to a held lock; whether it succeeded.
#[inline(always)]
fn half_to_locked<const OLD: u16>(word: &AtomicU32) -> bool {
    let found: u16;
    // SAFETY: as in `store_byte`; an `AtomicU32` is aligned for the 16-bit access.
    unsafe {
        asm!(
            "lock cmpxchg word ptr [{word} + {at}], {new:x}",
            word = in(reg) word.as_ptr(), at = const LOCKED_AT, new = in(reg) HALF_LOCKED,
            inout("ax") OLD => found,
            options(nostack),
        );
    }
    found == OLD
}

/// See [`Word::set_pending`]: one LOCKed instruction and a load.
#[inline(always)]
fn set_pending_at_once(word: &AtomicU32) -> u32 {
    let was_pending: u8;
    // SAFETY: as in `store_byte`; the bit offset stays within the word.
    unsafe {
        asm!(
            "lock bts dword ptr [{word}], {bit}",
            "setc {was_pending}",
            word = in(reg) word.as_ptr(), bit = const PENDING.trailing_zeros(), was_pending = out(reg_byte) was_pending,
            options(nostack),
        );
    }
    let rest = word.load(Acquire) & !PENDING;
    rest | (u32::from(was_pending) * PENDING)
}

impl Word for Packed {
    const TAIL_SHIFT: u32 = 16;

    /// `fetch_or(PENDING)`, but for the fields next to the bit it returns a later load.
    ///
    /// x86 has no fetch-or; the compiler's replacement is a compare-exchange loop, which starves under
    /// contention (T8). `bts` reports the old pending bit only. The load may be trusted for the rest: a
    /// locked byte or tail that was there before the bit is seen, because a LOCKed operation precedes the
    /// load. One that came after it is as good as one from before: with a tail this CPU takes its bit back
    /// and queues, and for a locked byte it waits. If the load sees the locked byte already cleared, it has
    /// acquired from that unlock.
    #[inline(always)]
    fn set_pending(word: &AtomicU32) -> u32 {
        set_pending_at_once(word)
    }

    /// `fetch_or(PENDING, Relaxed)`.
    #[inline(always)]
    fn announce_spinning(word: &AtomicU32) {
        store_byte::<PENDING_AT, 1>(word);
    }

    /// `fetch_and(!PENDING, Relaxed)`.
    #[inline(always)]
    fn clear_pending(word: &AtomicU32) {
        store_byte::<PENDING_AT, 0>(word);
    }

    /// `fetch_sub(PENDING - LOCKED, Relaxed)`: one 16-bit store changes both.
    #[inline(always)]
    fn pending_to_locked(word: &AtomicU32) {
        // SAFETY: as in `store_byte`; an `AtomicU32` is aligned for the 16-bit access.
        unsafe {
            asm!(
                "mov word ptr [{word} + {at}], {value}",
                word = in(reg) word.as_ptr(), at = const LOCKED_AT, value = const HALF_LOCKED,
                options(nostack, preserves_flags),
            );
        }
    }

    /// A compare-exchange loop that replaces the tail, in one instruction that cannot fail. An exchange with
    /// memory is LOCKed by itself.
    #[inline(always)]
    fn swap_tail(word: &AtomicU32, code: u32) -> u32 {
        let mut tail = code as u16;
        // SAFETY: as in `pending_to_locked`.
        unsafe {
            asm!(
                "xchg word ptr [{word} + {at}], {tail:x}",
                word = in(reg) word.as_ptr(), at = const TAIL_AT, tail = inout(reg) tail,
                options(nostack, preserves_flags),
            );
        }
        u32::from(tail)
    }

    /// `fetch_or(LOCKED, Relaxed)`, where the byte is 0 or 1 before.
    #[inline(always)]
    fn set_locked(word: &AtomicU32) {
        store_byte::<LOCKED_AT, { LOCKED as u8 }>(word);
    }

    /// `fetch_and(!LOCKED_MASK, Release)`.
    #[inline(always)]
    fn unlock(word: &AtomicU32) {
        store_byte::<LOCKED_AT, 0>(word);
    }

    /// A compare-exchange of the word in which only pending and locked count.
    #[inline(always)]
    fn steal(word: &AtomicU32, _: u32) -> bool {
        half_to_locked::<0>(word)
    }

    /// A compare-exchange of the word in which only pending and locked count.
    #[inline(always)]
    fn spinning_to_locked(word: &AtomicU32) -> bool {
        // Relaxed: spares the line while the lock is held; the exchange is what acquires.
        word.load(Relaxed) & LOCKED_MASK == 0 && half_to_locked::<HALF_PENDING>(word)
    }

    /// `fetch_or(SLOW, AcqRel)`, where the byte is 0 or 1 before.
    #[inline(always)]
    fn swap_slow(word: &AtomicU32) -> u32 {
        let mut byte = SLOW as u8;
        // SAFETY: as in `store_byte`.
        unsafe {
            asm!(
                "xchg byte ptr [{word} + {at}], {byte}",
                word = in(reg) word.as_ptr(), at = const LOCKED_AT, byte = inout(reg_byte) byte,
                options(nostack, preserves_flags),
            );
        }
        u32::from(byte)
    }

    /// `fetch_or(SLOW, Relaxed)`, where the byte is 1 before.
    #[inline(always)]
    fn mark_slow(word: &AtomicU32) {
        store_byte::<LOCKED_AT, { SLOW as u8 }>(word);
    }

    /// `fetch_sub(SLOW - LOCKED, Relaxed)`.
    #[inline(always)]
    fn unmark_slow(word: &AtomicU32) {
        store_byte::<LOCKED_AT, { LOCKED as u8 }>(word);
    }

    /// A compare-exchange of the word in which only the locked byte counts.
    #[inline(always)]
    fn try_unlock(word: &AtomicU32) -> Result<(), u32> {
        match compare_exchange_locked::<{ LOCKED as u8 }, 0>(word) {
            1 => Ok(()),
            found => Err(u32::from(found)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        qspinlock::word::{LOCKED_PENDING, Whole},
        waiting::{Code, LEVELS},
    };

    /// The word of the other layout with the same fields: the tail lies elsewhere.
    fn whole(packed: u32) -> u32 {
        packed >> Packed::TAIL_SHIFT << Whole::TAIL_SHIFT | packed & LOCKED_PENDING
    }

    /// Every tail of a machine with three CPUs, none included, and those of the last CPU that this layout can name.
    fn tails() -> impl Iterator<Item = u32> + Clone {
        let of_cpus = [0, 1, 2, Packed::MAX_CPUS - 1].into_iter();
        let codes = of_cpus.flat_map(|cpu| (0..LEVELS).map(move |level| Code::new(cpu, level).raw()));
        core::iter::once(0).chain(codes)
    }

    /// Every word of that machine.
    fn words() -> impl Iterator<Item = u32> + Clone {
        tails().flat_map(|tail| {
            [0, PENDING].into_iter().flat_map(move |pending| {
                [0, LOCKED, SLOW].map(|locked| tail << Packed::TAIL_SHIFT | pending | locked)
            })
        })
    }

    /// Makes one transition in both layouts, from every word in `from`, and compares what they return and
    /// where they end. How many words there were.
    fn same<T: PartialEq + core::fmt::Debug>(
        from: impl Fn(u32) -> bool,
        packed: impl Fn(&AtomicU32) -> T,
        other: impl Fn(&AtomicU32) -> T,
    ) -> usize {
        let from = words().filter(|word| from(*word));
        for word in from.clone() {
            let (a, b) = (AtomicU32::new(word), AtomicU32::new(whole(word)));
            assert_eq!(packed(&a), other(&b), "result from {word:#x}");
            assert_eq!(whole(a.into_inner()), b.into_inner(), "word after {word:#x}");
        }
        from.count()
    }

    #[inline(never)]
    extern "C" fn set_pending_alone(word: &AtomicU32) -> u32 {
        Packed::set_pending(word)
    }

    /// T8: under contention a loop may never come to its end, and no test can wait for that; but its instruction shows.
    #[test]
    fn t8_packed_pending_is_set_without_a_loop() {
        const LOCK: u8 = 0xf0;
        const BIT_TEST_AND_SET: [u8; 2] = [0x0f, 0xba];
        const COMPARE_EXCHANGE: [u8; 2] = [0x0f, 0xb1];
        assert_eq!(set_pending_alone(&AtomicU32::new(LOCKED)), LOCKED);
        let start = (set_pending_alone as extern "C" fn(&AtomicU32) -> u32 as *const u8).addr();
        // SAFETY: machine code of this program, of which there is more behind every function of a test.
        let code = unsafe { core::slice::from_raw_parts(start as *const u8, 160) };
        let mut locked = code.windows(3).filter(|bytes| bytes[0] == LOCK).map(|bytes| &bytes[1..]);
        assert!(locked.clone().any(|operation| operation == BIT_TEST_AND_SET), "{code:02x?}");
        assert!(locked.all(|operation| operation != COMPARE_EXCHANGE), "{code:02x?}");
    }

    /// From every state from which the contract allows it, each transition.
    #[test]
    fn packed_and_whole_make_the_same_transitions() {
        let all = words().count();
        assert_eq!(all, (1 + 4 * LEVELS) * 2 * 3);
        let (pending, locked) = (|word: u32| word & PENDING != 0, |word: u32| word & LOCKED_MASK);
        assert_eq!(same(|_| true, |word| whole(Packed::set_pending(word)), Whole::set_pending), all);
        same(|from| !pending(from), Packed::announce_spinning, Whole::announce_spinning);
        same(pending, Packed::clear_pending, Whole::clear_pending);
        same(|from| pending(from) && locked(from) == 0, Packed::pending_to_locked, Whole::pending_to_locked);
        for code in tails().filter(|code| *code != 0) {
            let [packed, other] =
                [Packed::swap_tail, Whole::swap_tail].map(|swap| move |word: &AtomicU32| swap(word, code));
            assert_eq!(same(|_| true, packed, other), all);
        }
        same(|from| locked(from) != SLOW, Packed::set_locked, Whole::set_locked);
        assert_eq!(same(|_| true, Packed::unlock, Whole::unlock), all);
        // Whatever has happened to the word since it was seen.
        for seen in words().filter(|seen| seen & LOCKED_PENDING == 0) {
            let packed = |word: &AtomicU32| Packed::steal(word, seen);
            let other = |word: &AtomicU32| Whole::steal(word, whole(seen));
            assert_eq!(same(|_| true, packed, other), all);
        }
        same(pending, Packed::spinning_to_locked, Whole::spinning_to_locked);
        assert_eq!(same(|_| true, Packed::swap_slow, Whole::swap_slow), all);
        same(|from| locked(from) == LOCKED, Packed::mark_slow, Whole::mark_slow);
        same(|from| locked(from) == SLOW, Packed::unmark_slow, Whole::unmark_slow);
        assert_eq!(same(|_| true, Packed::try_unlock, Whole::try_unlock), all);
    }
}
