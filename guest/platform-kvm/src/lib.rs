#![doc = include_str!("../README.md")]
#![no_std]
#![cfg(target_arch = "x86_64")]

mod features;
mod halt;
mod kvm;
mod steal;

pub use features::Features;
pub use kvm::{Kernel, Kvm};
