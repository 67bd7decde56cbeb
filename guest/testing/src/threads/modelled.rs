//! Threads of loom, which tries every interleaving of them.

use std::{
    cell::Cell,
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use loom::{sync::Notify, thread};

loom::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
}

pub(crate) fn become_cpu(cpu: usize) {
    CPU.with(|this| this.set(cpu));
}

pub(crate) fn cpu() -> usize {
    CPU.with(Cell::get)
}

pub(crate) fn yield_now() {
    thread::yield_now();
}

/// No draw: the host's answers are the same for the length of a model, and each of its answers has models of
/// its own.
pub(crate) fn draw(_: u64) -> Option<u64> {
    None
}

/// Sleep of one CPU. Each sleep may once end spuriously.
pub(crate) struct Latch(Notify);

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Latch")
    }
}

impl Latch {
    pub(crate) fn new() -> Self {
        Self(Notify::new())
    }

    pub(crate) fn sleep(&self) {
        self.0.wait();
    }

    pub(crate) fn kick(&self) {
        self.0.notify();
    }
}

/// Counts the pauses of all CPUs, so that time passes where a CPU waits, and adds no interleavings.
#[derive(Debug)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn paused(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}
