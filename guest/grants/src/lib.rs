//! Grant tables in miniature: how one domain of a hypervisor lets another one at its pages, under one lock or many.
//!
//! A granting domain publishes entries in a table that it shares with the hypervisor ([`SharedEntry`]). A mapping domain
//! asks the hypervisor to map what an entry grants ([`World::map`]), uses the page ([`World::mapped`]), and has it
//! unmapped, many at a time ([`World::unmap`]). Meanwhile the hypervisor pins the entry in a table of its own, and keeps
//! a handle for the mapping in the mapper's maptrack. The granter is hostile: it may change an entry at any
//! moment.
//!
//! Every disk request of every backend comes through one table, so its locks are what the throughput of all disks
//! hangs on. [`Scheme`] says which locks there are; `locking/mod.rs` in which order they are taken.
//!
//! No unsafe code: what a lock protects is held in relaxed atomics, so that a lock that fails shows as counts that do not
//! add up ([`World::rest`]) and never as undefined behaviour.

#![no_std]
#![forbid(unsafe_code)]

mod interface;
mod locking;
mod machine;
mod operations;
mod tables;
mod workload;

pub use interface::*;
pub use locking::*;
pub use machine::*;
pub use operations::*;
pub use tables::*;
pub use workload::*;
