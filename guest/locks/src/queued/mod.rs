//! Locks whose waiters queue, each looking at a line of its own. The queue spinlock is one, too, in a
//! room of its own; [`resilient`] is made of it.

pub mod gcr;
pub mod mcs;
pub mod owner_yield;
pub mod resilient;

pub use gcr::{Gcr, GcrDomain};
pub use mcs::{Mcs, McsDomain, McsToken};
pub use owner_yield::{OwnerYield, OwnerYieldDomain};
pub use resilient::{FallibleLock, LockError, RqSpinDomain, RqSpinLock};
