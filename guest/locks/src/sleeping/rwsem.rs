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
//!
//! # What changed between Linux 2018 and today
//!
//! | | [`Rules2018`] (up to 5.2) | [`RulesToday`] (5.11 and later) |
//! |---|---|---|
//! | a reader, while others sleep | sleeps, even if others read | takes what is read or free, unless readers crowd it |
//! | a reader that finds the list empty | lists itself, and is let in if readers own the lock | looks once more |
//! | a writer, while readers own it | sleeps at once | spins for 10 to 25 us |
//! | a writer in the list | takes a free lock, first or not | takes it if it is the first |
//! | a CPU that has slept for 4 ms | may be overtaken forever | is the next owner |
//! | readers are let in | up to the first writer in the list, however many | past writers, 256 at a time |
//!
//! Two things are today's under either. A writer takes the lock by one exchange, where that of 2018 added its share and
//! took it back, so that others' attempts failed meanwhile; what 2018 did about readers who had failed so (the next
//! writer that listed itself let them in) is not needed then. And an unlock takes the list's lock, where that of 2018
//! left the waking to a spinner if the list's lock was busy.

use core::marker::PhantomData;

use super::{
    Held, SleepDomain, WaitList, Woken,
    osq::{Layout, Osq, Packed},
};

use crate::{
    contract::{Activity, Event, Lock, Platform, RwLock},
    faults::mutant::mutant,
    memory::{AtomicU32, MODELLED, Ordering::*, fresh},
    waiting::Patience,
};

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

fresh!(pub RwSem<L: Layout, R: RwSemRules> {
    count: AtomicU32::new(0),
    owner: AtomicU32::new(0),
    queue: Osq::new(),
    list: WaitList::new(),
    rules: PhantomData,
});

impl<L: Layout, R: RwSemRules> RwSem<L, R> {
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
        let found = if nobody_is_left || readers_own_it { self.find(&list) } else { Found::Nobody };
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

    /// `None` also while CPUs wait.
    #[inline]
    fn try_lock(&self, domain: &SleepDomain<P, L, CPUS>) -> Option<()> {
        // Acquire: pairs with E8. Relaxed load: failing needs no ordering.
        let taken =
            self.count.load(Relaxed) == 0 && self.count.compare_exchange(0, WRITER, Acquire, Relaxed).is_ok();
        if taken {
            self.name_writer(domain.me());
        }
        taken.then_some(())
    }

    #[inline]
    fn unlock(&self, domain: &SleepDomain<P, L, CPUS>, (): ()) {
        self.write_unlock(domain, ());
    }
}

impl<P: Platform, L: Layout, R: RwSemRules, const CPUS: usize> RwLock<SleepDomain<P, L, CPUS>>
    for RwSem<L, R>
{
    type ReadToken = ();
    type WriteToken = ();

    #[inline]
    fn read(&self, domain: &SleepDomain<P, L, CPUS>) {
        // E1. Acquire: pairs with E8 of writers.
        let acquire = mutant!("rwsem-relaxed-read": Acquire => Relaxed);
        let now = self.count.fetch_add(READER, acquire).wrapping_add(READER);
        if now & (WRITER | WAITERS | HANDOFF) == 0 {
            self.name_reader(domain.me());
        } else {
            self.read_slow(domain, now);
        }
    }

    #[inline]
    fn read_unlock(&self, domain: &SleepDomain<P, L, CPUS>, (): ()) {
        // E8. Release: pairs with the acquires of writers.
        let release = mutant!("rwsem-relaxed-read-unlock": Release => Relaxed);
        let now = self.count.fetch_sub(READER, release).wrapping_sub(READER);
        if now & (TAKEN | WAITERS) == WAITERS {
            self.allow_spinning();
            self.wake(domain);
        }
    }

    #[inline]
    fn write(&self, domain: &SleepDomain<P, L, CPUS>) {
        if self.try_lock(domain).is_none() {
            self.write_slow(domain);
        }
    }

    #[inline]
    fn write_unlock(&self, domain: &SleepDomain<P, L, CPUS>, (): ()) {
        // Relaxed: a hint. Before E8, so that it does not wipe out the next owner.
        self.owner.store(0, Relaxed);
        // E8. Release: pairs with all acquires.
        let release = mutant!("rwsem-relaxed-write-unlock": Release => Relaxed);
        if self.count.fetch_sub(WRITER, release) & WAITERS != 0 {
            self.wake(domain);
        }
    }
}

