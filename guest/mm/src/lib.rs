//! A memory manager in miniature, with the page-fault paths of three generations of Linux.
//!
//! An address space ([`Mm`]) is a tree of areas ([`Vma`]) and a page table that the CPU walks. Everything that changes the
//! tree holds `mmap_sem` for writing. The fault path ([`Space::fault`]) differs by [`Scheme`]. All but the first fall back to the
//! first where they cannot go on.
//!
//! The crate knows no hardware: a [`Machine`] holds the page tables, drops cached translations and brings its locks. So the
//! same source serves faults in a guest and is explored by shuttle on the host.
//!
//! # Memory that is never given back
//!
//! [`Page`] records and [`Vma`] slots are type-stable: a late access finds a record of the same kind, perhaps
//! of another page or area, and validation detects that. This lets the speculative walk run without disabled
//! interrupts. (Kernels use those to hold off the freeing of page tables. That stops working where a hypervisor
//! acknowledges invalidations in the name of a CPU that is not running, as this project's does.)
#![no_std]

mod address_space;
mod contract;
mod page_faults;
mod records;

pub use address_space::*;
pub use contract::*;
pub use records::*;
