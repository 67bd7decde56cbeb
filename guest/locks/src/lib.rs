//! Spinlocks for kernels whose CPUs may be taken away.
#![no_std]

mod event;
mod lock;
mod mcs;
mod none;
mod padded;
mod patience;
mod platform;
mod point;
mod qspinlock;
mod sync;
mod tas;
mod ticket;
mod wake;

pub use event::Event;
pub use lock::Lock;
pub use mcs::{Mcs, McsDomain, McsToken};
pub use none::NoLock;
pub use padded::CachePadded;
pub use platform::{Activity, Platform};
pub use point::Point;
pub use qspinlock::*;
pub use tas::Tas;
pub use ticket::Ticket;
