//! A machine for the model checker: CPUs are shuttle's threads, and spinlocks sleep.

use haltkick_grants::{Kernel, Scheme, Sizes, Vcpu, World};
use haltkick_locks::Lock;
use haltkick_testing::{Cpus, play_once, try_schedules};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Condvar, Mutex};

use crate::shared::Heap;

const MOST_CPUS: usize = 3;

thread_local! {
    /// One machine for all schedules of a test, which run on one thread: kernels keep it forever. The remains
    /// of a schedule are never read here: no lock of a table sleeps by the platform.
    static CPUS: &'static Cpus = Box::leak(Box::new(Cpus::impatient(MOST_CPUS)));
}

/// Stands for a spinlock. A waiter sleeps, so shuttle knows when all wait for each other.
pub(crate) struct Sleeper {
    held: Mutex<bool>,
    released: Condvar,
}

impl Lock<Cpus> for Sleeper {
    type Token = ();

    fn lock(&self, _: &Cpus) {
        let mut held = self.released.wait_while(self.held.lock().unwrap(), |held| *held).unwrap();
        *held = true;
    }

    fn try_lock(&self, _: &Cpus) -> Option<()> {
        let mut held = self.held.lock().unwrap();
        (!*held).then(|| *held = true)
    }

    fn unlock(&self, _: &Cpus, (): ()) {
        *self.held.lock().unwrap() = false;
        self.released.notify_one();
    }
}

pub(crate) struct Sleeping;

impl Kernel for Sleeping {
    type Lock = Sleeper;
    type Domain = Cpus;

    fn new_lock() -> Sleeper {
        Sleeper { held: Mutex::new(false), released: Condvar::new() }
    }

    fn domain() -> &'static Cpus {
        CPUS.with(|cpus| *cpus)
    }
}

/// Two domains with two pages each. The tables have two entries and can have a third one; of two handles for each vCPU
/// one stays in its list, so that who wants two must steal.
fn world<S: Scheme>(vcpus: usize) -> World<S> {
    let sizes = Sizes { vcpus, domains: 2, references: 2, most_references: 3, handles: 2 * vcpus, frames: 4 };
    let world = World::new(&Heap, sizes);
    for frame in 0..4 {
        world.assign((frame / 2) as u16, frame % 2, frame).unwrap();
    }
    world
}

/// Makes a world, `prepare`s it, lets as many CPUs `play` on it with what was prepared, and looks `at_rest` when all
/// have come through.
pub(crate) fn play_out<S: Scheme, C: Send + Sync + 'static>(
    cpus: usize,
    prepare: impl Fn(&World<S>) -> C + Send + Sync + 'static,
    play: impl Fn(usize, &Vcpu, &World<S>, &C) + Copy + Send + Sync + 'static,
    at_rest: impl Fn(&World<S>, &C) + Send + Sync + 'static,
) {
    try_schedules(4, move || {
        let world = world::<S>(cpus);
        let prepared = prepare(&world);
        let seed = thread_rng().gen_range(0..u64::MAX);
        let play = move |cpu, (world, prepared): &(World<S>, C)| {
            play(cpu, &Vcpu::new(cpu, seed), world, prepared);
        };
        play_once(cpus, (world, prepared), play, |(world, prepared)| {
            let rest = world.rest();
            assert!(rest.is_clean(), "{rest:?}");
            at_rest(world, prepared);
        });
    });
}
