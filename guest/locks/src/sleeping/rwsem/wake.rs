//! E9: a CPU that leaves the lock without an owner wakes a sleeping writer, or gives the lock to sleeping readers.

use super::super::{
    osq::Layout,
    sleep::{Held, SleepDomain, Woken},
};
use super::{HANDOFF, READER, RwSem, RwSemRules, WAITERS, WRITER};
use crate::{
    contract::{Event, Platform},
    faults::mutant::mutant,
    memory::sync::Ordering::*,
};

/// Sleepers that E9 has found.
pub(super) enum Found {
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
    pub(super) fn wake<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
        let list = self.list.hold(domain);
        let found = self.find(&list, domain);
        drop(list);
        found.wake(domain);
    }

    /// E9, as far as it happens under the list's lock.
    pub(super) fn find<P: Platform, const CPUS: usize>(
        &self,
        list: &Held<'_, P, L, CPUS>,
        domain: &SleepDomain<P, L, CPUS>,
    ) -> Found {
        let platform = &domain.platform;
        let Some(first) = list.first() else { return Found::Nobody };
        if !list.shares(first) {
            self.promise_if_overdue(list, domain, first);
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
        Found::Readers(self.admit(list, domain, READER))
    }

    /// (*, w, *) -> (*, w + HANDOFF, *) on behalf of a writer whose patience is over, and which may not run for long.
    fn promise_if_overdue<P: Platform, const CPUS: usize>(
        &self,
        list: &Held<'_, P, L, CPUS>,
        domain: &SleepDomain<P, L, CPUS>,
        first: u32,
    ) {
        let insists = || R::PROMISES && self.count.load(Relaxed) & HANDOFF == 0 && list.is_overdue(first);
        if mutant!("rwsem-waker-never-promises": insists() => false) {
            // Relaxed: under the list's lock, like every change of the two flags.
            self.count.fetch_or(HANDOFF, Relaxed);
            domain.platform.count(Event::RwsemWlockHandoff, 1);
        }
    }

    /// Gives the lock, which readers own, to the readers in the list as well, if one of them is first.
    #[cold]
    #[inline(never)]
    pub(super) fn let_readers_in<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
        let list = self.list.hold(domain);
        let found = match list.first() {
            Some(first) if list.shares(first) => Found::Readers(self.admit(&list, domain, 0)),
            _ => Found::Nobody,
        };
        drop(list);
        found.wake(domain);
    }

    /// Takes readers out of the list, of which the first is one, and counts them in; `counted` is in already.
    fn admit<P: Platform, const CPUS: usize>(
        &self,
        list: &Held<'_, P, L, CPUS>,
        domain: &SleepDomain<P, L, CPUS>,
        counted: u32,
    ) -> Woken {
        let past_writers = mutant!("rwsem-2018-past-writers": R::READERS_PASS_WRITERS => true);
        let (woken, readers) = list.remove_sharing(R::BATCH, past_writers);
        domain.platform.count(Event::RwsemWakeReader, u64::from(readers));
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
    pub(super) fn wake<P: Platform, L: Layout, const CPUS: usize>(self, domain: &SleepDomain<P, L, CPUS>) {
        match self {
            Self::Nobody => {}
            Self::Writer(woken) => woken.kick(domain),
            Self::Readers(woken) => woken.grant(domain),
        }
    }
}
