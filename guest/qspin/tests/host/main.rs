//! The locks on a machine made of host threads.

#![cfg(not(any(loom, shuttle, liveness)))]

// Without optimisation the lock's functions are called.
#[cfg(all(target_arch = "aarch64", not(debug_assertions)))]
mod aarch64;
mod borrowed;
#[cfg(feature = "checked")]
mod checked;
mod chosen;
mod conserving;
mod family;
#[cfg(all(target_arch = "x86_64", not(any(windows, target_vendor = "apple", miri))))]
mod patched;
mod qspinlock;
mod support;
mod threads;
