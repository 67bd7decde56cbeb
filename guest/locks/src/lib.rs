#![doc = include_str!("../README.md")]
//!
//! # Reading order
//!
//! [`Platform`], [`Lock`] and [`RwLock`] are the contract. Each lock has a module whose documentation holds its protocol
//! and the argument for it; [`ticket`] and [`mcs`] are short, [`qspinlock`] is the point of it all.

#![no_std]

pub mod clh;
#[cfg(coherence)]
pub mod coherence;
mod delegate;
mod domain;
mod event;
pub mod futex;
mod lock;
pub mod mcs;
#[doc(hidden)]
pub mod mutant;
pub mod mutex;
mod nesting;
mod none;
pub mod osq;
pub mod owner_yield;
mod padded;
mod patience;
mod platform;
mod point;
pub mod pv_ticket;
pub mod qspinlock;
mod queues;
pub mod races;
pub mod rw_fair;
mod rw_lock;
pub mod rw_percpu;
pub mod rw_unfair;
pub mod rwsem;
mod sleep;
mod sleepers;
pub mod slice_tas;
mod sync;
pub mod tas;
#[cfg(all(test, not(any(loom, shuttle, coherence))))]
mod test_platform;
pub mod ticket;
pub mod unfair_ticket;
mod wake;

pub use clh::{Clh, ClhDomain, ClhToken};
pub use delegate::Delegate;
pub use domain::Domain;
pub use event::Event;
pub use futex::FutexMutex;
pub use lock::Lock;
pub use mcs::{Mcs, McsDomain, McsToken};
pub use mutex::Mutex;
pub use nesting::LEVELS;
pub use none::NoLock;
pub use osq::{Osq, OsqNodes};
pub use owner_yield::{OwnerYield, OwnerYieldDomain};
pub use padded::CachePadded;
pub use platform::{Activity, Platform};
pub use point::Point;
pub use pv_ticket::{PvTicket, PvTicketDomain};
pub use qspinlock::*;
pub use queues::Queues;
pub use rw_fair::FairRwLock;
pub use rw_lock::RwLock;
pub use rw_percpu::{PerCpuReadToken, PerCpuRwDomain, PerCpuRwLock, ReaderSlot};
pub use rw_unfair::UnfairRwLock;
pub use rwsem::{Rules2018, RulesToday, RwSem, RwSemRules};
pub use sleep::SleepDomain;
pub use sleepers::{SleeperDomain, Sleepers, Wake};
pub use slice_tas::SliceTas;
pub use tas::Tas;
pub use ticket::Ticket;
pub use unfair_ticket::UnfairTicket;
