//! Test-and-set with restricted concurrency: a few CPUs race for the lock, and all others stand in a queue and sleep.
//!
//! After GCR (Dice and Kogan, EuroSys 2019), which wraps any lock. In [`Gcr`] the lock that it would wrap is a bit of
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

use core::mem::offset_of;

use crate::{
    centralized::tas::await_slice,
    contract::{Activity, Domain, Event, Lock, Platform, Point, Queues, domain},
    faults::mutant::mutant,
    memory::{AtomicU32, MODELLED, Ordering::*, array, fence, fresh},
    waiting::{Code, KickStamp, LEVELS, Nesting, OF_SPINLOCKS, Patience},
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

/// States of a node. The lowest byte is not 0 once its CPU is first: see [`Queues::locked`].
const RUNNING: u32 = 0;
/// Sleeps, or is about to, and is not first.
const HALTED: u32 = 1 << 8;
/// Is about to be made first by a CPU that has found it HALTED.
const HASHED: u32 = 2 << 8;
/// Is first.
const FIRST: u32 = 1;

/// Test-and-set lock for which only a few CPUs race.
#[derive(Debug)]
#[repr(C)]
pub struct Gcr {
    word: AtomicU32,
    /// Code of the first in the queue, and of the last one; 0: there is no queue.
    first: AtomicU32,
    tail: AtomicU32,
}

fresh!(pub Gcr { word: AtomicU32::new(0), first: AtomicU32::new(0), tail: AtomicU32::new(0) });

impl Gcr {
    #[cold]
    #[inline(never)]
    fn lock_slow<P: Platform, const CPUS: usize>(&self, domain: &GcrDomain<P, CPUS>, seen: u32) {
        let platform = domain.platform();
        platform.announce(Activity::Waiter);
        match self.join(seen) {
            Ok(HELD) => return,
            Ok(_) => {}
            Err(()) => self.queue(domain),
        }
        self.race(platform);
    }

    /// B1: joins the race, and says whether that took the lock ([`HELD`]). Fails if enough CPUs race.
    fn join(&self, mut seen: u32) -> Result<u32, ()> {
        while active(seen) < LIMIT {
            // Acquire: pairs with L1.
            match self.word.compare_exchange_weak(seen, (seen + ACTIVE) | HELD, Acquire, Relaxed) {
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
            if self.word.load(Relaxed) & HELD == 0 {
                await_slice(platform);
                // Acquire: pairs with L1.
                if self.word.fetch_or(HELD, mutant!("gcr-relaxed-race": Acquire => Relaxed)) & HELD == 0 {
                    return;
                }
            }
            if !patience.pause() {
                platform.yield_to(None);
                patience = Patience::new(platform);
            }
        }
    }

    /// J0
    fn queue<P: Platform, const CPUS: usize>(&self, domain: &GcrDomain<P, CPUS>) {
        let platform = &domain.platform;
        let cpu = platform.cpu();
        // The node is this CPU's from `enter` to `leave`.
        let per_cpu = &domain.cpus[cpu];
        let level = per_cpu.own.nesting.enter();
        match per_cpu.nodes.get(level) {
            Some(node) => self.queue_with(domain, Code::new(cpu, level), node),
            // T9: one more level than there are nodes: one more that races. Relaxed: B2 acquires.
            None => {
                platform.count(Event::LockNoNode, 1);
                self.word.fetch_add(ACTIVE, Relaxed);
            }
        }
        per_cpu.own.nesting.leave();
    }

    /// J1 to J6.
    fn queue_with<P: Platform, const CPUS: usize>(
        &self,
        domain: &GcrDomain<P, CPUS>,
        code: Code,
        node: &Node,
    ) {
        let platform = &domain.platform;
        platform.point(Point::NodeClaimed);
        platform.count(Event::LockSlowpath, 1);
        // J1. Relaxed: published by the swap.
        node.next.store(0, Relaxed);
        node.state.store(RUNNING, Relaxed);
        // Release: publishes the node. Acquire: the predecessor's node is published, or what the last one has left.
        let prev = self.tail.swap(code.raw(), mutant!("gcr-relaxed-tail": AcqRel => Relaxed));
        platform.point(Point::TailPublished);
        match Code::from_raw(prev) {
            Some(prev) => {
                // Release: pairs with the acquire in J5.
                domain.node(prev).next.store(code.raw(), Release);
                wait_behind(domain, code, node);
            }
            // Relaxed: J3 publishes it.
            None => self.first.store(code.raw(), Relaxed),
        }
        self.wait_as_first(domain, code);
        self.leave_queue(domain, code, node);
    }

    /// J3, J4.
    fn wait_as_first<P: Platform, const CPUS: usize>(&self, domain: &GcrDomain<P, CPUS>, code: Code) {
        let platform = &domain.platform;
        let mut patience = Patience::new(platform);
        // Relaxed, here and below: the exchange validates the value.
        let mut seen = self.word.load(Relaxed);
        loop {
            while lets_in(seen) {
                // J4. Relaxed: B2 acquires, and what the word's flags publish is this CPU's own.
                let joined = (seen + ACTIVE) & !(APPROVED | SLEEPS);
                match self.word.compare_exchange(seen, joined, Relaxed, Relaxed) {
                    Ok(_) => return,
                    Err(now) => seen = now,
                }
            }
            if !patience.pause() {
                // J3. Release: pairs with L2, for `first`.
                let before = self.word.fetch_or(SLEEPS, mutant!("gcr-relaxed-flag": Release => Relaxed));
                platform.point(Point::HeadHashed);
                if mutant!("gcr-sleep-blindly": !lets_in(before) => true) {
                    platform.count(Event::PvWaitHead, 1);
                    domain.sleep(code.cpu(), || self.word.load(Relaxed) & SLEEPS != 0);
                }
                patience = Patience::new(platform);
            }
            seen = self.word.load(Relaxed);
        }
    }

    /// J5, J6, by a CPU that is active by now.
    fn leave_queue<P: Platform, const CPUS: usize>(
        &self,
        domain: &GcrDomain<P, CPUS>,
        code: Code,
        node: &Node,
    ) {
        // Acquire, here and below: pairs with the link in J1.
        let mut next = node.next.load(Acquire);
        if next == 0 {
            // J5. Release: pairs with the swap of `tail`, for `first`.
            if self.tail.compare_exchange(code.raw(), 0, Release, Relaxed).is_ok() {
                return;
            }
            while next == 0 {
                domain.platform.pause();
                next = node.next.load(Acquire);
            }
        }
        // J6. Relaxed: published by what follows.
        self.first.store(next, Relaxed);
        let state = &domain.node(Code::from_raw(next).expect("not 0")).state;
        loop {
            // Release, here and below: pairs with J2.
            if state.compare_exchange(RUNNING, FIRST, Release, Relaxed).is_ok() {
                break;
            }
            // Relaxed: the store below publishes. While it is HASHED its CPU waits for that.
            if state.compare_exchange(HALTED, HASHED, Relaxed, Relaxed).is_ok() {
                domain.platform.point(Point::SuccessorHashed);
                // Release: pairs with L2, for `first`.
                self.word.fetch_or(SLEEPS, Release);
                state.store(FIRST, Release);
                break;
            }
        }
        domain.platform.point(Point::HandedOver);
    }

    /// L1 where others race or wait, and L2, by the CPU that holds the lock, whose word was `seen` last.
    /// Returns the first in the queue, if it may join and has to be kicked.
    #[cold]
    #[inline(never)]
    fn leave<P: Platform, const CPUS: usize>(
        &self,
        domain: &GcrDomain<P, CPUS>,
        mut seen: u32,
    ) -> Option<Code> {
        // T14: say what happened instead of a word that has become nonsense.
        assert!(
            seen & HELD != 0 && active(seen) != 0,
            "unlock of a lock whose word is {seen:#x}: not held, or overwritten"
        );
        let mut due = None;
        loop {
            let left = seen - (ACTIVE | HELD);
            let mut kick = None;
            let mut new = left;
            if seen & SLEEPS != 0 {
                let due = *due.get_or_insert_with(|| domain.counts_enough_releases());
                let promoted = mutant!("gcr-never-promote": due => false);
                if promoted || mutant!("gcr-forget-when-idle": active(left) == 0 => false) {
                    // Acquire: pairs with J3 and J6.
                    mutant!("gcr-relaxed-kick": fence(Acquire) => ());
                    kick = Code::from_raw(self.first.load(Relaxed));
                    new = left & !SLEEPS | if promoted { APPROVED } else { 0 };
                }
            }
            // L1, L2. Release: pairs with B0, B1, B2.
            let release = mutant!("gcr-relaxed-unlock": Release => Relaxed);
            match self.word.compare_exchange_weak(seen, new, release, Relaxed) {
                Ok(_) => return kick,
                Err(now) => seen = now,
            }
        }
    }
}

#[derive(Debug)]
#[repr(C, align(64))]
struct PerCpu {
    /// Written by neighbours in a queue.
    nodes: [Node; LEVELS],
    own: Own,
}

/// The line that this CPU writes, but for the stamp of a kick.
#[derive(Debug)]
#[repr(C, align(64))]
struct Own {
    nesting: Nesting,
    /// Releases since this CPU let the first of a queue in. An interrupt may lose one.
    releases: AtomicU32,
    kicked: KickStamp,
}

/// A CPU in a queue.
#[derive(Debug)]
struct Node {
    /// Code of the successor, 0 while none is known. Written by the successor.
    next: AtomicU32,
    /// [`RUNNING`], [`HALTED`], [`HASHED`] or [`FIRST`].
    state: AtomicU32,
}

fresh!(Node { next: AtomicU32::new(0), state: AtomicU32::new(RUNNING) });

fresh!(PerCpu {
    nodes: array![Node::new(); LEVELS],
    own: Own { nesting: Nesting::new(), releases: AtomicU32::new(0), kicked: KickStamp::new() },
});

domain! {
    /// Memory that all such locks of one kernel share: the platform, and four nodes for each CPU.
    GcrDomain<CPUS> { cpus: PerCpu }
    assert!(CPUS < 1 << 16, "the lock word cannot count so many CPUs");
    |domain| {
        let cpu = &domain.cpus[0];
        Queues::of(cpu, &cpu.nodes, &cpu.own.nesting, offset_of!(Node, next), offset_of!(Node, state))
    }
}

impl<P, const CPUS: usize> GcrDomain<P, CPUS> {
    fn node(&self, code: Code) -> &Node {
        &self.cpus[code.cpu()].nodes[code.place()]
    }
}

impl<P: Platform, const CPUS: usize> GcrDomain<P, CPUS> {
    fn sleep(&self, cpu: usize, still: impl Fn() -> bool) {
        OF_SPINLOCKS.sleep(&self.platform, &self.cpus[cpu].own.kicked, still);
    }

    /// After a release: kicks the CPU that [`Gcr::leave`] has found.
    fn let_in(&self, first: Option<Code>) {
        if let Some(first) = first {
            self.platform.announce(Activity::Other);
            self.platform.point(Point::SlowReleased);
            OF_SPINLOCKS.kick(&self.platform, &self.cpus[first.cpu()].own.kicked, first.cpu());
        }
    }

    /// Whether this release of the calling CPU lets the first in the queue in.
    fn counts_enough_releases(&self) -> bool {
        let releases = &self.cpus[self.platform.cpu()].own.releases;
        // Relaxed, and not one step: only this CPU writes it.
        let now = (releases.load(Relaxed) + 1) % PROMOTE;
        releases.store(now, Relaxed);
        now == 0
    }
}

/// How many CPUs race or hold, by this word.
const fn active(word: u32) -> u32 {
    word / ACTIVE
}

/// Whether the first in the queue may join, by this word.
const fn lets_in(word: u32) -> bool {
    word & APPROVED != 0 || active(word) == 0
}

/// J2: waits to be made first.
fn wait_behind<P: Platform, const CPUS: usize>(domain: &GcrDomain<P, CPUS>, code: Code, node: &Node) {
    let platform = &domain.platform;
    loop {
        let mut patience = Patience::new(platform);
        loop {
            // Acquire: pairs with J6.
            if node.state.load(Acquire) == FIRST {
                return;
            }
            if !patience.pause() {
                break;
            }
        }
        // Relaxed: `state` is all that is asked about, and each of its changes is an exchange (T1).
        if node.state.compare_exchange(RUNNING, HALTED, Relaxed, Relaxed).is_ok() {
            platform.point(Point::HaltedPublished);
            platform.count(Event::PvWaitNode, 1);
            domain.sleep(code.cpu(), || node.state.load(Relaxed) != FIRST);
            // Fails if it is HASHED, or FIRST.
            if node.state.compare_exchange(HALTED, RUNNING, Relaxed, Relaxed).is_ok() {
                platform.count(Event::PvSpuriousWakeup, 1);
            }
        } else {
            // HASHED: it is about to be first.
            platform.pause();
        }
    }
}

impl<P: Platform, const CPUS: usize> Lock<GcrDomain<P, CPUS>> for Gcr {
    type Token = ();

    #[inline(always)]
    fn lock(&self, domain: &GcrDomain<P, CPUS>) {
        await_slice(domain.platform());
        // B0. Acquire: pairs with L1.
        if let Err(seen) = self.word.compare_exchange(0, ACTIVE | HELD, Acquire, Relaxed) {
            self.lock_slow(domain, seen);
        }
    }

    #[inline(always)]
    fn try_lock(&self, _: &GcrDomain<P, CPUS>) -> Option<()> {
        // Relaxed: failing needs no ordering, and spares the line when the lock is held.
        let seen = self.word.load(Relaxed);
        let may_take = seen & HELD == 0 && active(seen) < LIMIT;
        // B1. Acquire: pairs with L1.
        let taken =
            may_take && self.word.compare_exchange(seen, (seen + ACTIVE) | HELD, Acquire, Relaxed).is_ok();
        taken.then_some(())
    }

    #[inline(always)]
    fn unlock(&self, domain: &GcrDomain<P, CPUS>, (): ()) {
        // L1: (1,0,0,1) -> (0,0,0,0). Release: pairs with B0, B1, B2.
        if let Err(seen) = self.word.compare_exchange(ACTIVE | HELD, 0, Release, Relaxed) {
            let first = self.leave(domain, seen);
            // T4: from here on, only the domain is touched.
            domain.let_in(first);
        }
    }
}
