//! Threads of shuttle, which tries random schedules of them.

use std::{
    cell::Cell,
    env, fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use shuttle::{
    Config, Runner,
    rand::{Rng, thread_rng},
    scheduler::{PctScheduler, RandomScheduler},
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

/// Preemptions at the worst places that the scheduler is told to look for.
const DEPTH: usize = 4;

/// Tries schedules of `model` with few, but ill-chosen, preemptions, and one random schedule for each `per_random` of them; or the
/// one that the environment names.
pub fn try_schedules(per_random: usize, model: impl Fn() + Send + Sync + 'static) {
    if let Ok(schedule) = env::var("SHUTTLE_REPLAY") {
        return shuttle::replay(model, &schedule);
    }
    let iterations = env::var("SHUTTLE_ITERATIONS").map_or(2_000, |n| n.parse().expect("a number"));
    let mut config = Config::default();
    config.silence_warnings = true;
    // Domains are made on it, whose atomics are larger here.
    config.stack_size = 0x4_0000;
    let model = std::sync::Arc::new(model);
    let again = model.clone();
    Runner::new(PctScheduler::new(DEPTH, iterations), config.clone()).run(move || model());
    Runner::new(RandomScheduler::new(iterations / per_random), config).run(move || again());
}
