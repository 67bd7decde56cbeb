//! The word between doorbells and the way into the guest, under the model checker.
//!
//! The source is the VMM's own, over loom's atomics.

#[path = "../src/machine/invalidate/line.rs"]
mod line;

/// Loom's atomics, which the sources take for theirs.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};

    /// Loom takes sequentially consistent accesses for acquire and release ones, but knows fences: each access has one before and
    /// one behind it.
    pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

    fn fenced<T>(access: impl FnOnce() -> T) -> T {
        loom::sync::atomic::fence(Ordering::SeqCst);
        let value = access();
        loom::sync::atomic::fence(Ordering::SeqCst);
        value
    }

    impl AtomicBool {
        pub(crate) fn new(value: bool) -> Self {
            Self(loom::sync::atomic::AtomicBool::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> bool {
            fenced(|| self.0.load(order))
        }

        pub(crate) fn store(&self, value: bool, order: Ordering) {
            fenced(|| self.0.store(value, order));
        }

        pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
            fenced(|| self.0.swap(value, order))
        }
    }
}

use line::{Line, Rung};
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use loom::sync::atomic::{AtomicBool, AtomicU32};
use loom::thread;

/// A vCPU whose translations others take away, and the numbers that it shares with them.
struct Invalidated {
    line: Line,
    requested: AtomicU32,
    acknowledged: AtomicU32,
    /// A kick that ends KVM_RUN, this one or the next.
    kicked: AtomicBool,
    /// Whether the page may hold something else now.
    reused: AtomicBool,
}

impl Invalidated {
    fn new() -> Arc<Self> {
        let new = AtomicBool::new;
        let number = AtomicU32::new;
        let (kicked, reused) = (new(false), new(false));
        Arc::new(Self { line: Line::new(), requested: number(0), acknowledged: number(0), kicked, reused })
    }

    fn acknowledge(&self) {
        let requested = self.requested.load(Acquire);
        self.acknowledged.fetch_max(requested, AcqRel);
    }

    /// Another vCPU's request; says whether it is served already. It reuses the page then.
    fn request(&self) -> bool {
        let mine = self.requested.fetch_add(1, AcqRel) + 1;
        match self.line.ring() {
            Rung::Waits => {}
            Rung::Inside(thread) => {
                assert_eq!(thread, 1, "no other thread has run it");
                self.kicked.store(true, Release);
            }
            Rung::Outside => self.acknowledge(),
        }
        let served = self.acknowledged.load(Acquire) >= mine;
        if served {
            self.reused.store(true, Release);
        }
        served
    }

    /// One KVM_RUN of at most two guest instructions that use the page by a cached translation.
    fn run(&self, cached: &mut bool) {
        self.line.runs_on(1);
        if self.line.enter() {
            // The NMI's handler.
            *cached = false;
            self.acknowledge();
        }
        for _ in 0..2 {
            if self.kicked.swap(false, AcqRel) {
                break;
            }
            assert!(!(*cached && self.reused.load(Acquire)), "an old translation leads to a page of others");
        }
        if self.line.leave() {
            self.acknowledge();
        }
    }
}

/// Serves this many requests while the vCPU runs this often.
fn all_are_served(requests: u32, runs: usize, preemptions: usize) {
    let mut most = loom::model::Builder::new();
    most.preemption_bound = Some(preemptions);
    most.check(move || {
        let vcpu = Invalidated::new();
        let request = |_| {
            let vcpu = Arc::clone(&vcpu);
            thread::spawn(move || vcpu.request())
        };
        let others: Vec<_> = (0..requests).map(request).collect();
        let mut cached = true;
        (0..runs).for_each(|_| vcpu.run(&mut cached));
        others.into_iter().for_each(|other| _ = other.join().unwrap());
        assert_eq!(vcpu.acknowledged.load(Acquire), requests, "a request waits forever");
    });
}

#[test]
fn a_translation_is_dropped_before_its_page_is_reused() {
    all_are_served(1, 2, 4);
}

#[test]
fn both_of_two_requests_are_served_when_the_vcpu_leaves() {
    all_are_served(2, 1, 3);
}
