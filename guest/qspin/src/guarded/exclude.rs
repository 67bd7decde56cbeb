//! Which locks exclude: the list of this crate's, and where each is argued for.
#![expect(unsafe_code, reason = "these are the promises")]

use crate::{
    centralized::{Tas, Ticket},
    contract::{Domain, Exclusive, ExclusiveWriter, Platform},
    memory::CachePadded,
    qspinlock::{BorrowedQSpinDomain, Mode, QSpinDomain, QSpinLock, Word},
    reader_writer::FairRwLock,
};

// SAFETY: only a compare-exchange from 0 to 1 takes it, which acquires what the store of 0 released.
unsafe impl<P: Platform> Exclusive<P> for Tas {}

// SAFETY: a ticket is drawn once, and `owner`, which only the holder writes, has one value at a time.
unsafe impl<P: Platform> Exclusive<P> for Ticket {}

// SAFETY: "Why it excludes" in the module's documentation. Modes and words are sealed. Nodes as for `Mcs`.
unsafe impl<M: Mode, W: Word, P: Platform, const CPUS: usize, const LINES: usize>
    Exclusive<QSpinDomain<P, CPUS, LINES>> for QSpinLock<M, W>
{
}

// SAFETY: the same lock on the same nodes, which a domain that borrows them has to itself.
unsafe impl<M: Mode, W: Word, P: Platform> Exclusive<BorrowedQSpinDomain<'_, P>> for QSpinLock<M, W> {}

// SAFETY: it is the lock that it pads.
unsafe impl<D, L: Exclusive<D>> Exclusive<D> for CachePadded<L> {}

// SAFETY: one CPU at a time is first in the queue, by `L`. A writer stays there until all readers have left, and no reader
// gets past it.
unsafe impl<D: Domain, L: Exclusive<D>> ExclusiveWriter<D> for FairRwLock<L> {
    #[inline(always)]
    fn is_crowded(&self) -> bool {
        self.is_crowded()
    }
}
