//! E5 to E7: a writer that does not find the lock free spins for it, and then sleeps.

use super::super::{
    osq::Layout,
    sleep::{Held, SleepDomain},
};
use super::{
    HANDOFF, PATIENCE_NS, READER, RwSem, RwSemRules, TAKEN, WAITERS, WRITER,
    owner::{NONSPINNABLE, OWNER_SHIFT, READER_OWNED},
};
use crate::{
    contract::{Activity, Event, Platform},
    faults::mutant::mutant,
    memory::sync::{MODELLED, Ordering::*},
    waiting::patience::Patience,
};

/// Rounds between two looks at the clock while readers own the lock.
const CLOCK_EVERY: u32 = if MODELLED { 1 } else { 16 };

impl<L: Layout, R: RwSemRules> RwSem<L, R> {
    /// E5 to E7.
    #[cold]
    #[inline(never)]
    pub(super) fn write_slow<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
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
        let platform = &domain.platform;
        // Relaxed: a hint.
        let owner = self.owner.load(Relaxed);
        let by_readers = owner & READER_OWNED != 0 && !may_spin_on_readers::<R>();
        if owner & NONSPINNABLE != 0 || by_readers || self.is_owner_off(domain, owner) {
            return false;
        }
        if !self.queue.lock(&domain.queue, platform, || false) {
            return false;
        }
        platform.announce(Activity::Head);
        let taken = self.spin(domain);
        self.queue.unlock(&domain.queue, platform);
        if !taken {
            platform.announce(Activity::Waiter);
        }
        taken
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
            if self.take_from_list(&list, domain, me) {
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
    fn take_from_list<P: Platform, const CPUS: usize>(
        &self,
        list: &Held<'_, P, L, CPUS>,
        domain: &SleepDomain<P, L, CPUS>,
        me: u32,
    ) -> bool {
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
                    domain.platform.count(Event::RwsemWlockHandoff, 1);
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
