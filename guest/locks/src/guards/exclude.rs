//! Which locks of this crate exclude, and where each is argued for.
//!
//! Not here are [`NoLock`](crate::NoLock), which does not; [`UnfairTicket`](crate::UnfairTicket), which does not if 2^16 CPUs wait for
//! it; the sleeping locks, see [`guarded`](crate::guarded); and [`PerCpuRwLock`] over anything but [`UnfairRwLock`], for its domain has a
//! reference to another one, which may not be a guard's.
#![expect(unsafe_code, reason = "these are the promises")]

use haltkick_qspin::{Domain, Exclusive, ExclusiveWriter, Platform, Word};

use crate::{
    centralized::{PvTicket, PvTicketDomain, SliceTas},
    queued::{
        Clh, ClhDomain, CnaDomain, CnaLive, FlexGuard, FlexGuardDomain, Gcr, GcrDomain, GcrOver,
        GcrOverDomain, Mcs, McsDomain, McsTp, McsTpDomain, OwnerQueue, OwnerYieldDomain, RqSpinDomain,
        RqSpinLock, Rules,
    },
    reader_writer::{PerCpuRwDomain, PerCpuRwLock, ReaderSlot, UnfairRwLock},
};

// SAFETY: as `Tas`.
unsafe impl<P: Platform> Exclusive<P> for SliceTas {}

// SAFETY: as `Ticket`, whose two counters it has: who sleeps, and who is kicked, takes nothing.
unsafe impl<P: Platform, const CPUS: usize> Exclusive<PvTicketDomain<P, CPUS>> for PvTicket {}

// SAFETY: the tail is exchanged, so each node has one successor, and is handed the lock by its predecessor alone. Nodes are the
// calling CPU's, which `TrustedCpu` tells from others'.
unsafe impl<P: Platform, const CPUS: usize> Exclusive<McsDomain<P, CPUS>> for Mcs {}

// SAFETY: as `Mcs`; nodes that are aside wait for an owner to grant one of them the lock.
unsafe impl<P: Platform, const CPUS: usize> Exclusive<CnaDomain<P, CPUS>> for CnaLive {}

// SAFETY: as `Mcs`; see the module for the nodes that are skipped.
unsafe impl<P: Platform, const CPUS: usize> Exclusive<McsTpDomain<P, CPUS>> for McsTp {}

// SAFETY: the tail is exchanged, so each node is waited for by one CPU; see the module for trying. Nodes as for `Mcs`.
unsafe impl<P: Platform, const CPUS: usize, const LOCKS: usize> Exclusive<ClhDomain<P, CPUS, LOCKS>> for Clh {}

// SAFETY: only an atomic operation that turns the bit from 0 to 1 takes it, which acquires what the release of it published.
unsafe impl<P: Platform, const CPUS: usize> Exclusive<GcrDomain<P, CPUS>> for Gcr {}

// SAFETY: only an exchange of a free word takes it, which acquires what the release published.
unsafe impl<P: Platform, const CPUS: usize, const WORDS: usize> Exclusive<FlexGuardDomain<P, CPUS>>
    for FlexGuard<WORDS>
{
}

// SAFETY: it is taken by taking the inner lock, and released by releasing that.
unsafe impl<L: Exclusive<D>, P: Platform, D, const CPUS: usize> Exclusive<GcrOverDomain<P, D, CPUS>>
    for GcrOver<L>
{
}

// SAFETY: see the module's words on who may take it. Nodes as for `Mcs`.
unsafe impl<R: Rules, P: Platform, const CPUS: usize> Exclusive<OwnerYieldDomain<P, CPUS>> for OwnerQueue<R> {}

// SAFETY: as `QSpinLock`; see the module for CPUs that give up.
unsafe impl<W: Word, P: Platform, const CPUS: usize> Exclusive<RqSpinDomain<P, CPUS>> for RqSpinLock<W> {}

// SAFETY: a writer takes it by a compare-exchange from "no owner"; a reader adds itself, and is one only if there was
// no writer.
unsafe impl<D: Domain> ExclusiveWriter<D> for UnfairRwLock {
    const READERS_NEST: bool = true;

    #[inline(always)]
    fn is_crowded(&self) -> bool {
        self.is_crowded()
    }
}

// SAFETY: writers exclude each other by the lock underneath, which shares nothing but the platform. Of a reader that fills
// its slot and a writer that sets its flag, one sees the other; slots are the calling CPU's, one reader each.
unsafe impl<P: Platform, const CPUS: usize> ExclusiveWriter<PerCpuRwDomain<&'static P, [ReaderSlot; CPUS]>>
    for PerCpuRwLock<UnfairRwLock>
{
    #[inline(always)]
    fn is_crowded(&self) -> bool {
        self.underneath().is_crowded()
    }
}
