//! Every interleaving and every permitted reordering, up to the bounds stated at each model.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p haltkick-locks --test loom`
//!
//! `LOOM_DEEPER=1` allows one preemption more than stated at each model, which takes hours.
//!
//! Loom knows the C11 memory model with these differences. It treats a sequentially consistent access as
//! acquire-release (fences are exact). A load never returns a value that is stored later in the same execution. And
//! stores that nothing orders have no modification order between them, so a plain store that races with exchanges may
//! stay invisible forever; of the locks here, only the unfair ticket lock does that. The table of sleeping heads has
//! one line.
//!
//! For each atomic, loom remembers one access to look for races with, the last. Where a CPU has loaded, and another one
//! loads and then stores, its own load hides the first one. The order in which the store came before is then tried only
//! if another access leads there. A model of such code begins with the thread that stores, and asserts that it reaches
//! its subject.

#![cfg(loom)]

mod family;
mod model;
mod nested;
mod osq;
mod qspinlock;
mod rqspinlock;
mod sleeping;
