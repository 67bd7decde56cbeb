//! Code without locks, under the model checker: every interleaving, and every permitted reordering. The scheduler's, and the word between
//! doorbells and the way into the guest.
//!
//! The sources are the VMM's own, over loom's atomics.

#[path = "../src/sched/idle.rs"]
#[expect(dead_code, reason = "what concerns one thread alone is tested where it is used")]
mod idle;
#[path = "../src/machine/invalidate/line.rs"]
mod line;
#[path = "../src/sched/sleepers.rs"]
#[expect(dead_code, reason = "what concerns one thread alone is tested where it is used")]
mod sleepers;

/// Loom's atomics, which the sources take for theirs.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

    /// Loom takes sequentially consistent accesses for acquire and release ones, but knows fences: each access has one before and
    /// one behind it.
    pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

    fn fenced<T>(access: impl FnOnce() -> T) -> T {
        fence(Ordering::SeqCst);
        let value = access();
        fence(Ordering::SeqCst);
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

use idle::{Census, Idle};
use line::{Line, Rung};
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicBool, AtomicU32};
use loom::thread;
use sleepers::Sleepers;

/// Does something with what this thread has, too, on another one.
fn beside<T: Send + Sync + 'static, R: 'static>(
    shared: &Arc<T>,
    run: impl FnOnce(&T) -> R + 'static,
) -> thread::JoinHandle<R> {
    let shared = Arc::clone(shared);
    thread::spawn(move || run(&shared))
}

#[test]
fn a_kick_at_any_moment_of_a_sleep_wakes_the_sleeper() {
    loom::model(|| {
        let both = Arc::new((Sleepers::new(1), AtomicU32::new(0)));
        let kicker = beside(&both, |(sleepers, said)| {
            said.store(1, Relaxed);
            sleepers.kick(0)
        });
        let (sleepers, said) = &*both;
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
        let both = Arc::new((Sleepers::new(1), AtomicU32::new(0)));
        let kickers = [1, 2].map(|bit| {
            beside(&both, move |(sleepers, said)| {
                said.fetch_or(bit, Relaxed);
                sleepers.kick(0)
            })
        });
        let (sleepers, said) = &*both;
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
        let sleepers = Arc::new(Sleepers::new(1));
        assert_eq!(sleepers.put(0, Box::new(7)), None);
        let kicker = beside(&sleepers, |sleepers| sleepers.kick(0));
        let mut awake = None;
        sleepers.look(|_, task| assert_eq!(*task, 7), |task| awake = Some(task));
        let kicked = kicker.join().unwrap();
        assert!(awake.is_some() != kicked.is_some(), "awake {awake:?}, kicked {kicked:?}");
        assert!(!sleepers.take_latch(0));
    });
}

/// Two pCPUs, and the number of vCPUs that are ready.
struct Pcpus {
    idle: Idle,
    ready: AtomicU32,
    /// A bell for each pCPU.
    rung: [AtomicU32; 2],
}

impl Pcpus {
    fn new(ready: u32) -> Arc<Self> {
        let rung = [AtomicU32::new(0), AtomicU32::new(0)];
        Arc::new(Self { idle: Idle::new(2, 1), ready: AtomicU32::new(ready), rung })
    }

    /// As the scheduler does: a vCPU is ready, and an idle pCPU is rung.
    fn add(&self) {
        self.ready.fetch_add(1, AcqRel);
        let set = self.idle.look();
        while let Some(pcpu) = set.iter().next() {
            if set.remove(pcpu) {
                self.rung[pcpu as usize].store(1, Relaxed);
                return;
            }
        }
    }

    /// As the scheduler does: takes a vCPU, or is idle.
    fn take(&self, pcpu: u32) -> Option<Census> {
        let takes = |ready: u32| ready.checked_sub(1);
        loop {
            if self.ready.fetch_update(AcqRel, Acquire, takes).is_ok() {
                return None;
            }
            let census = self.idle.enter(pcpu);
            if self.ready.load(Acquire) == 0 {
                return Some(census);
            }
            self.idle.leave(pcpu);
        }
    }
}

#[test]
fn a_vcpu_that_is_ready_finds_a_pcpu_that_goes_idle() {
    loom::model(|| {
        let pcpus = Pcpus::new(0);
        let kicker = beside(&pcpus, Pcpus::add);
        let is_idle = pcpus.take(1).is_some();
        kicker.join().unwrap();
        let (rung, ready) = (pcpus.rung[1].load(Relaxed), pcpus.ready.load(Relaxed));
        assert!(!is_idle || rung == 1, "{ready} ready, and the pCPU sleeps");
    });
}

#[test]
fn of_two_kicks_one_wakes_an_idle_pcpu() {
    loom::model(|| {
        let pcpus = Pcpus::new(0);
        pcpus.idle.enter(1);
        let removers = [(); 2].map(|()| beside(&pcpus, |pcpus| pcpus.idle.look().remove(1)));
        let both = removers.map(|thread| thread.join().unwrap());
        assert!(both[0] != both[1], "{both:?}");
    });
}

#[test]
fn pcpus_are_all_idle_only_if_none_has_a_vcpu() {
    loom::model(|| {
        let pcpus = Pcpus::new(0);
        pcpus.idle.enter(0);
        pcpus.add();
        let woken = beside(&pcpus, |pcpus| {
            pcpus.idle.leave(0);
            pcpus.ready.swap(0, AcqRel) == 1
        });
        // It has missed the vCPU: what a pCPU reads of queues without their locks may be old. Then it concludes as idle ones do.
        let census = pcpus.idle.enter(1);
        let none_can =
            pcpus.idle.were_all(census) && pcpus.ready.load(Acquire) == 0 && pcpus.idle.is_as(census);
        assert!(woken.join().unwrap(), "the vCPU was lost");
        assert!(!none_can, "the other pCPU has a vCPU");
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
fn every_request_is_served_before_its_page_is_reused() {
    // This many requests while the vCPU runs this often: while it runs, and when it leaves.
    for (requests, runs, preemptions) in [(1, 2, 4), (2, 1, 3)] {
        let mut most = loom::model::Builder::new();
        most.preemption_bound = Some(preemptions);
        most.check(move || {
            let vcpu = Invalidated::new();
            let others: Vec<_> = (0..requests).map(|_| beside(&vcpu, Invalidated::request)).collect();
            let mut cached = true;
            (0..runs).for_each(|_| vcpu.run(&mut cached));
            others.into_iter().for_each(|other| _ = other.join().unwrap());
            assert_eq!(vcpu.acknowledged.load(Acquire), requests, "a request waits forever");
        });
    }
}
