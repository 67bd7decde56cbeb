#![doc = include_str!("../README.md")]
//!
//! # Reading order
//!
//! [`Platform`], [`Lock`] and [`RwLock`] are the contract. Each lock has a module whose documentation holds its protocol
//! and the argument for it; [`ticket`] and [`mcs`] are short, [`qspinlock`] is the point of it all.
//!
//! The sources lie in rooms, from the ground up: `memory` (atomics), `faults` (races by name, faults for tests), `contract`,
//! `waiting` (what waiters of several locks share), then the locks: `centralized` (waiters look at the lock), `queued`,
//! `qspinlock`, `reader_writer` and `sleeping`. A room imports from those before it only.

#![no_std]

mod centralized;
mod queued;
pub mod reader_writer;
mod sleeping;
mod waiting;

pub use centralized::*;
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri, liveness))))]
pub use haltkick_qspin::Packed;
#[doc(hidden)]
pub use haltkick_qspin::mutant;
#[cfg(liveness)]
pub use haltkick_qspin::watched;
pub use haltkick_qspin::{
    Activity, Bounded, CachePadded, DefaultWord, Delegate, Domain, Event, FairRwLock, LEVELS, Lock, Mode,
    Native, Platform, Point, Pv, QSpinDomain, QSpinLock, Queues, RwLock, Tas, Ticket, V16, VirtTas, Whole,
    Word, WorkConserving, fair, qspinlock, races, tas, ticket,
};
pub use queued::*;
pub use reader_writer::{PerCpuReadToken, PerCpuRwDomain, PerCpuRwLock, ReaderSlot, UnfairRwLock};
pub use sleeping::*;
pub use waiting::*;
