#![doc = include_str!("../README.md")]
//!
//! # Reading order
//!
//! [`Kernel`] is what every host's platform asks of a kernel; [`kvm`], [`hyperv`] and [`xen`] have a `Guest` each, for what that host has
//! to know besides. Below lie `cpu` (instructions), `cpuid`, and `sleep`: how a CPU looks and sleeps in one step.
#![no_std]
#![cfg(target_arch = "x86_64")]

mod cpu;
mod cpuid;
pub mod hyperv;
mod kernel;
pub mod kvm;
mod sleep;
pub mod xen;

pub use kernel::Kernel;
