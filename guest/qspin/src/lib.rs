#![doc = include_str!("../README.md")]
//!
//! # Reading order
//!
//! [`Platform`], [`Lock`] and [`RwLock`] are the contract. Each lock has a module whose documentation holds its protocol
//! and the argument for it; [`tas`] and [`ticket`] are short, [`qspinlock`] is the point of it all.
//!
//! The sources lie in rooms, from the ground up: `memory` (atomics), `faults` (races by name, faults for tests),
//! `contract`, `waiting` (what waiters of several locks share), then the locks: `centralized` (waiters look at the lock), `qspinlock`
//! and `reader_writer`. A room imports from those before it only.

#![no_std]

// Hidden modules are for the crate `haltkick-locks`, whose locks are made of the same parts. They are no part of the interface: they
// change with any version.
#[doc(hidden)]
pub mod centralized;
#[doc(hidden)]
pub mod contract;
#[doc(hidden)]
pub mod faults;
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
