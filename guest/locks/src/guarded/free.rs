//! Locks that can be made in a constant.

use crate::{
    centralized::{PvTicket, SliceTas, Tas, Ticket, UnfairTicket},
    memory::CachePadded,
    qspinlock::{Mode, QSpinLock, RqSpinLock, Word},
    queued::{Clh, CnaLive, Gcr, GcrOver, Mcs, McsTp, OwnerYield},
    reader_writer::{FairRwLock, PerCpuRwLock, UnfairRwLock},
};

/// A lock that can be made in a constant.
pub trait Free {
    /// A free lock.
    const FREE: Self;
}

/// `free!([parameters] Type = value; ...)`.
macro_rules! free {
    ($([$($parameters:tt)*] $lock:ty = $free:expr;)+) => {$(
        impl<$($parameters)*> Free for $lock {
            const FREE: Self = $free;
        }
    )+};
}

free! {
    [] Tas = Self::new();
    [] SliceTas = Self::new();
    [] Ticket = Self::new();
    [] UnfairTicket = Self::new();
    [] PvTicket = Self::new();
    [] Mcs = Self::new();
    [] Clh = Self::new();
    [] McsTp = Self::new();
    [] CnaLive = Self::new();
    [] Gcr = Self::new();
    [L: Free] GcrOver<L> = Self::new(L::FREE);
    [] OwnerYield = Self::new();
    [M: Mode, W: Word] QSpinLock<M, W> = Self::new();
    [W: Word] RqSpinLock<W> = Self::new();
    [] UnfairRwLock = Self::new();
    [L: Free] FairRwLock<L> = Self::new(L::FREE);
    [U: Free] PerCpuRwLock<U> = Self::new(U::FREE);
    [L: Free] CachePadded<L> = Self::new(L::FREE);
}
