//! The threads that play CPUs, and what depends on whose they are: how they sleep, how time passes, and whether the host's
//! answers are drawn. They are the host's; loom's, which tries every interleaving of them; or shuttle's, which tries random
//! schedules.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};
#[cfg(not(any(loom, shuttle)))]
use std::{
    sync::{
        Condvar, Mutex,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
            fence,
        },
    },
    thread,
};

#[cfg(loom)]
use loom::{
    sync::{Arc, Notify},
    thread, thread_local,
};
#[cfg(shuttle)]
use shuttle::{
    Config, Runner,
    rand::{Rng, thread_rng},
    scheduler::{PctScheduler, RandomScheduler},
    sync::{Arc, Condvar, Mutex},
    thread, thread_local,
};

thread_local! {
    #[allow(clippy::missing_const_for_thread_local, reason = "model checkers have no such form")]
    static CPU: Cell<usize> = Cell::new(0);
}

pub(crate) fn become_cpu(cpu: usize) {
    CPU.with(|this| this.set(cpu));
}

pub(crate) fn cpu() -> usize {
    CPU.with(Cell::get)
}

/// There are more threads than processors: one that spins should not use up its slice.
pub(crate) fn yield_now() {
    thread::yield_now();
}

/// A number below `end`, where answers are drawn: with shuttle. Else the host's answers are those that a test has set: with
/// loom they are the same for the length of a model, and each of its answers has models of its own.
#[cfg_attr(not(shuttle), expect(unused_variables, reason = "nothing is drawn"))]
pub(crate) fn draw(end: u64) -> Option<u64> {
    #[cfg(shuttle)]
    return Some(thread_rng().gen_range(0..end));
    #[cfg(not(shuttle))]
    None
}

/// Sleep of one CPU. It blocks for good until a kick: a lost one hangs the test, which ends in time and says
/// what each CPU was doing.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub(crate) struct Latch {
    kicked: Mutex<bool>,
    kick: Condvar,
}

#[cfg(not(loom))]
impl Latch {
    pub(crate) fn sleep(&self) {
        let mut kicked = self.kick.wait_while(self.kicked.lock().unwrap(), |kicked| !*kicked).unwrap();
        *kicked = false;
    }

    pub(crate) fn kick(&self) {
        *self.kicked.lock().unwrap() = true;
        self.kick.notify_one();
    }
}

/// Sleep of one CPU. Each sleep may once end spuriously.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Latch(Notify);

#[cfg(loom)]
impl Default for Latch {
    fn default() -> Self {
        Self(Notify::new())
    }
}

#[cfg(loom)]
impl Latch {
    pub(crate) fn sleep(&self) {
        self.0.wait();
    }

    pub(crate) fn kick(&self) {
        self.0.notify();
    }
}

/// Time of the host's threads, in nanoseconds. With shuttle it counts the looks at it, and with loom the pauses of all CPUs: time
/// passes where a CPU waits, and adds no interleavings.
#[derive(Debug)]
pub(crate) struct Clock {
    begun: Instant,
    counted: AtomicU64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), counted: AtomicU64::new(0) }
    }

    pub(crate) fn now(&self) -> u64 {
        if cfg!(any(loom, shuttle)) {
            self.counted.fetch_add(u64::from(cfg!(shuttle)), Relaxed)
        } else {
            self.begun.elapsed().as_nanos() as u64
        }
    }

    pub(crate) fn paused(&self) {
        if cfg!(loom) {
            self.counted.fetch_add(1, Relaxed);
        }
    }
}

/// One execution of a model: `cpus` CPUs play on a scene, which is looked at when all have come through.
#[cfg(any(loom, shuttle))]
pub fn play_once<S: Send + Sync + 'static>(
    cpus: usize,
    scene: S,
    play: impl Fn(usize, &S) + Copy + Send + 'static,
    at_rest: impl FnOnce(&S),
) {
    let scene = Arc::new(scene);
    let other = |cpu| {
        let scene = scene.clone();
        thread::spawn(move || {
            become_cpu(cpu);
            play(cpu, &scene);
        })
    };
    let others: Vec<_> = (1..cpus).map(other).collect();
    become_cpu(0);
    play(0, &scene);
    others.into_iter().for_each(|other| other.join().unwrap());
    at_rest(&scene);
}

/// Preemptions at the worst places that the scheduler is told to look for.
#[cfg(shuttle)]
const DEPTH: usize = 4;

/// Tries schedules of `model` with few, but ill-chosen, preemptions, and one random schedule for each `per_random` of them. Memory is
/// sequentially consistent. `SHUTTLE_ITERATIONS` sets how many schedules are tried. A failure prints its schedule, which
/// `SHUTTLE_REPLAY=<schedule>` runs again, together with the name of the test.
#[cfg(shuttle)]
pub fn try_schedules(per_random: usize, model: impl Fn() + Send + Sync + 'static) {
    use std::env;
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

/// Waits until `reached`. The caller then sees what the other threads did before.
#[cfg(not(any(loom, shuttle)))]
pub fn until(reached: impl Fn() -> bool) {
    while !reached() {
        yield_now();
    }
    // Acquire: pairs with the Release of counters and activities.
    fence(Acquire);
}

/// Something that happens once, in one thread, and that others wait for. It stays until the process ends, so that hooks may copy it.
#[cfg(not(any(loom, shuttle)))]
#[derive(Clone, Copy, Debug)]
pub struct Signal(&'static AtomicBool);

#[cfg(not(any(loom, shuttle)))]
impl Signal {
    /// Signals that are not yet given.
    pub fn several<const N: usize>() -> [Self; N] {
        [(); N].map(|()| Self(Box::leak(Box::new(AtomicBool::new(false)))))
    }

    /// Gives the signal.
    pub fn give(&self) {
        self.0.store(true, Release);
    }

    /// Returns whether the signal was given.
    pub fn given(&self) -> bool {
        self.0.load(Acquire)
    }

    /// Waits for it.
    pub fn await_it(&self) {
        until(|| self.given());
    }
}
