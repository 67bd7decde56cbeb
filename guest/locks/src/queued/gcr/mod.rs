//! Test-and-set with restricted concurrency: a few CPUs race for the lock, and all others stand in a queue and sleep.
//!
//! After GCR (Dice and Kogan, EuroSys 2019), which wraps any lock, as [`GcrOver`] does. In [`Gcr`] the lock that it would wrap is a bit of
//! the word that also counts who may race, so that a CPU enters with one atomic operation and leaves with one.
//!
//! | bits | field | |
//! |---|---|---|
//! | 0 | held | |
//! | 8 | sleeps | the first in the queue sleeps, or is about to: who may let it in has to kick it |
//! | 9 | approved | the first in the queue may join, however many race |
//! | 16-31 | active | how many CPUs race for the lock or hold it |
//!
//! Two links lie next to the word. `tail` names the last in the queue. `first` names the first one; it is written by who makes it first,
//! before that, and read by who has seen `sleeps`.
//!
//! A state is written (active, approved, sleeps, held), `*` for anything:
//!
//! | transition | by | what |
//! |---|---|---|
//! | (0,0,0,0) -> (1,0,0,1) | B0 | the fast path |
//! | (a,*,*,0) -> (a+1,*,*,1), a < LIMIT | B1 | a newcomer takes a free lock |
//! | (a,*,*,1) -> (a+1,*,*,1), a < LIMIT | B1 | a newcomer races |
//! | (a,*,*,0) -> (a,*,*,1) | B2 | one that races wins |
//! | (0,*,*,h) or (a,1,*,h) -> (a+1,0,0,h) | J4 | the first in the queue joins the race |
//! | (*,*,0,*) -> (*,*,1,*) | J3, J6 | the first in the queue is about to sleep, or does |
//! | (a,*,*,1) -> (a-1,*,*,0) | L1 | release |
//! | (a,*,1,1) -> (a-1,p,0,0) | L2 | release, and a kick; p if the first has waited for long enough, or no other CPU races |
//!
//! # Steps
//! ```text
//! B0 lock    (0,0,0,0) -> (1,0,0,1), else
//! B1 join    while active < LIMIT: active += 1, and held := 1 if it was 0: done; else race
//! B2 race    held := 1, when it is seen 0; past the threshold yield between looks
//!
//! J0 queue   claim a node of this level; there is none: active += 1, race
//! J1         initialise it; swap it into `tail`; link behind p; none: first := this, it is first
//! J2 behind  spin; state := HALTED; sleep until it is first, or kicked
//! J3 first   spin until it may join; sleeps := 1; sleep while that is set
//! J4 join    active += 1, approved := 0, sleeps := 0, if active = 0 or approved
//! J5 leave   the queue: tail := 0 if this is the last; else find the next
//! J6         first := next; if it sleeps: state := HASHED, sleeps := 1; in any case state := FIRST. Then race (B2)
//!
//! L1 unlock  active -= 1, held := 0, unless the first in the queue sleeps, and may join from here on:
//! L2         look who is first; the same, sleeps := 0, perhaps approved := 1; kick it
//! ```
//!
//! # Why it excludes
//! B0, B1 and B2 turn the bit `held` from 0 to 1 by one atomic operation each, and L alone turns it back. All else is about who asks.
//!
//! # Why no sleeper is forgotten
//! 1. While the lock is held, active only grows: who races leaves by L alone, as the holder. So L2, an exchange of the whole word, fails if
//!    a CPU has joined since L2 has looked who is first; and a first one changes by joining alone. It kicks the right one.
//! 2. J3 and L change one word. Either L finds `sleeps`, or J3 finds that no CPU is active, and does not sleep.
//! 3. J6 makes the next one first while its CPU is active. That CPU has yet to come to L, and no kick is needed before.
//! 4. J6 sets `sleeps` before the next one is FIRST, so that it cannot have joined before that. A flag that came later would be that of
//!    the one behind it, whose own J3 then would change nothing, and L2 could take it away unseen.
//! 5. T1 in J2: the waiter and J6 both exchange `state`, so one of them comes first.
//!
//! A kick that comes too late ends a later sleep too early (D4), which every sleep here allows. T4: after L the lock is not touched.
//!
//! # How long a CPU waits
//! The queue is served in order. The first is let in when no CPU is active, or, once it sleeps, after PROMOTE releases by any one
//! CPU at the latest: so after (N - 1) * (PROMOTE - 1) + 1 sections of others, and what its wake-up takes. A CPU counts its releases of
//! all locks of the domain together. If it takes several locks in turn, it may reach PROMOTE always at the same one, and only the former
//! holds at the others. Those that race, LIMIT of them and the CPUs that were let in, have no bound.
//!
//! # Orderings
//! | release | acquire | what it is for |
//! |---|---|---|
//! | L | B0, B1, B2 | the critical section |
//! | swap of `tail` in J1, exchange in J5 | swap of `tail` in J1 | the node behind which a CPU links; `first` |
//! | link in J1 | J5 | the node is initialised (T5) |
//! | J6 | J2, J3 | `first`, to who writes it next |
//! | J3, J6 | L2 | `first`, to who kicks |