/// Rules of a [`RwSem`](super::RwSem) in which Linux versions differ; without more said, those of current Linux.
pub trait RwSemRules: Send + Sync + 'static {
    /// Whether readers overtake sleepers, where that crowds no other CPU out.
    const READERS_STEAL: bool = true;
    /// Writers spin for a while although readers own the lock.
    const WRITERS_SPIN_ON_READERS: bool = true;
    /// Whether a CPU that has slept for long is promised the lock. Without it any writer of the list takes the lock
    /// when it is free.
    const PROMISES: bool = true;
    /// Readers are let in past the writers in the list; else up to the first of those.
    const READERS_PASS_WRITERS: bool = true;
    /// Most readers that are let in at a time.
    const BATCH: u32 = 256;
}

/// Rules of current Linux.
#[derive(Debug)]
pub enum RulesToday {}

/// Rules of Linux 4.16, of spring 2018.
#[derive(Debug)]
pub enum Rules2018 {}

impl RwSemRules for RulesToday {}

impl RwSemRules for Rules2018 {
    const READERS_STEAL: bool = false;
    const WRITERS_SPIN_ON_READERS: bool = false;
    const PROMISES: bool = false;
    const READERS_PASS_WRITERS: bool = false;
    const BATCH: u32 = u32::MAX;
}

const READER_OWNED: u32 = 1;
const NONSPINNABLE: u32 = 1 << 1;
const OWNER_SHIFT: u32 = 2;

impl<L: Layout, R: RwSemRules> RwSem<L, R> {
    /// Notes who owns it. Relaxed, as everywhere where `owner` is used: a hint.
    fn name_writer(&self, me: u32) {
        self.owner.store(me << OWNER_SHIFT, Relaxed);
    }

    /// Notes that readers own it. Not written again by each of many readers.
    fn name_reader(&self, me: u32) {
        let seen = self.owner.load(Relaxed);
        if seen & READER_OWNED == 0 {
            self.owner.store(me << OWNER_SHIFT | READER_OWNED | seen & NONSPINNABLE, Relaxed);
        }
    }

    /// The readers that kept it for long are gone.
    fn allow_spinning(&self) {
        if self.owner.load(Relaxed) & NONSPINNABLE != 0 {
            self.owner.fetch_and(!NONSPINNABLE, Relaxed);
        }
    }

    /// Whether a writer owns it that does not run.
    fn is_owner_off<P: Platform, const CPUS: usize>(
        &self,
        domain: &SleepDomain<P, L, CPUS>,
        owner: u32,
    ) -> bool {
        let number = owner >> OWNER_SHIFT;
        owner & READER_OWNED == 0 && number != 0 && !domain.is_running(number)
    }
}

/// Sleepers that E9 has found.
enum Found {
    Nobody,
    /// A writer, which is to try.
    Writer(Woken),
    /// Readers, which own it by now.
    Readers(Woken),
}

