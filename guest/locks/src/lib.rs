#![doc = include_str!("../README.md")]
//!
//! # Reading order
//!
//! [`Platform`], [`Lock`] and [`RwLock`] are the contract. Each lock has a module whose documentation holds its protocol
//! and the argument for it; [`tas`], [`ticket`] and [`mcs`] are short, [`qspinlock`] is the point of it all.
//!
//! The sources lie in rooms, from the ground up: `memory` (atomics), `faults` (races by name, faults for tests), `contract`,
//! `waiting` (what waiters of several locks share), then the locks: `centralized` (waiters look at the lock), `qspinlock`, `queued`,
//! `reader_writer` and `sleeping`. A room imports from those before it only.

#![no_std]
#![expect(clippy::new_without_default, reason = "locks are made in statics, where Default cannot be used")]

mod centralized;
mod contract;
mod faults;
mod memory;
pub mod qspinlock;
mod queued;
pub mod reader_writer;
mod sleeping;
mod waiting;

pub use centralized::*;
pub use contract::{Activity, Domain, Event, Lock, Platform, Point, Queues, RwLock};
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
pub use waiting::LEVELS;
