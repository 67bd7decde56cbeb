//! The locks on a machine made of host threads.

#![cfg(not(any(loom, shuttle, liveness)))]

mod borrowed;
mod chosen;
mod conserving;
mod family;
mod guarded;
mod owner_yield;
mod qspinlock;
mod rw;
mod rwsem;
mod sizes;
mod support;
mod threads;
