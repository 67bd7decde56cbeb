//! Futex mutex: the three-state sleeping lock of Drepper's "Futexes Are Tricky" (mutex 2), with the short spin that the
//! standard libraries of today put before it. What the other sleeping locks are measured against.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | free |
//! | 1 | held, no CPU sleeps |
//! | 2 | held, and a CPU may sleep: unlock has to wake one |
//!
//! A kernel's futex finds the sleepers of a word in a hash table. Here the list lies next to the word, which is the
//! best that a hash table can do.
//!
//! ```text
//! F1  the waiter, under the list's lock: looks at the word for the last time, and joins the list
//! F2  unlock: changes the word first, and goes to the list afterwards
//! ```
//! Either F1 sees the word free, or F2 sees the sleeper.

use super::{SleepDomain, WaitList, osq::Packed};
use crate::{
    contract::{Activity, Event, Lock, Platform},
    faults::mutant::mutant,
    memory::{AtomicU32, MODELLED, Ordering::*, fresh},
};

/// Number of looks at a held lock before sleeping, as long as no other CPU sleeps.
const SPINS: u32 = if MODELLED { 1 } else { 100 };

/// Three-state futex mutex.
#[derive(Debug)]
#[repr(C)]
pub struct FutexMutex {
    word: AtomicU32,
    list: WaitList,
}

fresh!(pub FutexMutex { word: AtomicU32::new(0), list: WaitList::new() });

impl FutexMutex {
    #[cold]
    #[inline(never)]
    fn lock_slow<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, Packed, CPUS>) {
        domain.platform.announce(Activity::Waiter);
        if self.spin(&domain.platform) {
            return;
        }
        // Acquire: pairs with unlock. A CPU that has slept cannot know that no other one sleeps, so it leaves a 2.
        while self.word.swap(2, Acquire) != 0 {
            self.wait(domain);
        }
    }

    fn spin<P: Platform>(&self, platform: &P) -> bool {
        for _ in 0..SPINS {
            // Relaxed: the exchange validates the value. Acquire: pairs with unlock.
            match self.word.load(Relaxed) {
                0 if self.word.compare_exchange(0, 1, Acquire, Relaxed).is_ok() => return true,
                2 => return false,
                _ => platform.pause(),
            }
        }
        false
    }

    /// Sleeps, if the word is 2, until an unlock has chosen this CPU.
    fn wait<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, Packed, CPUS>) {
        let list = self.list.hold(domain);
        // F1. Relaxed: the list's lock orders it against F2.
        if mutant!("futex-no-look": self.word.load(Relaxed) != 2 => false) {
            return;
        }
        list.append(false, 0);
        list.fall_asleep();
        drop(list);
        domain.platform.count(Event::FutexWait, 1);
        while domain.is_asleep() {
            domain.park();
        }
    }

    /// F2.
    #[cold]
    #[inline(never)]
    fn wake_one<P: Platform, const CPUS: usize>(&self, domain: &SleepDomain<P, Packed, CPUS>) {
        let list = self.list.hold(domain);
        if list.is_empty() {
            return;
        }
        let woken = list.wake_first();
        list.remove_first();
        drop(list);
        domain.platform.count(Event::FutexWake, 1);
        if let Some(woken) = woken {
            woken.kick(domain);
        }
    }
}

impl<P: Platform, const CPUS: usize> Lock<SleepDomain<P, Packed, CPUS>> for FutexMutex {
    type Token = ();

    #[inline]
    fn lock(&self, domain: &SleepDomain<P, Packed, CPUS>) {
        // Acquire: pairs with unlock.
        if self.word.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            self.lock_slow(domain);
        }
    }

    #[inline]
    fn try_lock(&self, _: &SleepDomain<P, Packed, CPUS>) -> Option<()> {
        // Acquire: pairs with unlock. Relaxed: failing needs no ordering.
        self.word.compare_exchange(0, 1, Acquire, Relaxed).is_ok().then_some(())
    }

    #[inline]
    fn unlock(&self, domain: &SleepDomain<P, Packed, CPUS>, (): ()) {
        // Release: pairs with every acquire above.
        if self.word.swap(0, mutant!("futex-relaxed-unlock": Release => Relaxed)) == 2 {
            self.wake_one(domain);
        }
    }
}
