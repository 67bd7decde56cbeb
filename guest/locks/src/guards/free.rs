//! Locks of this crate that can be made in a constant.

use haltkick_qspin::{Word, free, guarded::Free};

use crate::{
    centralized::{PvTicket, SliceTas, UnfairTicket},
    queued::{Clh, CnaLive, FlexGuard, Gcr, GcrOver, Mcs, McsTp, OwnerQueue, RqSpinLock, Rules},
    reader_writer::{PerCpuRwLock, UnfairRwLock},
};

free! {
    [] SliceTas = Self::new();
    [] UnfairTicket = Self::new();
    [] PvTicket = Self::new();
    [] Mcs = Self::new();
    [] Clh = Self::new();
    [] McsTp = Self::new();
    [] CnaLive = Self::new();
    [const WORDS: usize] FlexGuard<WORDS> = Self::new();
    [] Gcr = Self::new();
    [L: Free] GcrOver<L> = Self::new(L::FREE);
    [R: Rules] OwnerQueue<R> = Self::new();
    [W: Word] RqSpinLock<W> = Self::new();
    [] UnfairRwLock = Self::new();
    [U: Free] PerCpuRwLock<U> = Self::new(U::FREE);
}
