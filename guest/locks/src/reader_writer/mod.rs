//! Spinlocks for one writer or many readers.
//!
//! # The fair lock
//!
//! The queue decides how one waits behind others: a first-come-first-served lock for fairness, a paravirtual one to
//! sleep meanwhile. The first in the queue spins.
//!
//! ```text
//! word   bits 9 to 31        bit 8            bits 0 to 7
//!        readers, and those  the first in     0xff: held by
//!        that look whether   the queue is     a writer
//!        they may be         a writer
//!
//!            read    (r,0,0) -> (r+1,0,0), else take it back and
//! R1         queue; at its head (r,*,*) -> (r+1,*,*)
//! R2         wait for (*,*,0), leave the queue to the next
//!            write   (0,0,0) -> (0,0,1), else
//! R3         queue; at its head, try that once more
//! R4         (*,0,*) -> (*,1,*): from here on, newcomers must queue
//! R5         wait for (0,1,0) -> (0,0,1), leave the queue to the next
//! ```
//!
//! The bit that a writer waits is apart from the byte that one holds, and fails the fast paths of readers and of
//! writers alike (T17): between a release and the moment at which the waiting writer sees it, a newcomer would
//! otherwise slip in, and the writer might wait forever.
//!
//! R1 comes before R2, so that a reader at the head has its place when the writer leaves, and those behind it enter
//! one after another without waiting for it to be done.
//!
//! A reader that holds the lock must not take it once more: if a writer has begun to wait in between, each waits
//! for the other.
//!
//! # The unfair lock
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

pub mod per_cpu;

use crate::{
    contract::{Activity, Domain, Lock, Platform, Point, RwLock, poll, wait_until},
    faults::mutant::mutant,
    memory::{AtomicU32, Ordering::*, const_unless_loom, fresh},
};

pub use per_cpu::{PerCpuReadToken, PerCpuRwDomain, PerCpuRwLock, ReaderSlot};

/// Held by a writer.
const WRITER: u32 = 1 << 31;

/// Reader-writer lock whose readers can starve writers.
#[derive(Debug)]
pub struct UnfairRwLock {
    word: AtomicU32,
}

fresh!(pub UnfairRwLock { word: AtomicU32::new(0) });

impl UnfairRwLock {
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
        // Relaxed: only a hint when to try; `enter` is what acquires.
        poll(platform, || self.word.load(Relaxed) & WRITER == 0, || self.enter());
    }

    #[cold]
    #[inline(never)]
    fn write_slow<P: Platform>(&self, platform: &P) {
        // Relaxed: only a hint when to try; `claim` is what acquires.
        poll(platform, || self.word.load(Relaxed) == 0, || self.claim());
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
    fn write_unlock(&self, _: &D, (): ()) {
        // Release: pairs with the acquires of the next owner. A subtraction, for readers may be about to take back
        // their ones.
        self.word.fetch_sub(WRITER, mutant!("rw-unfair-relaxed-write-unlock": Release => Relaxed));
    }
}

/// Held by a writer.
const HELD: u32 = 0xff;
/// The first in the queue is a writer.
const WAITING: u32 = 1 << 8;
/// One reader.
const READER: u32 = 1 << 9;

/// Reader-writer lock that serves in the order of arrival, with an `L` for a queue.
#[derive(Debug)]
pub struct FairRwLock<L> {
    word: AtomicU32,
    queue: L,
}

impl<L> FairRwLock<L> {
    const_unless_loom! {
        /// A free lock whose queue is the free lock `queue`.
        pub const fn new(queue: L) -> Self {
            Self { word: AtomicU32::new(0), queue }
        }
    }

