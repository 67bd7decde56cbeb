//! The VMM's code without locks, under the model checker: every interleaving, and every permitted reordering.
//!
//! The sources are the VMM's own, over loom's atomics.

#[path = "../src/sched/sleepers.rs"]
mod sleepers;

#[path = "../src/machine/invalidate/line.rs"]
mod line;

/// Loom's atomics, which the sources take for theirs.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

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
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicBool, AtomicU32};
use loom::thread;
use sleepers::Sleepers;

/// One vCPU, which is awake where its box is.
fn one() -> Arc<Sleepers<u32>> {
    Arc::new(Sleepers::new(1))
}

#[test]
fn a_kick_takes_out_who_sleeps_and_nobody_else() {
    loom::model(|| {
        let sleepers = Sleepers::new(2);
        assert_eq!(sleepers.put(0, Box::new('a')), None);
        assert_eq!(sleepers.put(1, Box::new('b')), None);
        assert_eq!(sleepers.kick(1).as_deref(), Some(&'b'));
        assert_eq!(sleepers.len(), 2);
        assert_eq!(sleepers.into_sleepers().map(|task| *task).collect::<Vec<_>>(), ['a']);
    });
}

#[test]
fn a_kick_before_the_sleep_is_latched_once() {
    loom::model(|| {
        let sleepers = one();
        assert_eq!(sleepers.kick(0), None);
        assert_eq!(sleepers.kick(0), None);
        assert_eq!(sleepers.put(0, Box::new(7)).as_deref(), Some(&7), "it was kicked before");
        assert_eq!(sleepers.put(0, Box::new(7)), None, "both kicks were for that sleep");
    });
}

#[test]
fn a_kick_that_found_a_sleeper_leaves_no_latch() {
    loom::model(|| {
        let sleepers = one();
        assert_eq!(sleepers.put(0, Box::new(7)), None);
        assert_eq!(sleepers.kick(0).as_deref(), Some(&7));
        assert!(!sleepers.take_latch(0));
        assert_eq!(sleepers.kick(0), None);
        assert!(sleepers.take_latch(0) && !sleepers.take_latch(0));
    });
}

#[test]
fn a_kick_at_any_moment_of_a_sleep_wakes_the_sleeper() {
    loom::model(|| {
        let (sleepers, said) = (one(), Arc::new(AtomicU32::new(0)));
        let kicker = {
            let (sleepers, said) = (Arc::clone(&sleepers), Arc::clone(&said));
            thread::spawn(move || {
                said.store(1, Relaxed);
                sleepers.kick(0)
            })
        };
        let latched = sleepers.take_latch(0);
        let awake = if latched { Some(Box::new(7)) } else { sleepers.put(0, Box::new(7)) };
        if awake.is_some() {
            assert_eq!(said.load(Relaxed), 1, "it is awake without what the kick was for");
        }
        let kicked = kicker.join().unwrap();
        assert!(awake.is_some() != kicked.is_some(), "awake {awake:?}, kicked {kicked:?}");
    });
}

#[test]
fn the_last_of_two_kicks_for_one_sleep_counts_too() {
    // All interleavings of three threads take minutes.
    let mut most = loom::model::Builder::new();
    most.preemption_bound = Some(3);
    most.check(|| {
        let (sleepers, said) = (one(), Arc::new(AtomicU32::new(0)));
        let kick = |bit: u32| {
            let (sleepers, said) = (Arc::clone(&sleepers), Arc::clone(&said));
            thread::spawn(move || {
                said.fetch_or(bit, Relaxed);
                sleepers.kick(0)
            })
        };
        let kickers = [kick(1), kick(2)];
        let awake = sleepers.put(0, Box::new(7));
        let seen = said.load(Relaxed);
        let kicked = kickers.map(|kicker| kicker.join().unwrap());
        let woken = kicked.iter().flatten().count() + usize::from(awake.is_some());
        assert_eq!(woken, 1, "in one place");
        // A kick that the sleep did not take is there for the next one.
        assert!(seen == 3 || awake.is_none() || sleepers.take_latch(0), "a kick is lost: {seen} was seen");
    });
}

#[test]
fn a_kick_of_a_vcpu_that_is_looked_at_wakes_it() {
    loom::model(|| {
        let sleepers = one();
        assert_eq!(sleepers.put(0, Box::new(7)), None);
        let kicker = {
            let sleepers = Arc::clone(&sleepers);
            thread::spawn(move || sleepers.kick(0))
        };
        let mut awake = None;
        sleepers.look(|_, task| assert_eq!(*task, 7), |task| awake = Some(task));
        let kicked = kicker.join().unwrap();
        assert!(awake.is_some() != kicked.is_some(), "awake {awake:?}, kicked {kicked:?}");
        assert!(!sleepers.take_latch(0));
    });
}

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

#[test]
fn a_translation_is_dropped_before_its_page_is_reused() {
    let mut most = loom::model::Builder::new();
    most.preemption_bound = Some(4);
    most.check(|| {
        let vcpu = Invalidated::new();
        let other = {
            let vcpu = Arc::clone(&vcpu);
            thread::spawn(move || vcpu.request())
        };
        let mut cached = true;
        vcpu.run(&mut cached);
        vcpu.run(&mut cached);
        other.join().unwrap();
        assert_eq!(vcpu.acknowledged.load(Acquire), 1, "the request waits forever");
    });
}

#[test]
fn both_of_two_requests_are_served_when_the_vcpu_leaves() {
    let mut most = loom::model::Builder::new();
    most.preemption_bound = Some(3);
    most.check(|| {
        let vcpu = Invalidated::new();
        let others = [0, 1].map(|_| {
            let vcpu = Arc::clone(&vcpu);
            thread::spawn(move || vcpu.request())
        });
        vcpu.run(&mut true);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(vcpu.acknowledged.load(Acquire), 2, "a request waits forever");
    });
}
