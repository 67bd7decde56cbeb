//! Unfair reader-writer lock: a counter of readers and a bit for the writer.
//!
//! ```text
//! word   bit 31     bits 0 to 30
//!        held by a  readers, and those that look whether they may be
//!        writer
//! ```
//!
//! A reader adds one, and has the lock if there is no writer; else it takes its one back and waits for the writer to
//! leave. A writer turns 0 into the bit. There is no queue: as long as readers overlap, the word is never 0, and a
//! writer waits forever.

use crate::{
    contract::{Activity, Domain, Platform, RwLock, rw_lock::wait_until},
    faults::mutant::mutant,
    memory::sync::{AtomicU32, Ordering::*, const_unless_loom},
};

/// Held by a writer.
const WRITER: u32 = 1 << 31;

/// Reader-writer lock whose readers can starve writers.
#[derive(Debug)]
pub struct UnfairRwLock {
    word: AtomicU32,
}

impl UnfairRwLock {
    const_unless_loom! {
        /// A free lock.
        pub const fn new() -> Self {
            Self { word: AtomicU32::new(0) }
        }
    }

    /// Adds a reader; `true` if there is no writer, else the reader is taken back.
    #[inline(always)]
    fn enter(&self) -> bool {
        // Acquire: pairs with the release in `write_unlock`.
        let acquire = mutant!("rw-unfair-relaxed-read": Acquire => Relaxed);
        if self.word.fetch_add(1, acquire) & WRITER == 0 {
            return true;
        }
        // Relaxed: this reader has read nothing.
        self.word.fetch_sub(1, Relaxed);
        false
    }

    /// Turns 0 into the writer's bit; `true` if that took the lock. Acquire: pairs with the releases in `read_unlock`
    /// (of the last reader, whose decrement continues the release sequences of the others) and `write_unlock`.
    #[inline(always)]
    fn claim(&self) -> bool {
        let acquire = mutant!("rw-unfair-relaxed-write": Acquire => Relaxed);
        self.word.compare_exchange(0, WRITER, acquire, Relaxed).is_ok()
    }

    #[cold]
    #[inline(never)]
    fn read_slow<P: Platform>(&self, platform: &P) {
        loop {
            // Relaxed: only a hint when to try; `enter` is what acquires.
            wait_until(platform, Activity::Waiter, || self.word.load(Relaxed) & WRITER == 0);
            if self.enter() {
                return;
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn write_slow<P: Platform>(&self, platform: &P) {
        loop {
            // Relaxed: only a hint when to try; `claim` is what acquires.
            wait_until(platform, Activity::Waiter, || self.word.load(Relaxed) == 0);
            if self.claim() {
                return;
            }
        }
    }
}

impl<D: Domain> RwLock<D> for UnfairRwLock {
    type ReadToken = ();
    type WriteToken = ();

    #[inline(always)]
    fn read(&self, domain: &D) {
        if !self.enter() {
            self.read_slow(domain.platform());
        }
    }

    #[inline(always)]
    fn try_read(&self, _: &D) -> Option<()> {
        self.enter().then_some(())
    }

    #[inline(always)]
    fn read_unlock(&self, _: &D, (): ()) {
        // Release: what was read has been read before a writer can turn the 0 into its bit.
        self.word.fetch_sub(1, mutant!("rw-unfair-relaxed-read-unlock": Release => Relaxed));
    }

    #[inline(always)]
    fn write(&self, domain: &D) {
        if !self.claim() {
            self.write_slow(domain.platform());
        }
    }

    #[inline(always)]
    fn try_write(&self, _: &D) -> Option<()> {
        self.claim().then_some(())
    }

    #[inline(always)]
    fn write_unlock(&self, _: &D, (): ()) {
        // Release: pairs with the acquires of the next owner. A subtraction, for readers may be about to take back
        // their ones.
        self.word.fetch_sub(WRITER, mutant!("rw-unfair-relaxed-write-unlock": Release => Relaxed));
    }
}
