//! The locks on a machine made of host threads.

#![cfg(not(any(loom, shuttle, liveness)))]

mod cna_live;
mod family;
mod flexguard;
mod gcr;
mod heartbeat;
mod mcs_tp;
mod owner_yield;
mod powerpc;
mod rqspinlock;
mod rw;
mod rwsem;
mod sizes;
mod slice_tas;
mod sources;
#[path = "../../../qspin/tests/host/support.rs"]
mod support;
