//! Spinlocks for kernels whose CPUs may be taken away.
#![no_std]

mod event;
mod lock;
mod platform;
mod point;

pub use event::Event;
pub use lock::Lock;
pub use platform::{Activity, Platform};
pub use point::Point;
