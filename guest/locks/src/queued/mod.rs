//! Locks whose waiters queue, each looking at a line of its own. The queue spinlock is one, too, in a
//! room of its own; [`resilient`] is made of it.

pub mod clh;
pub mod cna_live;
pub mod flexguard;
pub mod gcr;
pub mod mcs;
pub mod mcs_tp;
pub mod owner_yield;
pub mod resilient;

pub use clh::{Clh, ClhDomain, ClhToken};
pub use cna_live::{CnaDomain, CnaLive, CnaToken};
pub use flexguard::{FlexGuard, FlexGuardDomain};
pub use gcr::{Gcr, GcrDomain};
pub use mcs::{Mcs, McsDomain, McsToken};
pub use mcs_tp::{McsTp, McsTpDomain, McsTpToken};
pub use owner_yield::{OwnerQueue, OwnerYield, OwnerYieldDomain, Powerpc, Rules};
pub use resilient::{FallibleLock, LockError, RqSpinDomain, RqSpinLock};
