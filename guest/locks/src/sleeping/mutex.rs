//! Mutex: a sleeping lock for one, whose waiters first spin for as long as its owner runs.
//!
//! ```text
//! bits 3-31  the owner's number (CPU + 1), 0: free
//! bit 2      PICKUP   the owner has been named by an unlock and does not know it yet
//! bit 1      HANDOFF  the first sleeper has been overtaken: the next unlock names it owner
//! bit 0      WAITERS  a CPU sleeps: unlock has to wake the first
//! ```
//!
//! A state is written (owner, flags), `w` for WAITERS if a CPU sleeps:
//!
//! | state | meaning | leads to |
//! |---|---|---|
//! | (0, 0) | free | (a, 0) |
//! | (0, w) | free, the first sleeper has been or is being woken; anybody may be faster | (a, w) |
//! | (a, w) | held by a | (0, w), and (a, HANDOFF + w) by the first sleeper |
//! | (a, HANDOFF + w) | held by a, and promised to the first sleeper f | (f, PICKUP + w) |
//! | (f, PICKUP + w) | kept for f | (f, w), by f |
//!
//! # Steps
//!
//! ```text
//! M1 spin    while the owner runs; one behind the other in the spin queue, its head alone looks at the word
//! M2 list    join the wait list; WAITERS := 1 if first
//! M3 sleep   say ASLEEP, try once more, sleep
//! M4 insist  woken, and overtaken all the same: HANDOFF := 1 if first, and spin without queueing, as M1
//! M5 leave   the wait list; WAITERS := 0 if it is empty
//! M6 unlock  (a, w) -> (0, w)
//! M7 wake    if w: the first sleeper; or name it owner, if it was promised the lock
//! ```
//!
//! # Why no CPU stays asleep next to a free lock
//!
//! WAITERS is set under the list's lock, before M3 looks at the word for the last time, and M6 looks for it.
//! 1. M6 before M3's look: M3 sees the lock free, or taken by a CPU that has yet to come to M6.
//! 2. M3's look before M6: M6 sees WAITERS, and M7 comes to the list after M3 has left it. It finds the sleeper.
//!
//! The first in the list stays first until it owns the lock, so a promise cannot be kept to the wrong one.

use super::{
    Held, SleepDomain, WaitList,
    osq::{Layout, Osq, Packed},
};
use crate::{
    contract::{Activity, Event, Lock, Platform},
    faults::mutant::mutant,
    memory::{AtomicU32, Ordering::*, fresh},
};

const WAITERS: u32 = 1;
const HANDOFF: u32 = 1 << 1;
const PICKUP: u32 = 1 << 2;
const FLAGS: u32 = WAITERS | HANDOFF | PICKUP;
const OWNER_SHIFT: u32 = 3;

/// Mutex with a spin queue in layout `L`.
#[derive(Debug)]
#[repr(C)]
pub struct Mutex<L = Packed> {
    word: AtomicU32,
    queue: Osq<L>,
    list: WaitList,
}

fresh!(pub Mutex<L: Layout> { word: AtomicU32::new(0), queue: Osq::new(), list: WaitList::new() });

impl<L: Layout> Mutex<L> {
    /// (0, w) -> (me, w), or (me, PICKUP + w) -> (me, w). With `insist`, (a, w) -> (a, HANDOFF + w) if neither. Fails with the
    /// number of the CPU that owns it, or that it is kept for.
    fn take(&self, me: u32, insist: bool) -> Result<(), u32> {
        // Relaxed: the exchange validates the value.
        let mut seen = self.word.load(Relaxed);
        loop {
            let owner = seen >> OWNER_SHIFT;
            let mine = owner == 0 || owner == me && seen & PICKUP != 0;
            let wanted = if mine {
                me << OWNER_SHIFT | seen & FLAGS & !PICKUP
            } else if insist && seen & (HANDOFF | PICKUP) == 0 {
                seen | HANDOFF
            } else {
                return Err(owner);
            };
            // Acquire: pairs with M6.
            let acquire = mutant!("mutex-relaxed-take": Acquire => Relaxed);
            match self.word.compare_exchange_weak(seen, wanted, acquire, Relaxed) {
                Ok(_) if mine => return Ok(()),
                Ok(_) => return Err(owner),
                Err(now) => seen = now,
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn lock_slow<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
        domain.platform.announce(Activity::Waiter);
        if self.spin_in_queue(domain) {
            domain.platform.count(Event::MutexOptLock, 1);
        } else {
            self.sleep(domain);
        }
    }

    /// M1, queued. `true` if that took the lock.
    fn spin_in_queue<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) -> bool {
        // Relaxed: a hint.
        let owner = self.word.load(Relaxed) >> OWNER_SHIFT;
        if owner != 0 && !domain.is_running(owner) {
            return false;
        }
        let taken = domain.spin_as_head(&self.queue, || self.spin(domain));
        if !taken {
            domain.platform.count(Event::MutexOptFail, 1);
        }
        taken
    }

    /// M1: spins while the owner runs.
    fn spin<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) -> bool {
        let me = domain.me();
        loop {
            let Err(owner) = self.take(me, false) else { return true };
            // Relaxed: a hint when to try again.
            while self.word.load(Relaxed) >> OWNER_SHIFT == owner {
                if !domain.is_running(owner) {
                    return false;
                }
                domain.count_spin(owner);
                domain.platform.pause();
            }
        }
    }

