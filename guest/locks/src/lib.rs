#![doc = include_str!("../README.md")]
//!
//! # Reading order
//!
//! [`Platform`], [`Lock`] and [`RwLock`] are the contract. Each lock has a module whose documentation holds its protocol
//! and the argument for it; [`ticket`] and [`mcs`] are short, [`qspinlock`] is the point of it all.
//!
//! The sources lie in rooms, from the ground up: `memory` (atomics), `faults` (races by name, faults for tests), `contract`,
//! `waiting` (what waiters of several locks share), then the locks: `centralized` (waiters look at the lock), `queued`,
//! `qspinlock`, `reader_writer`, `sleeping`; and `guarded`, values that only the holder of a lock can reach. A room imports from those before it only.

#![no_std]

/// The examples of pages that are no part of the documentation here.
#[cfg(doctest)]
#[doc = include_str!("../REPLACE-SPIN.md")]
mod pages {}

mod centralized;
mod contract;
mod faults;
#[cfg(not(liveness))]
pub mod guarded;
mod memory;
pub mod qspinlock;
mod queued;
pub mod reader_writer;
mod sleeping;
mod waiting;

pub use centralized::*;
pub use contract::*;
#[doc(hidden)]
pub use faults::mutant;
pub use faults::races;
pub use memory::CachePadded;
#[cfg(liveness)]
pub use memory::watched;
pub use qspinlock::*;
pub use queued::*;
pub use reader_writer::{
    FairRwLock, PerCpuReadToken, PerCpuRwDomain, PerCpuRwLock, ReaderSlot, UnfairRwLock,
};
pub use sleeping::*;
pub use waiting::*;
