//! The table of held locks under loom; exclusion is checked with the family.

use haltkick_locks::*;

use crate::model::{Bounds, Cpus, Plain, assert_reached, machine, play_out};

const BOUNDS: Bounds = Bounds { rounds: 1, preemptions: 3, pauses: 6 };

struct Scene {
    domain: RqSpinDomain<Cpus, 2>,
    locks: [RqSpinLock<Whole>; 3],
    counter: Plain,
}

impl Scene {
    fn new(limit: u64) -> Self {
        let machine = machine(2, BOUNDS.pauses).limited(limit);
        Self {
            domain: RqSpinDomain::new(machine),
            locks: [RqSpinLock::new(), RqSpinLock::new(), RqSpinLock::new()],
            counter: Plain::default(),
        }
    }

    /// A section under lock `which`, with something in it; or not.
    fn with(&self, which: usize, inside: impl FnOnce()) -> Result<(), LockError> {
        self.locks[which].lock_or_fail(&self.domain)?;
        inside();
        self.locks[which].unlock(&self.domain, ());
        Ok(())
    }

    /// RQ7
    fn assert_at_rest(&self) {
        assert_eq!([0, 1].map(|cpu| self.domain.held_by(cpu)), [0; 2]);
        self.locks.iter().for_each(|lock| lock.try_lock(&self.domain).expect("free"));
    }
}

/// CPU 1 leaves lock 0 before it asks for lock 1, which CPU 0 holds. So CPU 0, which asks for lock 0, is in no circle, whatever it sees of
/// the table of CPU 1.
#[test]
fn rq10_an_old_entry_is_not_seen_under_a_new_count() {
    let play = |cpu, scene: &Scene| {
        if cpu == 0 {
            _ = scene.with(1, || assert_ne!(scene.with(0, || {}), Err(LockError::Deadlock)));
        } else {
            _ = scene.with(0, || {});
            _ = scene.with(2, || _ = scene.with(1, || {}));
        }
    };
    play_out(2, &BOUNDS, || Scene::new(3), play, Scene::assert_at_rest);
}

/// Each CPU asks for the lock that the other one has.
#[test]
fn two_cpus_in_a_circle_come_through() {
    let play = |cpu: usize, scene: &Scene| {
        _ = scene.with(cpu, || _ = scene.with(1 - cpu, || scene.counter.increment()));
    };
    play_out(2, &BOUNDS, || Scene::new(3), play, Scene::assert_at_rest);
    assert_reached([Event::LockDeadlock]);
}

/// Waiters that give up, in a lock's queue and its pending bit.
#[test]
fn a_lock_is_free_after_all_have_given_up() {
    let play = |_: usize, scene: &Scene| _ = scene.with(0, || scene.counter.increment());
    play_out(2, &BOUNDS, || Scene::new(0), play, Scene::assert_at_rest);
    assert_reached([Event::LockTimedOut]);
}
