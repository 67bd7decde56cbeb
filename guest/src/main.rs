//! The guest: a kernel that takes locks, and nothing else.
//!
//! Every vCPU is entered at [`haltkick_start`] in 64-bit mode, in ring 0 or ring 3 as the VMM chose, with tables,
//! segments and stack already set up. vCPU 0 measures what the others rely on and lets them start.
#![no_std]
#![no_main]

mod boot;
mod cpu;
mod image;
mod lock;
mod memory;
mod monitor;
mod observe;
mod traps;
mod work;
mod workloads;
