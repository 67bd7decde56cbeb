//! Folding: a guest that loses much of its CPU time to others moves its tasks to fewer vCPUs. (A test of the VMM compiles these files
//! for the host, with their tests.)
//!
//! [`Governor`] says when, from stolen time alone. [`Queues`] holds the tasks of each vCPU, and moves them.

mod governor;
mod queues;

pub(crate) use governor::{Governor, Law};
pub(crate) use queues::Queues;
