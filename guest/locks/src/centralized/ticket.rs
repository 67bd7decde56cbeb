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
//!
//! # The ticket lock that was unfair in guests (2010)
//!
//! A queue that forgets itself at each unlock:
//!
//! ```text
//! bits 16-31  next   the ticket that the next arrival draws
//! bits 0-15   head   the ticket served
//! ```
//!
//! | word (next,head) | state |
//! |---|---|
//! | (0,0) | free |
//! | (1,0) | held, no attempt since |
//! | (n,0) | held, n - 1 CPUs have tried |
//!
//! An arrival draws a ticket, and has the lock if it is the one served. A loser waits for the whole word to become 0
//! and draws again; unlock stores 0 to the whole word, where the fair lock of that time advanced `head`. So all tickets
//! of losers are void at each unlock, and a CPU that is running then wins.
//!
//! A loser adds one to `next` for each time the lock is held, so 2^16 CPUs are too many: `next` would wrap
//! and show a held lock as free. The lock of 2010 had 8-bit halves; this one is meant for more than 255 CPUs.

use crate::{
    contract::{Activity, Lock, Platform, poll},
    faults::mutant::mutant,
    memory::{AtomicU32, Ordering::*, fresh},
};

/// Ticket lock.
#[derive(Debug)]
pub struct Ticket {
    next: AtomicU32,
    owner: AtomicU32,
}

fresh!(pub Ticket { next: AtomicU32::new(0), owner: AtomicU32::new(0) });

impl Ticket {
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

/// One ticket.
const NEXT: u32 = 1 << 16;

/// Ticket lock whose waiters race at each unlock.
#[derive(Debug)]
pub struct UnfairTicket {
    word: AtomicU32,
}

fresh!(pub UnfairTicket { word: AtomicU32::new(0) });

impl UnfairTicket {
    /// (n,0) -> (n+1,0); `true` if n was 0. Acquire: pairs with the release in `unlock`.
    #[inline(always)]
    fn draw(&self) -> bool {
        is_free(self.word.fetch_add(NEXT, Acquire))
    }

    #[cold]
    #[inline(never)]
    fn lock_slow<P: Platform>(&self, platform: &P) {
        // Relaxed: only a hint when to draw; `draw` is what acquires.
        poll(platform, || self.word.load(Relaxed) == 0, || self.draw());
    }
}

/// Whether the ticket served is the one to be drawn next.
#[inline(always)]
fn is_free(word: u32) -> bool {
    word >> 16 == word & 0xffff
}

impl<P: Platform> Lock<P> for UnfairTicket {
    type Token = ();

    #[inline(always)]
    fn lock(&self, platform: &P) {
        if !self.draw() {
            self.lock_slow(platform);
        }
    }

    #[inline(always)]
    fn try_lock(&self, _: &P) -> Option<()> {
        // Relaxed: failing needs no ordering, and the exchange validates the value.
        let seen = self.word.load(Relaxed);
        // Acquire: as in `draw`.
        (is_free(seen) && self.word.compare_exchange(seen, seen + NEXT, Acquire, Relaxed).is_ok())
            .then_some(())
    }

    #[inline(always)]
    fn unlock(&self, _: &P, (): ()) {
        // (n,0) -> (0,0). Release: pairs with the acquires of the next CPU that draws.
        self.word.store(0, Release);
    }
}
