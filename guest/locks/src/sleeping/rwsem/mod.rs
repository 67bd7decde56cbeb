//! Reader-writer semaphore: a sleeping lock for one writer or any number of readers.
//!
//! ```text
//! count  bit 0      WRITER    a writer owns it
//!        bit 1      WAITERS   a CPU sleeps
//!        bit 2      HANDOFF   the first sleeper has waited too long: no CPU may overtake it
//!        bits 8-31  READERS   readers that own it, or that look whether they do
//! owner  bit 0      READER_OWNED   by readers; who stands here is one of them
//!        bit 1      NONSPINNABLE   readers keep it for too long: no spinning until it is free
//!        bits 2-31  number (CPU + 1) of the owner; 0: none, or not known yet. A hint.
//! ```
//!
//! A state is written (readers, flags, writer); `w` stands for WAITERS, `h` for HANDOFF, if set:
//!
//! | state | meaning |
//! |---|---|
//! | (0, w, 0) | free; if `w`, the first sleeper has been or is being woken, and anybody may be faster |
//! | (0, w + HANDOFF, 0) | free to the first sleeper alone |
//! | (r, w + h, 0) | r readers own it, or have just looked |
//! | (r, w + h, 1) | a writer owns it; r readers have come and are about to see that they do not |
//!
//! # Steps
//!
//! ```text
//! E1 look    readers += 1: it is mine if there is no writer, no waiter, no promise
//! E2 steal   or if there is no writer and no promise, unless readers own it already: sleepers have to come in, too
//! E3 list    join the wait list; readers -= 1; wake the CPUs that can have it, if that leaves none
//! E4 sleep   until given the lock
//! E5 spin    while a writer owns it and runs; while readers own it, for some microseconds
//! E6 list    join the wait list
//! E7 sleep   until woken, and the first in the list, and the lock is free; HANDOFF := 1 when that takes too long
//! E8 unlock  readers -= 1, or writer := 0
//! E9 wake    if it has no owner and a CPU sleeps: the first, if it is a writer, with HANDOFF := 1 if that takes too long; or give
//!            it to the readers in the list
//! ```
//!
//! Writers alone spin. A reader is given the lock by the CPU that wakes it, with its 1 in `readers` already; a writer
//! is woken to try.
//!
//! # Why no CPU stays asleep next to a free lock
//!
//! WAITERS changes under the list's lock only, and the last look of a sleeper comes after it was set.
//! 1. The lock was owned at that look. A CPU that leaves it later sees WAITERS, and comes to the list by E9.
//! 2. The look found nothing but readers of E1, who own nothing. Each of them either finds out that it does own it
//!    after all, and comes to E8; or takes its 1 back in E3, under the list's lock. The last one to do so sees that
//!    no owner is left, and does E9 itself.
//!
//! E9 gives the lock to readers by the same 1 in `readers`, before it knows whether a writer was faster. If one
//! was, E9 takes it back: that writer has yet to come to E8, and finds WAITERS.
//!
//! HANDOFF, too, changes under the list's lock only, and is always the first sleeper's, which stays first until it
//! owns the lock.
//!
//! # Other rules
//!
//! [`RwSemRules`] are parameters: what this file says of overtaking is so under those of today ([`RulesToday`]). Under those of
//! 2018 E2 is left out, E5 ends where readers own the lock, and there is no HANDOFF. A writer takes a free lock whatever its
//! place in the list (E7), so that the one that was woken may find it taken; it sleeps on, and is woken by E9 of who took it,
//! for WAITERS is set as long as the list is not empty.

mod owner;
mod rules;
mod wake;
mod writer;

use core::marker::PhantomData;

use owner::{OWNER_SHIFT, READER_OWNED};
use wake::Found;

use super::{
    osq::{Layout, Osq, Packed},
    sleep::{SleepDomain, WaitList},
};
use crate::{
    contract::{Activity, Event, Lock, Platform, RwLock},
    faults::mutant::mutant,
    memory::sync::{AtomicU32, Ordering::*, const_unless_loom},
};

pub use rules::{Rules2018, RulesToday, RwSemRules};

