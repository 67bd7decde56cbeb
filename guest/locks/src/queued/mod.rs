//! Locks whose waiters queue, each looking at a line of its own. The queue spinlock is one, too, in a
//! room of its own; [`rqspinlock`] is made of it.

pub mod gcr;
pub mod mcs;
pub mod owner_yield;
pub mod rqspinlock;

pub use gcr::{Gcr, GcrDomain};
pub use mcs::{Mcs, McsDomain, McsToken};
pub use owner_yield::{OwnerYield, OwnerYieldDomain};
pub use rqspinlock::{LockError, RqSpinDomain, RqSpinLock};
