//! Two locks over one domain, one after the other and one inside the other, and two nesting levels of what each CPU has there.

use std::cell::Cell;

use haltkick_locks::*;
use haltkick_testing::tests;

use crate::model::{Bounds, Cpus, Plain, machine, play_out};

const CPUS: usize = 2;
const PAUSES: u64 = 4;

loom::thread_local! {
    /// Whether the CPU can be interrupted.
    static INTERRUPTS: Cell<bool> = Cell::new(true);
}

/// CPUs that are interrupted once each, where they stand in the slow path of a lock.
fn interrupted_cpus(at: Point, handler: fn()) -> Cpus {
    // All CPUs of a model are on this thread of the host, so that the hook is theirs.
    Cpus::hook(move |point| {
        // The handler itself is not interrupted.
        if point == at && INTERRUPTS.with(|on| on.replace(false)) {
            handler();
        }
    });
    machine(CPUS, PAUSES)
}

/// Two locks of a kind, and what they protect.
struct Scene<D, L> {
    domain: D,
    locks: [(L, Plain); 2],
}

impl<D, L: Lock<D>> Scene<D, L> {
    fn new(domain: D, lock: fn() -> L) -> Self {
        Self { domain, locks: [(lock(), Plain::default()), (lock(), Plain::default())] }
    }

    /// A section of lock `which`, with something in it.
    fn with(&self, which: usize, inside: impl FnOnce()) {
        let (lock, count) = &self.locks[which];
        let token = lock.lock(&self.domain);
        count.increment();
        inside();
        lock.unlock(&self.domain, token);
    }

    fn assert_counts(&self, counts: [std::ops::RangeInclusive<usize>; 2], at_rest: fn(&D)) {
        for ((_, count), expected) in self.locks.iter().zip(counts) {
            assert!(expected.contains(&count.get()), "{} of {expected:?}", count.get());
        }
        at_rest(&self.domain);
    }
}

type Queues = QSpinDomain<Cpus, CPUS, 1>;
type Tickets = PvTicketDomain<Cpus, CPUS>;

fn no_head_sleeps(domain: &Queues) {
    assert_eq!(domain.sleeping_heads(), 0, "an entry has been left in the table");
}

const BOUNDS: Bounds = Bounds { rounds: 1, preemptions: 2, pauses: PAUSES };

/// `kinds! { name: lock, its domain, where its waiters are interrupted first, what is asserted of the domain at rest }`.
macro_rules! kinds {
    ($($name:ident: $lock:ty, $domain:ty, $first:ident, $at_rest:expr;)+) => {$(
        mod $name {
            use super::*;

            type Both = Scene<$domain, $lock>;

            fn interrupted(at: Point, handler: fn()) -> Both {
                Scene::new(<$domain>::new(interrupted_cpus(at, handler)), <$lock>::new)
            }

            /// CPU 1 holds both locks, one in the other. CPU 0 waits for the outer one, is interrupted, and waits for the inner one.
            fn an_interrupt_waits_inside_a_wait<const AT: usize>() {
                loom::lazy_static! {
                    static ref FIRST: Both = interrupted(Point::$first, || FIRST.with(1, || {}));
                    static ref SLEEP: Both = interrupted(Point::BeforeSleep, || SLEEP.with(1, || {}));
                }
                let scene = || -> &'static Both { if AT == 0 { &FIRST } else { &SLEEP } };
                let play = move |cpu, (): &()| {
                    let scene = scene();
                    scene.with(0, || {
                        if cpu == 1 {
                            // A handler that asked for the lock for which its CPU waits would wait for itself.
                            INTERRUPTS.with(|on| on.set(false));
                            scene.with(1, || {});
                        }
                    });
                };
                let at_rest = move |(): &()| scene().assert_counts([2..=2, 1..=3], $at_rest);
                play_out(CPUS, &BOUNDS, || (), play, at_rest);
            }

            tests! {
                an_interrupt_waits_while_its_cpu_queues: an_interrupt_waits_inside_a_wait::<0>();
                an_interrupt_waits_while_its_cpu_is_about_to_sleep: an_interrupt_waits_inside_a_wait::<1>();
            }

            /// The memory of a CPU in the domain serves one lock and then the other.
            #[test]
            fn two_locks_are_taken_one_after_the_other() {
                // No lock of these comes to this point.
                let scene = || interrupted(Point::WriterWaits, || {});
                let play = |_, scene: &Both| (0..2).for_each(|which| scene.with(which, || {}));
                play_out(CPUS, &BOUNDS, scene, play, |scene: &Both| {
                    scene.assert_counts([2..=2, 2..=2], $at_rest);
                });
            }
        }
    )+};
}

kinds! {
    native: QSpinLock<Native, Whole>, Queues, TailPublished, no_head_sleeps;
    v16: QSpinLock<V16, Whole>, Queues, TailPublished, no_head_sleeps;
    pv: QSpinLock<Pv, Whole>, Queues, TailPublished, no_head_sleeps;
    wc: QSpinLock<WorkConserving, Whole>, Queues, TailPublished, no_head_sleeps;
    pv_ticket: PvTicket, Tickets, HaltedPublished, |_| {};
}

/// Paravirtual ticket locks, whose unlock searches one table for the CPU that sleeps for its lock.
mod sleepers_of_two_ticket_locks {
    use super::*;

    const CPUS: usize = 3;

    type Three = Scene<PvTicketDomain<Cpus, CPUS>, PvTicket>;

    /// CPU 0 holds both.
    fn both_held() -> Three {
        Cpus::become_cpu(0);
        let scene = Three::new(PvTicketDomain::new(machine(CPUS, PAUSES)), PvTicket::new);
        scene.locks.iter().for_each(|(lock, _)| lock.lock(&scene.domain));
        scene
    }

    fn release(scene: &Three, which: usize) {
        let (lock, count) = &scene.locks[which];
        count.increment();
        lock.unlock(&scene.domain, ());
    }

    fn play_three(play: impl Fn(usize, &Three) + Copy + Sync + Send + 'static, counts: [usize; 2]) {
        let at_rest = move |scene: &Three| scene.assert_counts(counts.map(|count| count..=count), |_| {});
        play_out(CPUS, &BOUNDS, both_held, play, at_rest);
    }

    /// Both wait with the same ticket.
    #[test]
    fn each_unlock_wakes_the_sleeper_of_its_lock() {
        let play = |cpu, scene: &Three| match cpu {
            0 => [1, 0].into_iter().for_each(|which| release(scene, which)),
            _ => scene.with(cpu - 1, || {}),
        };
        play_three(play, [2, 2]);
    }

    /// CPU 1 waits for lock 1, and then for lock 0 behind CPU 2: with the ticket that it had before it would look like that one.
    #[test]
    fn a_slot_that_changes_its_lock_has_the_new_ticket() {
        let play = |cpu, scene: &Three| match cpu {
            0 => [1, 0].into_iter().for_each(|which| release(scene, which)),
            1 => [1, 0].into_iter().for_each(|which| scene.with(which, || {})),
            _ => scene.with(0, || {}),
        };
        play_three(play, [3, 2]);
    }
}
