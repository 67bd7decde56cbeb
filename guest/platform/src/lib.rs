#![doc = include_str!("../README.md")]
//!
//! # Reading order
//!
//! [`Kernel`] is what the platform asks of any kernel; [`kvm`] has a `Guest`, for what KVM has to know in addition. Below lie `cpu`
//! (instructions), `cpuid`, and `sleep`: how a CPU looks and sleeps in one step.
#![no_std]
#![cfg(target_arch = "x86_64")]

mod cpu;
mod cpuid;
mod kernel;
pub mod kvm;
mod sleep;

pub use cpuid::tsc_khz;
pub use kernel::Kernel;
