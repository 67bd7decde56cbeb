//! Paravirtual ticket lock: waiters that have spun long enough sleep, and unlock looks for the one to kick.
//!
//! ```text
//! next   the ticket that the next arrival draws; tickets are even
//! owner  the ticket now served, and in bit 0 SLEEPERS: unlock has to look for one
//! ```
//!
//! | (next, owner) | state |
//! |---|---|
//! | (t, t) | free |
//! | (t + 2 + 2n, t) | t holds, n wait, spinning |
//! | (t + 2 + 2n, t + 1) | t holds, n wait, and some of them may sleep |
//! | (t, t + 1) | free, and the flag is a leftover |
//!
//! # Steps
//!
//! ```text
//! waiter                                      owner
//! V1  publish (lock, my ticket) in a slot     V4  owner += 2, and see the flag as it was
//! V2  set SLEEPERS, and see the owner         V5  if set: find (lock, owner) among the slots, kick that CPU
//! V3  sleep unless I am the owner
//! ```
//!
//! # Why no kick is lost
//!
//! V2 and V4 change the same word, so one of them comes first:
//! 1. V4 first: V2 sees the new owner. If that is the waiter, it does not sleep.
//! 2. V2 first: V4 sees the flag, and through it the slot of V1; V5 finds it.
//!
//! T4: V4 is the last access to the lock. A flag that were read after the release might be read from memory
//! that the next owner has freed.
//!
//! # When the flag goes
//!
//! An owner that waited, and sees no ticket drawn after its own, clears the flag. A waiter that drew a ticket and set
//! the flag in between might have been forgotten; so the owner looks again after it cleared the flag, and sets it again
//! if a ticket was drawn meanwhile. The clearing exchange has then either come after V2 and made the ticket visible to
//! the second look, or before V2, which sets the flag anew.

use core::ptr;

use crate::{
    contract::{Activity, Event, Lock, Platform, Point, Queues, domain},
    faults::mutant::mutant,
    memory::{AtomicU8, AtomicU32, AtomicUsize, CachePadded, Ordering::*, array, const_unless_loom, fresh},
    waiting::{KickStamp, LEVELS, Nesting, OF_SPINLOCKS, Patience},
};

const TICKET: u32 = 2;
/// Bit 0 of `owner`.
const SLEEPERS: u32 = 1;

/// Paravirtual ticket lock.
#[derive(Debug)]
pub struct PvTicket {
    next: AtomicU32,
    owner: AtomicU32,
}

/// State shared by the paravirtual ticket locks of one kernel: the platform, and each CPU's note of the ticket it
/// sleeps for.
#[derive(Debug)]
pub struct PvTicketDomain<P, const CPUS: usize> {
    platform: P,
    cpus: [CachePadded<PerCpu>; CPUS],
    /// How many slots of each CPU are in use: what unlock searches first. Written by that CPU only.
    used: [AtomicU8; CPUS],
}

#[derive(Debug)]
struct PerCpu {
    nesting: Nesting,
    slots: [Slot; LEVELS],
    kicked: KickStamp,
}

/// Lock and ticket for which a CPU sleeps. Written by that CPU only. Its layout is fixed for readers outside the
/// kernel.
#[derive(Debug)]
#[repr(C)]
struct Slot {
    /// Address of the lock; 0: not in use.
    lock: AtomicUsize,
    ticket: AtomicU32,
}

fresh!(PerCpu {
    nesting: Nesting::new(),
    slots: array![Slot { lock: AtomicUsize::new(0), ticket: AtomicU32::new(0) }; LEVELS],
    kicked: KickStamp::new(),
});

// The nodes are the slots of sleeping CPUs; spinning waiters are recorded nowhere.
domain!(PvTicketDomain<CPUS>, |domain| Queues {
    nodes: ptr::from_ref(&domain.cpus[0].slots).addr(),
    cpu_bytes: size_of::<CachePadded<PerCpu>>(),
    node_bytes: size_of::<Slot>(),
    nodes_per_cpu: LEVELS,
    ..Queues::default()
});

