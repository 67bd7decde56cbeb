//! The locks on a machine made of host threads.

#![cfg(not(any(loom, shuttle, liveness)))]

// Without optimisation the lock's functions are called.
#[cfg(all(target_arch = "aarch64", not(debug_assertions)))]
mod aarch64;
mod conserving;
mod family;
mod gcr;
mod owner_yield;
mod qspinlock;
mod rqspinlock;
mod rw;
mod rwsem;
mod sizes;
mod sources;
mod support;