    /// (r,0,0) -> (r+1,0,0); else takes the reader back.
    #[inline(always)]
    fn enter<P: Platform>(&self, platform: &P) -> bool {
        // Acquire: pairs with the release in `write_unlock`.
        let seen = self.word.fetch_add(READER, mutant!("rw-fair-relaxed-read": Acquire => Relaxed));
        platform.point(Point::ReaderAnnounced);
        if seen & (HELD | mutant!("t17-reader-overtakes": WAITING => 0)) == 0 {
            return true;
        }
        // Relaxed: this reader has read nothing.
        self.word.fetch_sub(READER, Relaxed);
        false
    }

    /// (0,0,0) -> (0,0,1). Acquire: pairs with the releases in `read_unlock` (of the last reader, whose decrement
    /// continues the release sequences of the others) and `write_unlock`.
    #[inline(always)]
    fn claim(&self) -> bool {
        let free = mutant!("t17-writer-overtakes": 0 => self.word.load(Relaxed) & WAITING);
        self.word.compare_exchange(free, free | HELD, Acquire, Relaxed).is_ok()
    }

    /// R1 and R2.
    #[cold]
    #[inline(never)]
    fn read_slow<D: Domain>(&self, domain: &D)
    where
        L: Lock<D>,
    {
        let platform = domain.platform();
        platform.announce(Activity::Waiter);
        let token = self.queue.lock(domain);
        // Relaxed: keeps writers out; the load below acquires.
        self.word.fetch_add(READER, Relaxed);
        // Acquire: pairs with the release in `write_unlock`. Only a writer that held the lock before can be seen here:
        // the next one is behind in the queue, or finds a reader.
        let acquire = mutant!("rw-fair-relaxed-queued-read": Acquire => Relaxed);
        wait_until(platform, Activity::Head, || self.word.load(acquire) & HELD == 0);
        self.queue.unlock(domain, token);
    }

    /// R3 to R5.
    #[cold]
    #[inline(never)]
    fn write_slow<D: Domain>(&self, domain: &D)
    where
        L: Lock<D>,
    {
        let platform = domain.platform();
        platform.announce(Activity::Waiter);
        let token = self.queue.lock(domain);
        if !self.claim() {
            self.claim_from_the_head(platform);
        }
        self.queue.unlock(domain, token);
    }

    /// R4 and R5. Only the head of the queue sets `WAITING`, and it clears the bit with the claim.
    fn claim_from_the_head<P: Platform>(&self, platform: &P) {
        // Relaxed: stops newcomers, and publishes nothing.
        self.word.fetch_or(WAITING, Relaxed);
        platform.point(Point::WriterWaits);
        loop {
            // Relaxed: only a hint when to try.
            wait_until(platform, Activity::Head, || self.word.load(Relaxed) == WAITING);
            // Acquire (T16): the loop above acquires nothing, and what the last owners did must be visible before the
            // section begins. Pairs as in `claim`. Fails when a reader looks just then.
            let acquire = mutant!("t16-relaxed-claim": Acquire => Relaxed);
            if self.word.compare_exchange(WAITING, HELD, acquire, Relaxed).is_ok() {
                return;
            }
        }
    }
}

impl<D: Domain, L: Lock<D>> RwLock<D> for FairRwLock<L> {
    type ReadToken = ();
    type WriteToken = ();

    #[inline(always)]
    fn read(&self, domain: &D) {
        if !self.enter(domain.platform()) {
            self.read_slow(domain);
        }
    }

    #[inline(always)]
    fn read_unlock(&self, _: &D, (): ()) {
        // Release: what was read has been read before a writer can claim the lock.
        self.word.fetch_sub(READER, mutant!("rw-fair-relaxed-read-unlock": Release => Relaxed));
    }

    #[inline(always)]
    fn write(&self, domain: &D) {
        if !self.claim() {
            self.write_slow(domain);
        }
    }

    #[inline(always)]
    fn write_unlock(&self, _: &D, (): ()) {
        // Release: pairs with the acquires of the next owner. Readers in R1, and a writer in R4, may have changed the
        // rest of the word meanwhile, so this cannot be a store.
        self.word.fetch_sub(HELD, mutant!("rw-fair-relaxed-write-unlock": Release => Relaxed));
    }
}