mod gate;
mod over;

use self::gate::{Gate, active};
pub use self::{
    gate::GcrDomain,
    over::{GcrOver, GcrOverDomain},
};
use crate::{
    centralized::slice_tas::await_slice,
    contract::{Activity, Domain, Lock, Platform},
    faults::mutant::mutant,
    memory::sync::{MODELLED, Ordering::*, const_unless_loom},
    waiting::patience::Patience,
};

const HELD: u32 = 1;
const SLEEPS: u32 = 1 << 8;
const APPROVED: u32 = 1 << 9;
/// One CPU that races or holds.
const ACTIVE: u32 = 1 << 16;

/// CPUs that may race without having queued: one works, and one comes to take over.
const LIMIT: u32 = if MODELLED { 1 } else { 2 };
/// Releases of one CPU after which it lets the first in the queue in.
const PROMOTE: u32 = if MODELLED { 2 } else { 64 };

/// Test-and-set lock for which only a few CPUs race.
#[derive(Debug)]
pub struct Gcr {
    gate: Gate,
}

impl Gcr {
    const_unless_loom! {
        /// A free lock.
        pub const fn new() -> Self {
            Self { gate: Gate::new() }
        }
    }

    #[cold]
    #[inline(never)]
    fn lock_slow<P: Platform, const CPUS: usize>(&self, domain: &GcrDomain<P, CPUS>, seen: u32) {
        let platform = domain.platform();
        platform.announce(Activity::Waiter);
        match self.join(seen) {
            Ok(HELD) => return,
            Ok(_) => {}
            Err(()) => self.gate.queue(domain),
        }
        self.race(platform);
    }

    /// B1: joins the race, and says whether that took the lock ([`HELD`]). Fails if enough CPUs race.
    fn join(&self, mut seen: u32) -> Result<u32, ()> {
        while active(seen) < LIMIT {
            // Acquire: pairs with L1.
            match self.gate.word.compare_exchange_weak(seen, (seen + ACTIVE) | HELD, Acquire, Relaxed) {
                Ok(_) => return Ok(!seen & HELD),
                Err(now) => seen = now,
            }
        }
        Err(())
    }

    /// B2
    fn race<P: Platform>(&self, platform: &P) {
        platform.announce(Activity::Head);
        let mut patience = Patience::new(platform);
        loop {
            // Relaxed: only a hint when to try.
            if self.gate.word.load(Relaxed) & HELD == 0 {
                await_slice(platform);
                // Acquire: pairs with L1.
                if self.gate.word.fetch_or(HELD, mutant!("gcr-relaxed-race": Acquire => Relaxed)) & HELD == 0
                {
                    return;
                }
            }
            if !patience.pause() {
                platform.yield_to(None);
                patience = Patience::new(platform);
            }
        }
    }
}

impl<P: Platform, const CPUS: usize> Lock<GcrDomain<P, CPUS>> for Gcr {
    type Token = ();

    #[inline(always)]
    fn lock(&self, domain: &GcrDomain<P, CPUS>) {
        await_slice(domain.platform());
        // B0. Acquire: pairs with L1.
        if let Err(seen) = self.gate.word.compare_exchange(0, ACTIVE | HELD, Acquire, Relaxed) {
            self.lock_slow(domain, seen);
        }
    }

    #[inline(always)]
    fn try_lock(&self, _: &GcrDomain<P, CPUS>) -> Option<()> {
        // Relaxed: failing needs no ordering, and spares the line when the lock is held.
        let seen = self.gate.word.load(Relaxed);
        let may_take = seen & HELD == 0 && active(seen) < LIMIT;
        // B1. Acquire: pairs with L1.
        let taken = may_take
            && self.gate.word.compare_exchange(seen, (seen + ACTIVE) | HELD, Acquire, Relaxed).is_ok();
        taken.then_some(())
    }

    #[inline(always)]
    fn unlock(&self, domain: &GcrDomain<P, CPUS>, (): ()) {
        // L1: (1,0,0,1) -> (0,0,0,0). Release: pairs with B0, B1, B2.
        if let Err(seen) = self.gate.word.compare_exchange(ACTIVE | HELD, 0, Release, Relaxed) {
            let first = self.gate.leave(domain, seen, ACTIVE | HELD);
            // T4: from here on, only the domain is touched.
            domain.let_in(first);
        }
    }
}
