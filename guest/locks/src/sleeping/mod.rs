//! Locks whose waiters sleep, and the queue in which some of them spin first.

pub mod futex;
pub mod mutex;
pub mod osq;
pub mod rwsem;
mod sleep;

pub use futex::FutexMutex;
pub use mutex::Mutex;
pub use osq::{Osq, OsqNodes};
pub use rwsem::{Rules2018, RulesToday, RwSem, RwSemRules};
pub use sleep::SleepDomain;
