//! Folding: a guest that loses much of its CPU time to others moves its tasks to fewer vCPUs.
//!
//! [`Governor`] says when, from stolen time alone. [`Queues`] holds the tasks of each vCPU, and moves them.
#![no_std]

mod governor;
mod queues;

pub use governor::{Governor, Law, Step};
pub use queues::Queues;