impl<L: Layout, R: RwSemRules> RwSem<L, R> {
    /// E9.
    #[cold]
    #[inline(never)]
    fn wake<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
        let list = self.list.hold(domain);
        let found = self.find(&list);
        drop(list);
        found.wake(domain);
    }

    /// E9, as far as it happens under the list's lock.
    fn find<P: Platform, const CPUS: usize>(&self, list: &Held<'_, P, L, CPUS>) -> Found {
        let platform = &list.domain.platform;
        let Some(first) = list.first() else { return Found::Nobody };
        if !list.shares(first) {
            self.promise_if_overdue(list, first);
            let Some(woken) = list.wake_first() else { return Found::Nobody };
            platform.count(Event::RwsemWakeWriter, 1);
            return Found::Writer(woken);
        }
        // Acquire: pairs with E8 of a writer, on behalf of the readers.
        let seen = self.count.fetch_add(READER, Acquire);
        if mutant!("rwsem-ignore-thief": seen & WRITER != 0 => false) {
            let insists = || R::PROMISES && seen & HANDOFF == 0 && list.is_overdue(first);
            let overdue = mutant!("rwsem-reader-never-insists": insists() => false);
            let change = if overdue { HANDOFF.wrapping_sub(READER) } else { 0_u32.wrapping_sub(READER) };
            // Relaxed: takes back what protected nothing.
            self.count.fetch_add(change, Relaxed);
            platform.count(Event::RwsemRlockHandoff, u64::from(overdue));
            return Found::Nobody;
        }
        Found::Readers(self.admit(list, READER))
    }

    /// (*, w, *) -> (*, w + HANDOFF, *) on behalf of a writer whose patience is over, and which may not run for long.
    fn promise_if_overdue<P: Platform, const CPUS: usize>(&self, list: &Held<'_, P, L, CPUS>, first: u32) {
        let insists = || R::PROMISES && self.count.load(Relaxed) & HANDOFF == 0 && list.is_overdue(first);
        if mutant!("rwsem-waker-never-promises": insists() => false) {
            // Relaxed: under the list's lock, like every change of the two flags.
            self.count.fetch_or(HANDOFF, Relaxed);
            list.domain.platform.count(Event::RwsemWlockHandoff, 1);
        }
    }

    /// Gives the lock, which readers own, to the readers in the list as well, if one of them is first.
    #[cold]
    #[inline(never)]
    fn let_readers_in<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
        let list = self.list.hold(domain);
        let found = match list.first() {
            Some(first) if list.shares(first) => Found::Readers(self.admit(&list, 0)),
            _ => Found::Nobody,
        };
        drop(list);
        found.wake(domain);
    }

    /// Takes readers out of the list, of which the first is one, and counts them in; `counted` is in already.
    fn admit<P: Platform, const CPUS: usize>(&self, list: &Held<'_, P, L, CPUS>, counted: u32) -> Woken {
        let past_writers = mutant!("rwsem-2018-past-writers": R::READERS_PASS_WRITERS => true);
        let (woken, readers) = list.remove_sharing(R::BATCH, past_writers);
        list.domain.platform.count(Event::RwsemWakeReader, u64::from(readers));
        // Relaxed: under the list's lock, like every change of the two flags.
        let promised = mutant!("rwsem-keep-the-promise": self.count.load(Relaxed) & HANDOFF => 0);
        let waiters = if list.is_empty() { WAITERS } else { 0 };
        let change = (readers * READER).wrapping_sub(counted).wrapping_sub(promised | waiters);
        // Relaxed: the lock is readers' by the 1 that the caller has acquired with.
        self.count.fetch_add(change, Relaxed);
        woken
    }
}

impl Found {
    fn wake<P: Platform, L: Layout, const CPUS: usize>(self, domain: &SleepDomain<P, L, CPUS>) {
        match self {
            Self::Nobody => {}
            Self::Writer(woken) => woken.kick(domain),
            Self::Readers(woken) => woken.grant(domain),
        }
    }
}

/// Rounds between two looks at the clock while readers own the lock.
const CLOCK_EVERY: u32 = if MODELLED { 1 } else { 16 };

