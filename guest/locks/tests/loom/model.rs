//! Support for every model of loom, in addition to the CPUs themselves.

use std::{
    env, slice,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use haltkick_locks::{Lock, RwLock};
pub(crate) use haltkick_testing::{Cpus, Plain, assert_reached};
use haltkick_testing::{play_once, read_or_write};

/// CPUs whose waiters sleep at their first look at the clock, before any pause: a pause would let loom assume that the next
/// load sees something new.
pub(crate) fn machine(cpus: usize, pauses: u64) -> Cpus {
    Cpus::impatient(cpus).branching_for(pauses)
}

/// Bounds of a model; everything within is tried.
pub(crate) struct Bounds {
    /// Acquisitions by each CPU.
    pub(crate) rounds: usize,
    /// Involuntary switches from one thread to another in one execution.
    pub(crate) preemptions: usize,
    /// Rounds of spinning in one execution, by all CPUs together, before it is no longer branched on.
    pub(crate) pauses: u64,
}

/// All CPUs take one lock. They must not overlap, everything that one did must be visible to the next, and
/// all must come through. The last CPU tries first each time. `at_rest` looks at the domain afterwards.
pub(crate) fn check<D, L>(
    cpus: usize,
    bounds: Bounds,
    domain: impl Fn(Cpus) -> D + Copy + Sync + Send + 'static,
    lock: fn() -> L,
    at_rest: fn(&D),
) where
    D: Sync + Send + 'static,
    L: Lock<D> + Send + 'static,
{
    let Bounds { rounds, pauses, .. } = bounds;
    let scene = move || (domain(machine(cpus, pauses)), lock(), Plain::default());
    let play = move |cpu, (domain, lock, counter): &(D, L, Plain)| {
        for _ in 0..rounds {
            let tried = if cpu == cpus - 1 { lock.try_lock(domain) } else { None };
            let token = tried.unwrap_or_else(|| lock.lock(domain));
            counter.increment();
            lock.unlock(domain, token);
        }
    };
    play_out(cpus, &bounds, scene, play, move |(domain, _, counter)| {
        assert_eq!(counter.get(), cpus * rounds);
        at_rest(domain);
    });
}

/// Sets up a scene, lets `cpus` CPUs play on it, and looks at it when all have come through.
pub(crate) fn play_out<S: Sync + Send + 'static>(
    cpus: usize,
    bounds: &Bounds,
    scene: impl Fn() -> S + Sync + Send + 'static,
    play: impl Fn(usize, &S) + Copy + Sync + Send + 'static,
    at_rest: impl Fn(&S) + Sync + Send + 'static,
) {
    explore(bounds.preemptions, move || play_once(cpus, scene(), play, &at_rest));
}

/// Role of a CPU at a reader-writer lock: whether it writes in this round.
pub(crate) type Role = fn(usize) -> bool;

pub(crate) const WRITER: Role = |_| true;
pub(crate) const READER: Role = |_| false;
/// Reads and writes in turn.
pub(crate) const BOTH: Role = |round| round % 2 == 1;

/// CPUs take one reader-writer lock as their `roles` say. A writer must be alone, everything that one wrote must be
/// visible to who comes next, and all must come through.
pub(crate) fn check_rw<D, L, const CPUS: usize>(
    roles: [Role; CPUS],
    bounds: Bounds,
    domain: impl Fn(Cpus) -> D + Copy + Sync + Send + 'static,
    lock: fn() -> L,
) where
    D: Sync + Send + 'static,
    L: RwLock<D> + Send + 'static,
{
    let Bounds { rounds, pauses, .. } = bounds;
    let scene = move || (domain(machine(CPUS, pauses)), lock(), Plain::default());
    let play = move |cpu: usize, (domain, lock, counter): &(D, L, Plain)| {
        for round in 0..rounds {
            read_or_write(domain, lock, slice::from_ref(counter), roles[cpu](round));
        }
    };
    let written = roles.map(|role| (0..rounds).filter(|round| role(*round)).count()).iter().sum::<usize>();
    play_out(CPUS, &bounds, scene, play, move |(.., counter)| assert_eq!(counter.get(), written));
}

/// Tries every execution of `model` with at most `preemptions` preemptions, and says how many there were.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    let deeper = env::var("LOOM_DEEPER").map_or(0, |n| n.parse().expect("a number"));
    builder.preemption_bound = Some(preemptions + deeper);
    builder.max_branches = 20_000;
    let executions = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = executions.clone();
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        model();
    });
    println!("{} executions", executions.load(Relaxed));
}