const WRITER: u32 = 1;
const WAITERS: u32 = 1 << 1;
const HANDOFF: u32 = 1 << 2;
/// One reader.
const READER: u32 = 1 << 8;
const READERS: u32 = !(READER - 1);
/// A CPU owns it, or looks.
const TAKEN: u32 = READERS | WRITER;

/// How long a sleeper lets others overtake it.
const PATIENCE_NS: u64 = 4_000_000;

/// Reader-writer semaphore with a spin queue in layout `L`, and rules `R`. As a [`Lock`], it is its write half.
#[derive(Debug)]
pub struct RwSem<L = Packed, R = RulesToday> {
    count: AtomicU32,
    owner: AtomicU32,
    queue: Osq<L>,
    list: WaitList,
    rules: PhantomData<R>,
}

impl<L: Layout> RwSem<L> {
    const_unless_loom! {
        /// A free lock with today's rules.
        pub const fn new() -> Self {
            Self::with_rules()
        }
    }
}

impl<L: Layout, R: RwSemRules> RwSem<L, R> {
    const_unless_loom! {
        /// A free lock.
        pub const fn with_rules() -> Self {
            Self {
                count: AtomicU32::new(0),
                owner: AtomicU32::new(0),
                queue: Osq::new(),
                list: WaitList::new(),
                rules: PhantomData,
            }
        }
    }

    /// Takes a read lock, waiting as long as it takes.
    #[inline]
    pub fn read<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
        // E1. Acquire: pairs with E8 of writers.
        let acquire = mutant!("rwsem-relaxed-read": Acquire => Relaxed);
        let now = self.count.fetch_add(READER, acquire).wrapping_add(READER);
        if now & (WRITER | WAITERS | HANDOFF) == 0 {
            self.name_reader(domain.me());
        } else {
            self.read_slow(domain, now);
        }
    }

    /// Takes a read lock if that needs no waiting, and there are no waiters.
    pub fn try_read<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) -> bool {
        // Relaxed: the exchange validates the value.
        let mut seen = self.count.load(Relaxed);
        while seen & (WRITER | WAITERS | HANDOFF) == 0 {
            // Acquire: as E1.
            match self.count.compare_exchange_weak(seen, seen.wrapping_add(READER), Acquire, Relaxed) {
                Ok(_) => {
                    self.name_reader(domain.me());
                    return true;
                }
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Releases a read lock.
    #[inline]
    pub fn read_unlock<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
        // E8. Release: pairs with the acquires of writers.
        let release = mutant!("rwsem-relaxed-read-unlock": Release => Relaxed);
        let now = self.count.fetch_sub(READER, release).wrapping_sub(READER);
        if now & (TAKEN | WAITERS) == WAITERS {
            self.allow_spinning();
            self.wake(domain);
        }
    }

    /// Takes the write lock, waiting as long as it takes.
    #[inline]
    pub fn write<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
        if !self.try_write(domain) {
            self.write_slow(domain);
        }
    }

    /// Takes the write lock if that needs no waiting, and there are no waiters.
    #[inline]
    pub fn try_write<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) -> bool {
        // Acquire: pairs with E8. Relaxed load: failing needs no ordering.
        let taken =
            self.count.load(Relaxed) == 0 && self.count.compare_exchange(0, WRITER, Acquire, Relaxed).is_ok();
        if taken {
            self.name_writer(domain.me());
        }
        taken
    }

    /// Releases the write lock.
    #[inline]
    pub fn write_unlock<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
        // Relaxed: a hint. Before E8, so that it does not wipe out the next owner.
        self.owner.store(0, Relaxed);
        // E8. Release: pairs with all acquires.
        let release = mutant!("rwsem-relaxed-write-unlock": Release => Relaxed);
        if self.count.fetch_sub(WRITER, release) & WAITERS != 0 {
            self.wake(domain);
        }
    }

    /// Turns the write lock into a read lock; no writer comes in between.
    pub fn downgrade<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
        // Relaxed: a hint.
        self.owner.store(domain.me() << OWNER_SHIFT | READER_OWNED, Relaxed);
        // Release: as E8 of a writer. No reader of E1 has been lost: their bits do not change.
        let seen = self.count.fetch_add(READER - WRITER, Release);
        if seen & WAITERS != 0 {
            self.let_readers_in(domain);
        }
    }

    /// E2 to E4.
    #[cold]
    #[inline(never)]
    fn read_slow<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>, now: u32) {
        let platform = &domain.platform;
        platform.announce(Activity::Waiter);
        // E2. Relaxed: a hint. Without it a stream of readers would never let a sleeping writer in.
        let alone = now & READERS == READER;
        let crowded = !alone && self.owner.load(Relaxed) & READER_OWNED != 0;
        let may_steal = mutant!("rwsem-2018-reader-steals": R::READERS_STEAL => true) && !crowded;
        if may_steal && now & (WRITER | mutant!("rwsem-reader-past-handoff": HANDOFF => 0)) == 0 {
            self.name_reader(domain.me());
            platform.count(Event::RwsemRlockSteal, 1);
            if alone && now & WAITERS != 0 {
                self.let_readers_in(domain);
            }
            return;
        }

        // E3
        let list = self.list.hold(domain);
        let only = list.is_empty();
        // Acquire: as E1. The 1 of E1 stands, so that no further writer can come in.
        if R::READERS_STEAL && only && self.count.load(Acquire) & (WRITER | HANDOFF) == 0 {
            drop(list);
            self.name_reader(domain.me());
            platform.count(Event::RwsemRlockFast, 1);
            return;
        }
        list.append(true, platform.ticks(PATIENCE_NS));
        list.fall_asleep();
        let change = if only { WAITERS.wrapping_sub(READER) } else { 0_u32.wrapping_sub(READER) };
        // Acquire: E9 may be ours to do, and then pairs with E8.
        let now = self.count.fetch_add(change, Acquire).wrapping_add(change);
        let nobody_is_left = mutant!("rwsem-no-second-wake": now & TAKEN == 0 => false);
        // The look that there was not: readers own it, and this one is the first in the list.
        let readers_own_it = !R::READERS_STEAL && only && now & WRITER == 0;
        let found = if nobody_is_left || readers_own_it { self.find(&list, domain) } else { Found::Nobody };
        drop(list);
        if nobody_is_left {
            self.allow_spinning();
        }
        found.wake(domain);

        // E4
        platform.count(Event::RwsemRlock, 1);
        while !domain.is_granted() {
            platform.count(Event::RwsemSleepReader, 1);
            domain.park();
        }
        self.name_reader(domain.me());
    }
}

