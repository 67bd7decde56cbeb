//! Locks that can be made in a constant.

use crate::{
    centralized::{Tas, Ticket},
    memory::CachePadded,
    qspinlock::{Mode, QSpinLock, Word},
    reader_writer::FairRwLock,
};

/// A lock that can be made in a constant.
pub trait Free {
    /// A free lock.
    const FREE: Self;
}

/// `free!([parameters] Type = value; ...)`.
#[doc(hidden)]
#[macro_export]
macro_rules! free {
    ($([$($parameters:tt)*] $lock:ty = $free:expr;)+) => {$(
        impl<$($parameters)*> $crate::guarded::Free for $lock {
            const FREE: Self = $free;
        }
    )+};
}

free! {
    [] Tas = Self::new();
    [] Ticket = Self::new();
    [M: Mode, W: Word] QSpinLock<M, W> = Self::new();
    [L: Free] FairRwLock<L> = Self::new(L::FREE);
    [L: Free] CachePadded<L> = Self::new(L::FREE);
}
