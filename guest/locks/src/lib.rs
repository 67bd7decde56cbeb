//! Spinlocks for kernels whose CPUs may be taken away.
#![no_std]

mod clh;
mod event;
mod lock;
mod mcs;
mod mutant;
mod nesting;
mod none;
mod owner_yield;
mod padded;
mod patience;
mod platform;
mod point;
mod pv_ticket;
mod qspinlock;
mod sync;
mod tas;
#[cfg(all(test, not(any(loom, shuttle))))]
mod test_platform;
mod ticket;
mod unfair_ticket;
mod wake;

pub use clh::{Clh, ClhDomain, ClhToken};
pub use event::Event;
pub use lock::Lock;
pub use mcs::{Mcs, McsDomain, McsToken};
pub use nesting::LEVELS;
pub use none::NoLock;
pub use owner_yield::{OwnerYield, OwnerYieldDomain};
pub use padded::CachePadded;
pub use platform::{Activity, Platform};
pub use point::Point;
pub use pv_ticket::{PvTicket, PvTicketDomain};
pub use qspinlock::*;
pub use tas::Tas;
pub use ticket::Ticket;
pub use unfair_ticket::UnfairTicket;
