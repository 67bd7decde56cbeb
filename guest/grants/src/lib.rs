//! Grant tables in miniature: how one domain of a hypervisor lets another one at its pages, under one lock or many.
//!
//! A granting domain publishes entries in a table that it shares with the hypervisor ([`SharedEntry`]). A mapping domain
//! asks the hypervisor to map what an entry grants ([`World::map`]), uses the page ([`World::mapped`]), and has it
//! unmapped, many at a time ([`World::unmap`]). Meanwhile the hypervisor pins the entry in a table of its own, and keeps
//! a handle for the mapping in the mapper's maptrack. The granter is not to be trusted: it may change an entry at any
//! moment.
//!
//! Every disk request of every backend comes through one table, so its locks are what the throughput of all disks
//! hangs on. [`Scheme`] says which locks there are; `order.rs` in which order they are taken.
//!
//! No unsafe code: what a lock protects is held in relaxed atomics, so that a lock that fails shows as counts that do not
//! add up ([`World::rest`]) and never as undefined behaviour.

#![no_std]
#![forbid(unsafe_code)]

mod access;
mod active;
mod copy;
mod frames;
mod guarded;
mod iommu;
mod kernel_lock;
mod maintain;
mod map;
mod maptrack;
mod memory;
mod order;
mod reach;
mod rest;
mod scheme;
mod shared;
mod status;
mod stream;
mod sync;
mod table;
mod transfer;
mod unmap;
mod vcpu;
mod window;
mod world;

use haltkick_locks::mutant;

pub use access::{DEVICE_MAP, HOST_MAP, READONLY_MAP};
pub use copy::{CopyRequest, Place};
pub use frames::{PAGE_BYTES, PAGE_WORDS, Page};
pub use kernel_lock::KernelLock;
pub use map::MapRequest;
pub use memory::Memory;
pub use rest::Rest;
pub use scheme::*;
pub use shared::{
    ACCEPT_TRANSFER, PERMIT_ACCESS, READING, READONLY, SharedEntry, TRANSFER_COMMITTED, TRANSFER_COMPLETED,
    TRIES, TYPE, WRITING,
};
pub use status::Status;
pub use stream::*;
pub use table::ENTRIES_PER_PAGE;
pub use transfer::TransferRequest;
pub use unmap::BATCH;
pub use vcpu::{Counter, Vcpu};
pub use world::{Sizes, World};
