//! Ticket lock: first come, first served, on two counters.
//!
//! ```text
//! next   the ticket that the next arrival draws
//! owner  the ticket now served;  owner == next: free;  next - owner - 1 CPUs wait
//! ```
//!
//! The two counters are words of their own, so no access is wider or narrower than another one that it races
//! with, and they wrap at 2^32 CPUs. They share a line: an arrival invalidates it for the pollers, which is
//! the price that this lock pays for being small.
//!
//! Strictly fair, and so the first to collapse when a CPU that holds a ticket is not running: no other CPU may overtake
//! it.

use crate::{
    contract::{Activity, Lock, Platform},
    faults::mutant::mutant,
    memory::sync::{AtomicU32, Ordering::*, const_unless_loom},
};

/// Ticket lock.
#[derive(Debug)]
pub struct Ticket {
    next: AtomicU32,
    owner: AtomicU32,
}

impl Ticket {
    const_unless_loom! {
        /// A free lock.
        pub const fn new() -> Self {
            Self { next: AtomicU32::new(0), owner: AtomicU32::new(0) }
        }
    }

    #[cold]
    #[inline(never)]
    fn lock_slow<P: Platform>(&self, platform: &P, mine: u32) {
        let mut announced = Activity::Waiter;
        platform.announce(announced);
        loop {
            // Acquire: pairs with the release in `unlock`.
            let ahead = mine.wrapping_sub(self.owner.load(Acquire));
            if ahead == 0 {
                return;
            }
            if ahead == 1 && announced != Activity::Head {
                announced = Activity::Head;
                platform.announce(announced);
            }
            platform.pause();
        }
    }
}

impl<P: Platform> Lock<P> for Ticket {
    type Token = ();

    #[inline(always)]
    fn lock(&self, platform: &P) {
        // Relaxed: a ticket is a place in the line, nothing more; the load of `owner` acquires.
        let mine = self.next.fetch_add(1, Relaxed);
        // Acquire: pairs with the release in `unlock`.
        if self.owner.load(Acquire) != mine {
            self.lock_slow(platform, mine);
        }
    }

    #[inline(always)]
    fn try_lock(&self, _: &P) -> Option<()> {
        // Acquire, for the critical section before us ended with the store of this value.
        let owner = self.owner.load(mutant!("ticket-relaxed-try": Acquire => Relaxed));
        // `owner` never passes `next`. If `next` still equals the owner read above, then so does `owner`, and
        // the ticket drawn here is the one being served. Relaxed: as in `lock`.
        self.next.compare_exchange(owner, owner.wrapping_add(1), Relaxed, Relaxed).ok().map(drop)
    }

    #[inline(always)]
    fn unlock(&self, _: &P, (): ()) {
        // Relaxed load: only the holder writes `owner`. Release: pairs with the acquires of the CPU that waits for this
        // ticket.
        let release = mutant!("ticket-relaxed-unlock": Release => Relaxed);
        self.owner.store(self.owner.load(Relaxed).wrapping_add(1), release);
    }
}