impl<P, const CPUS: usize> PvTicketDomain<P, CPUS> {
    const_unless_loom! {
        /// The memory of `CPUS` CPUs, none of which waits.
        pub const fn new(platform: P) -> Self {
            Self {
                platform,
                cpus: array![CachePadded::new(PerCpu::new()); CPUS],
                used: array![AtomicU8::new(0); CPUS],
            }
        }
    }
}

impl<P: Platform, const CPUS: usize> PvTicketDomain<P, CPUS> {
    /// V5: kicks the CPU that sleeps for `ticket` of `lock`, if one does.
    #[cold]
    #[inline(never)]
    fn kick_sleeper(&self, lock: usize, ticket: u32) {
        for (cpu, (used, per_cpu)) in self.used.iter().zip(&self.cpus).enumerate() {
            // Relaxed, here and below: V4 has acquired what V1 stored before V2. What a CPU stored since then may be seen or not.
            // Acquire: pairs with V1, so that a slot with this lock has the ticket that belongs to it. With an older one it could look
            // like that of the CPU to kick, which would sleep on.
            if used.load(Relaxed) == 0 {
                continue;
            }
            let waits_for = |slot: &Slot| {
                let seen = slot.lock.load(mutant!("pv-ticket-relaxed-search": Acquire => Relaxed));
                mutant!("pv-ticket-any-lock": seen == lock => seen != 0)
            };
            let sleeps_for_it = |slot: &Slot| waits_for(slot) && slot.ticket.load(Relaxed) == ticket;
            if per_cpu.slots.iter().any(sleeps_for_it) {
                OF_SPINLOCKS.kick(&self.platform, &per_cpu.kicked, cpu);
                return;
            }
        }
    }
}

fresh!(pub PvTicket { next: AtomicU32::new(0), owner: AtomicU32::new(0) });

impl PvTicket {
    fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    #[cold]
    #[inline(never)]
    fn lock_slow<P: Platform, const CPUS: usize>(&self, domain: &PvTicketDomain<P, CPUS>, mine: u32) {
        let platform = &domain.platform;
        platform.announce(Activity::Waiter);
        platform.count(Event::LockSlowpath, 1);
        let cpu = platform.cpu();
        let per_cpu = &domain.cpus[cpu];
        let slot = per_cpu.slots.get(per_cpu.nesting.enter());
        // T9: one more level than there are slots. This CPU only spins.
        if slot.is_none() {
            platform.count(Event::LockNoNode, 1);
        }
        let mut announced = Activity::Waiter;
        while !self.spin(platform, mine, &mut announced) {
            if let Some(slot) = slot {
                self.sleep(domain, cpu, slot, mine);
            }
        }
        per_cpu.nesting.leave();
        self.clear_leftover(mine);
    }

    /// Spins until `mine` is served; `false` when patience is over.
    fn spin<P: Platform>(&self, platform: &P, mine: u32, announced: &mut Activity) -> bool {
        let mut patience = Patience::new(platform);
        loop {
            // Acquire: pairs with V4.
            let ahead = mine.wrapping_sub(self.owner.load(Acquire) & !SLEEPERS);
            if ahead == 0 {
                return true;
            }
            if ahead == TICKET && *announced != Activity::Head {
                *announced = Activity::Head;
                platform.announce(Activity::Head);
            }
            if !patience.pause() {
                return false;
            }
        }
    }

