//! Every interleaving and every permitted reordering, up to the bounds stated at each model.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p haltkick-locks --test loom`
//!
//! `LOOM_DEEPER=1` allows one preemption more than stated at each model, which takes hours.
//!
//! Loom knows the C11 memory model except that it treats a sequentially consistent access as acquire-release
//! (fences are exact), and that a modification order never contradicts the order of execution. So what it
//! reports is a bug, and what it does not report is right on x86 and nearly always elsewhere.

#![cfg(loom)]

mod family;
mod model;
mod qspinlock;
