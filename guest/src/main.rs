//! The guest: a kernel that takes locks, and nothing else.
//!
//! Every vCPU is entered at [`haltkick_start`] in 64-bit mode, in ring 0 or ring 3 as the VMM chose, with tables,
//! segments and stack already set up. vCPU 0 measures what the others rely on and lets them start.
#![no_std]
#![no_main]

mod activity;
mod apic;
mod arena;
mod bare;
mod calls;
mod choice;
mod console;
mod cost;
mod events;
mod exceptions;
mod faults;
mod field;
mod footprint;
mod foreign;
mod grace;
mod halt;
mod histogram;
mod hot;
mod hypercall;
mod kind;
mod locks;
mod measure;
mod memory;
mod mmu;
mod oracle;
mod panic;
mod parts;
mod percpu;
mod platform;
mod pool;
mod random;
mod registry;
mod relax;
mod stamp;
mod time;
mod trace;
mod user;
mod workloads;

mod entry;
