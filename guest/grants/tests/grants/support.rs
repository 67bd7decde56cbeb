//! Grant tables on host threads.

use std::cell::{OnceCell, RefCell};

use haltkick_grants::{Kernel, Sizes, Taken, Vcpu, World};
use haltkick_locks::Activity;
use haltkick_testing::Cpus;

use crate::shared::Heap;

pub(crate) const MOST_VCPUS: usize = 6;

thread_local! {
    /// The machine of this thread's test.
    static CPUS: OnceCell<&'static Cpus> = const { OnceCell::new() };
    /// Steps of this thread's kernel, where they are recorded.
    static STEPS: RefCell<Option<Vec<Step>>> = const { RefCell::new(None) };
}

/// Step of the kernel on the way to a mapping and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Acquires a lock, which lies at that address.
    Take(Taken, usize),
    Drop(Taken),
    PageTable,
}

fn note(step: Step) {
    STEPS.with_borrow_mut(|steps| steps.as_mut().map(|steps| steps.push(step)));
}

/// Returns the steps of the kernel on this thread while `section` lasts.
pub(crate) fn steps(section: impl FnOnce()) -> Vec<Step> {
    STEPS.set(Some(vec![]));
    section();
    STEPS.take().expect("set above")
}

/// The machine on which the calling thread plays a vCPU. It stays until the process ends, for kernels keep it
/// forever.
fn cpus() -> &'static Cpus {
    CPUS.with(|cpus| *cpus.get_or_init(|| Box::leak(Box::new(Cpus::impatient(MOST_VCPUS)))))
}

/// A kernel made of ticket locks.
pub(crate) struct Tickets;

impl Kernel for Tickets {
    type Lock = haltkick_locks::Ticket;
    type Domain = Cpus;

    fn new_lock() -> Self::Lock {
        haltkick_locks::Ticket::new()
    }

    fn domain() -> &'static Cpus {
        cpus()
    }

    fn page_table_work() {
        note(Step::PageTable);
    }

    fn acquired(taken: Taken, address: usize) {
        note(Step::Take(taken, address));
    }

    fn released(taken: Taken) {
        note(Step::Drop(taken));
    }
}

/// A third domain, without any grant.
pub(crate) const STRANGER: u16 = 2;

/// Three domains with eight frames each: 0 to 7 of the machine are the mapper's, and so on.
pub(crate) fn world<S: haltkick_grants::Scheme>(vcpus: usize) -> World<S> {
    let sizes =
        Sizes { vcpus, domains: 3, references: 16, most_references: 24, handles: 64 * vcpus, frames: 24 };
    let world = World::new(&Heap, sizes);
    for frame in 0..24 {
        world.assign((frame / 8) as u16, frame % 8, frame).unwrap();
    }
    world
}

/// Runs `vcpu` on `vcpus` threads at once. All randomness comes from `seed`.
pub(crate) fn on_each_vcpu(vcpus: usize, seed: u64, vcpu: impl Fn(&Vcpu) + Sync) {
    let cpus = cpus();
    cpus.run_some(vcpus, |index| {
        CPUS.with(|of_this_thread| of_this_thread.set(cpus)).expect("a new thread");
        let this = Vcpu::new(index, seed);
        vcpu(&this);
        assert!(this.holds_nothing());
        assert!(!cpus.does(index, Activity::Holder), "the host is told of a section that is over");
    });
}
