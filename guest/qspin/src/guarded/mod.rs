//! Values that only the holder of a lock can reach: [`Mutex`], [`RwLock`], and with the features `lock_api` and `lock_api_04` the raw
//! locks of that crate.
//!
//! A lock of this crate is given its domain at each call, so that it is as small as its protocol allows. A guard has to know it
//! without being told: a [`home!`](crate::home) is a type that names a domain, which no code can reach but guards.
//!
//! ```
//! # mod threads { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host/threads.rs")); }
//! # use threads::Threads;
//! use haltkick_qspin::{QSpinDomain, QSpinLock, Pv, Ticket, guarded::Mutex, home};
//!
//! home! {
//!     /// What the queue spinlocks of this kernel share.
//!     pub Queues: QSpinDomain<Threads, 64> = QSpinDomain::new(Threads);
//!     /// Locks without memory of their own need the platform alone.
//!     pub Plain: Threads = Threads;
//! }
//!
//! static JIFFIES: Mutex<u64, Ticket, Plain> = Mutex::new(0);
//! static RUNNABLE: Mutex<[u32; 8], QSpinLock<Pv>, Queues> = Mutex::new([0; 8]);
//!
//! std::thread::scope(|scope| {
//!     for cpu in 0..4 {
//!         scope.spawn(move || {
//!             RUNNABLE.lock()[cpu] += 1;
//!             *JIFFIES.lock() += 1;
//!         });
//!     }
//! });
//! assert_eq!(*JIFFIES.lock(), 4);
//! assert_eq!(RUNNABLE.try_lock().map(|counts| counts.iter().sum()), Some(4));
//! ```
//!
//! A guarded lock is made free and never handed in, for safe code could have released it without having it:
//!
//! ```compile_fail,E0599
//! # mod threads { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host/threads.rs")); }
//! # use threads::Threads;
//! # use haltkick_qspin::{FairRwLock, Ticket, guarded::RwLock, home};
//! # home! { Plain: Threads = Threads; }
//! let lock = FairRwLock::new(Ticket::new());
//! let value: RwLock<u64, FairRwLock<Ticket>, Plain> = RwLock::with_lock(lock, 0);
//! ```
//!
//! A value behind a lock that does not exclude ([`Exclusive`](crate::Exclusive)) cannot be taken, and a guard stays on the CPU that took it:
//!
//! ```compile_fail,E0277
//! # mod threads { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host/threads.rs")); }
//! # use threads::Threads;
//! # use haltkick_qspin::{Ticket, guarded::Mutex, home};
//! # home! { Plain: Threads = Threads; }
//! static JIFFIES: Mutex<u64, Ticket, Plain> = Mutex::new(0);
//! let guard = JIFFIES.lock();
//! std::thread::spawn(move || drop(guard));
//! ```

mod check;
mod exclude;
// Loom's locks cannot be made in a constant.
#[cfg(not(loom))]
mod free;
mod home;
mod interrupts;
#[cfg(all(feature = "lock_api", not(loom)))]
mod lock_api;
#[cfg(all(feature = "lock_api_04", not(loom)))]
mod lock_api_04;
mod mutex;
mod rw_lock;

#[cfg(not(loom))]
pub use free::Free;
pub use home::Home;
#[cfg(all(feature = "lock_api", not(loom)))]
pub use lock_api::{Held, RawLock};
#[cfg(all(feature = "lock_api_04", not(loom)))]
pub use lock_api_04::TokenlessLock;
pub use mutex::{Mutex, MutexGuard};
pub use rw_lock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