impl<L: Layout, R: RwSemRules> RwSem<L, R> {
    /// E5 to E7.
    #[cold]
    #[inline(never)]
    fn write_slow<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
        let platform = &domain.platform;
        platform.announce(Activity::Waiter);
        if self.spin_in_queue(domain) {
            platform.count(Event::RwsemOptLock, 1);
        } else {
            platform.count(Event::RwsemOptFail, 1);
            self.sleep_as_writer(domain);
            platform.count(Event::RwsemWlock, 1);
        }
        self.name_writer(domain.me());
    }

    /// E5.
    fn spin_in_queue<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) -> bool {
        // Relaxed: a hint.
        let owner = self.owner.load(Relaxed);
        let by_readers = owner & READER_OWNED != 0 && !may_spin_on_readers::<R>();
        if owner & NONSPINNABLE != 0 || by_readers || self.is_owner_off(domain, owner) {
            return false;
        }
        domain.spin_as_head(&self.queue, || self.spin(domain))
    }

    fn spin<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) -> bool {
        let platform = &domain.platform;
        // When spinning on readers ends, and how often they have been looked at.
        let (mut until, mut rounds) = (0, 0_u32);
        // How long it spins for an owner that has not said its name: the claimer may have lost its CPU before that.
        let mut unnamed = None;
        loop {
            // Relaxed: the exchange validates the value.
            let seen = self.count.load(Relaxed);
            if self.take_past_list(seen) {
                return true;
            }
            // Relaxed: a hint.
            let owner = self.owner.load(Relaxed);
            if owner & NONSPINNABLE != 0
                || self.is_owner_off(domain, owner)
                || owner == 0 && seen & HANDOFF != 0 && !self.list.is_first_running(domain)
            {
                return false;
            }
            if owner & READER_OWNED == 0 {
                // Readers that come next have their own time.
                rounds = 0;
            }
            if owner & READER_OWNED != 0 {
                if !may_spin_on_readers::<R>() {
                    return false;
                }
                if rounds == 0 {
                    until = platform.now().saturating_add(platform.ticks(reader_spin_ns(seen)));
                } else if rounds.is_multiple_of(CLOCK_EVERY) && platform.now() > until {
                    // Relaxed: a hint, and wrong for a moment if the owner has changed.
                    if self.owner.compare_exchange(owner, owner | NONSPINNABLE, Relaxed, Relaxed).is_ok() {
                        platform.count(Event::RwsemOptNospin, 1);
                    }
                    return false;
                }
                rounds = rounds.wrapping_add(1).max(1);
            } else if owner != 0 {
                domain.count_spin(owner >> OWNER_SHIFT);
            } else if mutant!("rwsem-spin-on-nobody": true => false) {
                if !unnamed.get_or_insert_with(|| Patience::new(platform)).pause() {
                    return false;
                }
                continue;
            }
            unnamed = None;
            platform.pause();
        }
    }

    /// (0, w, 0) -> (0, w, 1), given the count last seen.
    fn take_past_list(&self, seen: u32) -> bool {
        // Acquire: pairs with E8.
        seen & (TAKEN | mutant!("rwsem-spinner-past-handoff": HANDOFF => 0)) == 0
            && self.count.compare_exchange(seen, seen | WRITER, Acquire, Relaxed).is_ok()
    }

    /// E6, E7.
    fn sleep_as_writer<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
        let platform = &domain.platform;
        let me = domain.me();
        // E6
        let mut list = self.list.hold(domain);
        if list.is_empty() {
            // Relaxed: E8 reads it in the same word, and E9 takes the list's lock.
            self.count.fetch_or(WAITERS, Relaxed);
        }
        list.append(false, platform.ticks(PATIENCE_NS));
        loop {
            // E7
            list.fall_asleep();
            if self.take_from_list(&list) {
                list.remove(me);
                return;
            }
            drop(list);
            platform.count(Event::RwsemSleepWriter, 1);
            while domain.is_asleep() {
                domain.park();
            }
            // Only the first is woken.
            platform.announce(Activity::Head);
            list = self.list.hold(domain);
        }
    }

    /// (0, w + h, 0) -> (0, w', 1) by the first of the list (in 2018: by any), `w'` without it; or
    /// (*, w, *) -> (*, w + HANDOFF, *), if its patience is over.
    fn take_from_list<P: Platform, const CPUS: usize>(&self, list: &Held<'_, P, L, CPUS>) -> bool {
        let me = list.domain.me();
        if R::PROMISES && list.first() != Some(me) {
            return false;
        }
        let behind_me = if list.is_only(me) { 0 } else { WAITERS };
        // Relaxed: the exchange validates the value.
        let mut seen = self.count.load(Relaxed);
        loop {
            let free = seen & TAKEN == 0;
            let wanted = if free {
                WRITER | behind_me
            } else if mutant!("rwsem-2018-promises": R::PROMISES => true)
                && mutant!("rwsem-writer-never-insists": seen & HANDOFF == 0 && list.is_overdue(me) => false)
            {
                seen | HANDOFF
            } else {
                return false;
            };
            // Acquire: pairs with E8.
            let acquire = mutant!("rwsem-relaxed-write": Acquire => Relaxed);
            match self.count.compare_exchange_weak(seen, wanted, acquire, Relaxed) {
                Ok(_) if free => return true,
                Ok(_) => {
                    list.domain.platform.count(Event::RwsemWlockHandoff, 1);
                    return false;
                }
                Err(now) => seen = now,
            }
        }
    }
}

