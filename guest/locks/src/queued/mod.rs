//! Locks whose waiters queue, each looking at a line of its own. The queue spinlock is one, too, and has a
//! [room](crate::qspinlock) to itself.

pub mod clh;
pub mod gcr;
pub mod mcs;
pub mod owner_yield;

pub use clh::{Clh, ClhDomain, ClhToken};
pub use gcr::{Gcr, GcrDomain};
pub use mcs::{Mcs, McsDomain, McsToken};
pub use owner_yield::{OwnerYield, OwnerYieldDomain};
