//! Threads of shuttle, which tries random schedules of them.

use std::{
    cell::Cell,
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use shuttle::{
    rand::{Rng, thread_rng},
    sync::{Condvar, Mutex},
    thread,
};

shuttle::thread_local! {
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

/// A number below `end`.
pub(crate) fn draw(end: u64) -> Option<u64> {
    Some(thread_rng().gen_range(0..end))
}

/// Sleep of one CPU.
#[derive(Default)]
pub(crate) struct Latch {
    kicked: Mutex<bool>,
    kick: Condvar,
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Latch")
    }
}

impl Latch {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn sleep(&self) {
        let mut kicked = self.kicked.lock().unwrap();
        while !*kicked {
            kicked = self.kick.wait(kicked).unwrap();
        }
        *kicked = false;
    }

    pub(crate) fn kick(&self) {
        *self.kicked.lock().unwrap() = true;
        self.kick.notify_one();
    }
}

/// Counts the looks at it.
#[derive(Debug)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.fetch_add(1, Relaxed)
    }

    pub(crate) fn paused(&self) {}
}