    /// V1 to V3.
    fn sleep<P: Platform, const CPUS: usize>(
        &self,
        domain: &PvTicketDomain<P, CPUS>,
        cpu: usize,
        slot: &Slot,
        mine: u32,
    ) {
        let platform = &domain.platform;
        let used = &domain.used[cpu];

        // V1. Relaxed: published by V2, or by the store of the lock. Release: pairs with the acquire in `kick_sleeper`, for an unlock of
        // this lock may be looking.
        slot.ticket.store(mine, Relaxed);
        slot.lock.store(self.address(), mutant!("pv-ticket-relaxed-slot": Release => Relaxed));
        // Relaxed, and not one step: only this CPU writes it, and an interrupt leaves it as it found it.
        used.store(used.load(Relaxed) + 1, Relaxed);

        platform.point(Point::HaltedPublished);
        // V2. Release: publishes V1 to V4. Relaxed otherwise: `spin` acquires.
        let release = mutant!("pv-ticket-relaxed-flag": Release => Relaxed);
        let ahead = mine.wrapping_sub(self.owner.fetch_or(SLEEPERS, release) & !SLEEPERS);
        if ahead != 0 {
            platform.count(if ahead == TICKET { Event::PvWaitHead } else { Event::PvWaitNode }, 1);
            // V3. Relaxed: `spin` acquires.
            let still = || self.owner.load(Relaxed) & !SLEEPERS != mine;
            OF_SPINLOCKS.sleep(platform, &domain.cpus[cpu].kicked, still);
        }

        // Relaxed: an unlock that still finds the slot sends a kick without effect.
        used.store(used.load(Relaxed) - 1, Relaxed);
        slot.lock.store(0, Relaxed);
    }

    /// (t + 2, t + 1) -> (t + 2, t), by the owner of ticket t.
    fn clear_leftover(&self, mine: u32) {
        // Relaxed, all three: a hint to save the next unlock a search.
        let alone = || self.next.load(Relaxed) == mine.wrapping_add(TICKET);
        if self.owner.load(Relaxed) & SLEEPERS != 0 && alone() {
            // Acquire: pairs with V2. A waiter whose flag this takes away has drawn its ticket before, so
            // `alone` sees it.
            self.owner.fetch_and(!SLEEPERS, Acquire);
            if !mutant!("pv-ticket-no-second-look": alone() => true) {
                // Relaxed: this CPU is the one that reads it, in V4, having acquired above.
                self.owner.fetch_or(SLEEPERS, Relaxed);
            }
        }
    }
}

impl<P: Platform, const CPUS: usize> Lock<PvTicketDomain<P, CPUS>> for PvTicket {
    type Token = ();

    #[inline(always)]
    fn lock(&self, domain: &PvTicketDomain<P, CPUS>) {
        // Relaxed: a ticket is a place in the line, nothing more; the load of `owner` acquires. A waiter's V2
        // publishes it.
        let mine = self.next.fetch_add(TICKET, Relaxed);
        // Acquire: pairs with V4.
        if self.owner.load(Acquire) & !SLEEPERS != mine {
            self.lock_slow(domain, mine);
        }
    }

    #[inline(always)]
    fn try_lock(&self, _: &PvTicketDomain<P, CPUS>) -> Option<()> {
        // Acquire, for the critical section before us ended with the store of this value.
        let owner = self.owner.load(Acquire) & !SLEEPERS;
        // `owner` never passes `next`: if `next` still equals the owner read above, the ticket drawn here is
        // the one being served. Relaxed: as in `lock`.
        self.next.compare_exchange(owner, owner.wrapping_add(TICKET), Relaxed, Relaxed).ok().map(drop)
    }

    #[inline(always)]
    fn unlock(&self, domain: &PvTicketDomain<P, CPUS>, (): ()) {
        let lock = self.address();
        // V4. Release: pairs with the acquiring loads of `owner`. Acquire: pairs with V2.
        let owner = self.owner.fetch_add(TICKET, mutant!("pv-ticket-relaxed-unlock": AcqRel => Relaxed));
        if owner & SLEEPERS != 0 {
            domain.platform.point(Point::SlowReleased);
            domain.kick_sleeper(lock, (owner & !SLEEPERS).wrapping_add(TICKET));
        }
    }
}
