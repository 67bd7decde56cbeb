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

mod centralized;
#[cfg(not(liveness))]
mod guards;
mod queued;
pub mod reader_writer;
mod sleeping;
mod waiting;

pub use centralized::*;
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri, liveness))))]
pub use haltkick_qspin::Packed;
#[cfg(feature = "checked")]
pub use haltkick_qspin::checks;
#[doc(hidden)]
pub use haltkick_qspin::mutant;
#[cfg(all(
    target_arch = "x86_64",
    not(any(windows, target_vendor = "apple", loom, shuttle, miri, liveness))
))]
pub use haltkick_qspin::patched_choice;
#[cfg(liveness)]
pub use haltkick_qspin::watched;
pub use haltkick_qspin::{
    Activity, BorrowedQSpinDomain, Bounded, CachePadded, Choice, Chosen, DefaultWord, Delegate, Domain,
    Event, Exclusive, ExclusiveWriter, FairRwLock, Interrupts, LEVELS, Latch, Lock, Mode, Native, Platform,
    Point, Pv, QSpinCpu, QSpinDomain, QSpinLine, QSpinLock, Queues, RwLock, Tas, Ticket, TooLate, TrustedCpu,
    V16, VirtTas, Whole, Word, WorkConserving, choice, fair, qspinlock, races, tas, ticket,
};
#[cfg(not(liveness))]
pub use haltkick_qspin::{guarded, home};
pub use queued::*;
pub use reader_writer::{PerCpuReadToken, PerCpuRwDomain, PerCpuRwLock, ReaderSlot, UnfairRwLock};
pub use sleeping::*;
pub use waiting::*;