fn may_spin_on_readers<R: RwSemRules>() -> bool {
    mutant!("rwsem-2018-spins-on-readers": R::WRITERS_SPIN_ON_READERS => true)
}

/// How long a writer spins on readers: 10 us, and half a microsecond for each reader up to 30.
fn reader_spin_ns(count: u32) -> u64 {
    let readers = count / READER;
    u64::from(20 + readers.min(30)) * 1_000 / 2
}

#[cfg(all(test, not(any(loom, shuttle, liveness))))]
mod tests {
    use core::sync::atomic::AtomicU32;

    use super::*;
    use crate::contract::test_platform::{IDLE, Scripted};
    use crate::sleeping::osq::Packed;

    static LOCK: RwSem<Packed> = RwSem::new();
    static PAUSES: AtomicU32 = AtomicU32::new(0);

    /// [`LOCK`] is owned by readers for 4 pauses, by a writer for a long one, by readers again for 40, and then free.
    const OWNED: Scripted = Scripted {
        pause: || {
            let (count, owner) = match PAUSES.fetch_add(1, Relaxed) {
                0..4 | 5..45 => (READER, 2 << OWNER_SHIFT | READER_OWNED),
                4 => (WRITER, 2 << OWNER_SHIFT),
                _ => (0, 0),
            };
            LOCK.count.store(count, Relaxed);
            LOCK.owner.store(owner, Relaxed);
        },
        now: || if PAUSES.load(Relaxed) > 4 { 50_000 } else { 0 },
    };

    #[test]
    fn readers_that_follow_a_writer_are_spun_on_as_long_as_others() {
        LOCK.count.store(READER, Relaxed);
        LOCK.owner.store(2 << OWNER_SHIFT | READER_OWNED, Relaxed);
        let domain = SleepDomain::<Scripted, Packed, 2>::new(OWNED);
        assert!(LOCK.spin_in_queue(&domain), "gave up after {} pauses", PAUSES.load(Relaxed));
    }

    /// The claimer has lost its CPU before it said its name: nothing tells for how long.
    #[test]
    fn a_writer_does_not_spin_for_ever_on_an_unnamed_owner() {
        let (lock, domain) = (RwSem::<Packed>::new(), SleepDomain::<Scripted, Packed, 1>::new(IDLE));
        lock.count.store(WRITER, Relaxed);
        assert!(!lock.spin_in_queue(&domain));
    }
}