    /// M2 to M5.
    fn sleep<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
        let me = domain.me();
        let list = self.list.hold(domain);
        if list.is_empty() {
            // Relaxed: M6 reads it in the same word, and M7 takes the list's lock.
            self.word.fetch_or(WAITERS, Relaxed);
        }
        // M3's look, before M2, as no other CPU can come between the two.
        if self.take(me, false).is_ok() {
            return self.stop_waiting(&list);
        }
        list.append(false, 0);
        list.fall_asleep();
        drop(list);
        loop {
            domain.platform.count(Event::MutexSleep, 1);
            while domain.is_asleep() {
                domain.park();
            }
            // M4. Only the first is ever woken, and it stays first until it has left.
            domain.platform.announce(Activity::Head);
            let taken = self.take(me, true).is_ok() || self.spin(domain);
            let list = self.list.hold(domain);
            if !taken {
                // M3
                list.fall_asleep();
            }
            if taken || self.take(me, false).is_ok() {
                list.remove_first();
                return self.stop_waiting(&list);
            }
        }
    }

    /// M5, by the owner.
    fn stop_waiting<P: Platform, const CPUS: usize>(&self, list: &Held<'_, P, L, CPUS>) {
        if list.is_empty() {
            // Relaxed: under the list's lock, like the setting.
            self.word.fetch_and(!WAITERS, Relaxed);
        }
    }

    /// M6 where it is not as simple as in `unlock`, and M7.
    #[cold]
    #[inline(never)]
    fn unlock_slow<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, L, CPUS>) {
        // Relaxed: the exchange validates the value.
        let mut seen = self.word.load(Relaxed);
        while seen & HANDOFF == 0 {
            // M6. Release: pairs with the acquire in `take`.
            match self.word.compare_exchange_weak(seen, seen & FLAGS, Release, Relaxed) {
                Ok(_) if seen & WAITERS == 0 => return,
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        // M7
        let list = self.list.hold(domain);
        let Some(first) = list.first() else { return };
        let woken = list.wake_first();
        if mutant!("mutex-break-the-promise": seen & HANDOFF != 0 => false) {
            domain.platform.count(Event::MutexHandoff, 1);
            // Relaxed: the one named comes to the list in M5, after us, before it enters. Not an exchange: while the
            // lock is owned and promised only the owner changes the word, and WAITERS is the list's.
            self.word.store(first << OWNER_SHIFT | PICKUP | WAITERS, Relaxed);
        }
        drop(list);
        if let Some(woken) = woken {
            domain.platform.count(Event::MutexWake, 1);
            woken.kick(domain);
        }
    }
}

impl<P: Platform, L: Layout, const CPUS: usize> Lock<SleepDomain<P, L, CPUS>> for Mutex<L> {
    type Token = ();

    #[inline]
    fn lock(&self, domain: &SleepDomain<P, L, CPUS>) {
        if self.try_lock(domain).is_none() {
            self.lock_slow(domain);
        }
    }

    #[inline]
    fn try_lock(&self, domain: &SleepDomain<P, L, CPUS>) -> Option<()> {
        // (0, 0) -> (me, 0). Acquire: as in `take`. Relaxed load: failing needs no ordering.
        let taken = self.word.load(Relaxed) == 0
            && self.word.compare_exchange(0, domain.me() << OWNER_SHIFT, Acquire, Relaxed).is_ok();
        taken.then_some(())
    }

    #[inline]
    fn unlock(&self, domain: &SleepDomain<P, L, CPUS>, (): ()) {
        // M6: (me, 0) -> (0, 0). Release: pairs with the acquire in `take` and `try_lock`.
        let release = mutant!("mutex-relaxed-unlock": Release => Relaxed);
        if self.word.compare_exchange(domain.me() << OWNER_SHIFT, 0, release, Relaxed).is_err() {
            self.unlock_slow(domain);
        }
    }
}
