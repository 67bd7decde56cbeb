//! Threads of the host.

use std::{
    cell::Cell,
    sync::{Condvar, Mutex},
    thread,
    time::Instant,
};

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
}

pub(crate) fn become_cpu(cpu: usize) {
    CPU.set(cpu);
}

pub(crate) fn cpu() -> usize {
    CPU.get()
}

/// There are more threads than processors: one that spins should not use up its slice.
pub(crate) fn yield_now() {
    thread::yield_now();
}

/// No draw: the host's answers are those that a test has set.
pub(crate) fn draw(_: u64) -> Option<u64> {
    None
}

/// Sleep of one CPU. It blocks for good until a kick: a lost one hangs the test, and the watchdog then reports
/// what each CPU was doing.
#[derive(Debug, Default)]
pub(crate) struct Latch {
    kicked: Mutex<bool>,
    kick: Condvar,
}

impl Latch {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn sleep(&self) {
        let mut kicked = self.kick.wait_while(self.kicked.lock().unwrap(), |kicked| !*kicked).unwrap();
        *kicked = false;
    }

    pub(crate) fn kick(&self) {
        *self.kicked.lock().unwrap() = true;
        self.kick.notify_one();
    }
}

/// Nanoseconds.
#[derive(Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    pub(crate) fn paused(&self) {}
}
