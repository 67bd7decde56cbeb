//! Two queue spinlocks over one table, one after the other and one inside the other, and two nesting levels of each CPU's nodes.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed as Unmodelled};

use haltkick_locks::*;

use crate::model::{Bounds, Cpus, Plain, machine, play_out};

const CPUS: usize = 2;
const PAUSES: usize = 4;

/// CPUs that are interrupted once each, where they stand in the slow path of a lock.
struct Interrupted {
    cpus: Cpus,
    at: Point,
    handler: fn(),
    was_interrupted: [AtomicBool; CPUS],
}

impl Interrupted {
    fn new(at: Point, handler: fn()) -> Self {
        let was_interrupted = [const { AtomicBool::new(false) }; CPUS];
        Self { cpus: machine(CPUS, PAUSES, |_| false), at, handler, was_interrupted }
    }
}

impl Delegate for Interrupted {
    type Platform = Cpus;

    fn platform(&self) -> &Cpus {
        &self.cpus
    }

    fn point(&self, point: Point) {
        // The handler itself is not interrupted.
        if point == self.at && !self.was_interrupted[self.cpu()].swap(true, Unmodelled) {
            (self.handler)();
        }
    }
}

/// Two locks of a kind, and what they protect.
struct Scene<M> {
    domain: QSpinDomain<Interrupted, CPUS, 1>,
    locks: [(QSpinLock<M, Whole>, Plain); 2],
}

impl<M: Mode> Scene<M> {
    fn new(at: Point, handler: fn()) -> Self {
        let lock = || (QSpinLock::new(), Plain::default());
        Self { domain: QSpinDomain::new(Interrupted::new(at, handler)), locks: [lock(), lock()] }
    }

    /// A section of lock `which`, with something in it.
    fn with(&self, which: usize, inside: impl FnOnce()) {
        let (lock, count) = &self.locks[which];
        lock.lock(&self.domain);
        count.increment();
        inside();
        lock.unlock(&self.domain, ());
    }

    fn assert_counts(&self, counts: [std::ops::RangeInclusive<usize>; 2]) {
        for ((_, count), expected) in self.locks.iter().zip(counts) {
            assert!(expected.contains(&count.get()), "{} of {expected:?}", count.get());
        }
        assert_eq!(self.domain.sleeping_heads(), 0, "an entry has been left in the table");
    }
}

const BOUNDS: Bounds = Bounds { rounds: 1, preemptions: 2, pauses: PAUSES };

macro_rules! kinds {
    ($($name:ident: $mode:ty;)+) => {$(
        mod $name {
            use super::*;

            /// CPU 1 holds both locks, one in the other. CPU 0 waits for the outer one, is interrupted, and waits for the inner one.
            fn an_interrupt_waits_inside_a_wait<const AT: usize>() {
                loom::lazy_static! {
                    static ref TAIL: Scene<$mode> =
                        Scene::new(Point::TailPublished, || TAIL.with(1, || {}));
                    static ref SLEEP: Scene<$mode> =
                        Scene::new(Point::BeforeSleep, || SLEEP.with(1, || {}));
                }
                let scene = || -> &'static Scene<$mode> { if AT == 0 { &TAIL } else { &SLEEP } };
                let play = move |cpu, (): &()| {
                    let scene = scene();
                    scene.with(0, || if cpu == 1 { scene.with(1, || {}) });
                };
                play_out(CPUS, &BOUNDS, || (), play, move |()| scene().assert_counts([2..=2, 1..=3]));
            }

            #[test]
            fn an_interrupt_waits_while_its_cpu_queues() {
                an_interrupt_waits_inside_a_wait::<0>();
            }

            #[test]
            fn an_interrupt_waits_while_its_cpu_is_about_to_sleep() {
                an_interrupt_waits_inside_a_wait::<1>();
            }

            /// An entry of the table serves one lock and then the other.
            #[test]
            fn two_locks_are_taken_one_after_the_other() {
                // No lock of these comes to this point.
                let scene = || Scene::<$mode>::new(Point::WriterWaits, || {});
                let play = |_, scene: &Scene<$mode>| (0..2).for_each(|which| scene.with(which, || {}));
                play_out(CPUS, &BOUNDS, scene, play, |scene: &Scene<$mode>| {
                    scene.assert_counts([2..=2, 2..=2]);
                });
            }
        }
    )+};
}

kinds! {
    native: Native;
    v16: V16;
    pv: Pv;
    wc: WorkConserving;
}