impl<P: Platform, L: Layout, R: RwSemRules, const CPUS: usize> Lock<SleepDomain<P, L, CPUS>> for RwSem<L, R> {
    type Token = ();

    #[inline]
    fn lock(&self, domain: &SleepDomain<P, L, CPUS>) {
        self.write(domain);
    }

    #[inline]
    fn try_lock(&self, domain: &SleepDomain<P, L, CPUS>) -> Option<()> {
        self.try_write(domain).then_some(())
    }

    #[inline]
    fn unlock(&self, domain: &SleepDomain<P, L, CPUS>, (): ()) {
        self.write_unlock(domain);
    }
}

impl<P: Platform, L: Layout, R: RwSemRules, const CPUS: usize> RwLock<SleepDomain<P, L, CPUS>>
    for RwSem<L, R>
{
    type ReadToken = ();
    type WriteToken = ();

    #[inline]
    fn read(&self, domain: &SleepDomain<P, L, CPUS>) {
        self.read(domain);
    }

    #[inline]
    fn try_read(&self, domain: &SleepDomain<P, L, CPUS>) -> Option<()> {
        self.try_read(domain).then_some(())
    }

    #[inline]
    fn read_unlock(&self, domain: &SleepDomain<P, L, CPUS>, (): ()) {
        self.read_unlock(domain);
    }

    #[inline]
    fn write(&self, domain: &SleepDomain<P, L, CPUS>) {
        self.write(domain);
    }

    #[inline]
    fn try_write(&self, domain: &SleepDomain<P, L, CPUS>) -> Option<()> {
        self.try_write(domain).then_some(())
    }

    #[inline]
    fn write_unlock(&self, domain: &SleepDomain<P, L, CPUS>, (): ()) {
        self.write_unlock(domain);
    }
}
