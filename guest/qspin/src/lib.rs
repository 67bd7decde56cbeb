#![doc = include_str!("../README.md")]
//!
//! # Reading order
//!
//! [`Platform`], [`Lock`] and [`RwLock`] are the contract. Each lock has a module whose documentation holds its protocol
//! and the argument for it; [`tas`] and [`ticket`] are short, [`qspinlock`] is the point of it all.
//!
//! The sources lie in rooms, from the ground up: `memory` (atomics), `faults` (races by name, faults for tests),
//! `checks` (faults in the use of locks, with the feature `checked`), `contract`,
//! `waiting` (what waiters of several locks share), then the locks: `centralized` (waiters look at the lock), `qspinlock` and
//! `reader_writer`; and `guarded`, values that only the holder of a lock can reach. A room imports from those before it only.

#![no_std]

/// The examples of pages that are no part of the documentation here.
#[cfg(doctest)]
#[doc = include_str!("../REPLACE-SPIN.md")]
mod pages {}

/// Without the feature `checked` there are no checks:
///
/// ```compile_fail,E0432
/// use haltkick_qspin::checks::Checks;
/// ```
#[cfg(all(doctest, not(feature = "checked")))]
mod unchecked {}

// Hidden modules are for the crate `haltkick-locks`, whose locks are made of the same parts. They are no part of the interface: they
// change with any version.
#[doc(hidden)]
pub mod centralized;
#[cfg(feature = "checked")]
pub mod checks;
#[doc(hidden)]
pub mod contract;
#[doc(hidden)]
pub mod faults;
#[cfg(not(liveness))]
pub mod guarded;
#[doc(hidden)]
pub mod memory;
pub mod qspinlock;
mod reader_writer;
#[doc(hidden)]
pub mod waiting;

pub use centralized::*;
pub use contract::*;
#[doc(hidden)]
pub use faults::mutant;
pub use faults::races;
pub use memory::CachePadded;
#[cfg(liveness)]
pub use memory::watched;
pub use qspinlock::*;
pub use reader_writer::{FairRwLock, fair};
pub use waiting::nesting::LEVELS;
