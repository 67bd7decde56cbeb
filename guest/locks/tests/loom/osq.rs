//! The spin queue, with waiters that leave it.

use haltkick_locks::{
    osq::{Cached, Layout, Packed, PrevCpu, Split},
    *,
};
use haltkick_testing::tests;

use crate::model::{Bounds, Cpus, Plain, machine, play_out};

/// CPUs queue, `rounds` times each. The head is alone; the CPUs for which `leaves` holds leave as soon as they find
/// another one in front of them. The queue is empty in the end.
fn check<L: Layout, const CPUS: usize>(bounds: Bounds, leaves: fn(usize) -> bool) {
    let Bounds { rounds, pauses, .. } = bounds;
    let scene = move || {
        let machine = machine(CPUS, pauses);
        (machine, OsqNodes::<L, CPUS>::new(), Osq::<L>::new(), Plain::default())
    };
    let play = move |cpu, (machine, nodes, queue, counter): &(Cpus, _, Osq<L>, Plain)| {
        for _ in 0..rounds {
            if queue.lock(nodes, machine, || leaves(cpu)) {
                counter.increment();
                queue.unlock(nodes, machine);
            }
        }
    };
    play_out(CPUS, &bounds, scene, play, |(_, _, queue, counter)| {
        assert!(!queue.is_occupied(), "somebody has been left in the queue");
        assert!(counter.get() > 0, "nobody became head of an empty queue");
    });
}

const TWO: Bounds = Bounds { rounds: 2, preemptions: 3, pauses: 6 };
const THREE: Bounds = Bounds { rounds: 1, preemptions: 2, pauses: 6 };
const AGAIN: Bounds = Bounds { rounds: 2, preemptions: 2, pauses: 4 };

macro_rules! layouts {
    ($($name:ident: $layout:ty;)+) => {$(
        mod $name {
            use super::*;

            tests! {
                /// The swap of the tail publishes the node: a successor's link is not overwritten by its owner.
                o1_a_link_outlives_the_initialisation_of_its_node: check::<$layout, 2>(TWO, |_| false);
                /// A waiter's own note of its predecessor is not taken for the one that a leaving predecessor made.
                o2_a_waiter_learns_of_its_new_predecessor: check::<$layout, 3>(THREE, |cpu| cpu != 0);
                one_of_two_leaves: check::<$layout, 2>(TWO, |cpu| cpu == 1);
                one_of_three_leaves: check::<$layout, 3>(THREE, |cpu| cpu == 1);
                all_of_three_leave: check::<$layout, 3>(THREE, |_| true);
            }
        }
    )+};
}

layouts! {
    packed: Packed;
    split: Split;
    cached: Cached;
    prev_cpu: PrevCpu;
}

tests! {
    /// A node that has left comes back, perhaps behind the one that was behind it.
    who_has_left_may_queue_again: check::<Packed, 3>(AGAIN, |cpu| cpu == 1);
    who_has_left_may_queue_again_without_initialising: check::<PrevCpu, 3>(AGAIN, |cpu| cpu == 1);
}
