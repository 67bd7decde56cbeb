//! A machine of loom threads.

use std::cell::Cell;

use haltkick_locks::{Event, Lock, Platform};
use loom::{
    cell::UnsafeCell,
    sync::{Arc, Notify},
    thread,
};

loom::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
}

/// CPUs are threads, waiters sleep at once, and every wait may also end for no reason.
pub(crate) struct Machine {
    latches: Vec<Notify>,
}

impl Machine {
    pub(crate) fn new(cpus: usize) -> Self {
        Self { latches: (0..cpus).map(|_| Notify::new()).collect() }
    }
}

impl Platform for Machine {
    fn cpu(&self) -> usize {
        CPU.with(Cell::get)
    }

    fn pause(&self) {
        thread::yield_now();
    }

    fn now(&self) -> u64 {
        0
    }

    fn spin_threshold(&self) -> u64 {
        0
    }

    fn wait(&self, still: impl Fn() -> bool) {
        if still() {
            self.latches[self.cpu()].wait();
        }
    }

    fn kick(&self, cpu: usize) {
        self.latches[cpu].notify();
    }

    fn is_preempted(&self, _: usize) -> bool {
        false
    }

    fn yield_to(&self, _: Option<usize>) {
        thread::yield_now();
    }

    fn count(&self, _: Event, _: u64) {}
}

/// What a model is bounded by; everything within is tried.
pub(crate) struct Bounds {
    /// CPUs, this thread included.
    pub(crate) cpus: usize,
    /// Acquisitions by each.
    pub(crate) rounds: usize,
    /// Involuntary switches from one thread to another in one execution.
    pub(crate) preemptions: usize,
}

/// All CPUs take one lock. They must not overlap, everything that one did must be visible to the next, and all must
/// come through. `at_rest` looks at the domain afterwards.
pub(crate) fn check<D, L>(bounds: Bounds, domain: fn(Machine) -> D, lock: fn() -> L, at_rest: fn(&D))
where
    D: Sync + Send + 'static,
    L: Lock<D> + Send + 'static,
{
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bounds.preemptions);
    builder.max_branches = 20_000;
    let executions = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = executions.clone();
    builder.check(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let domain = Arc::new(domain(Machine::new(bounds.cpus)));
        let lock = Arc::new(lock());
        let counter = Arc::new(UnsafeCell::new(0));
        let run = {
            let (domain, lock, counter) = (domain.clone(), lock.clone(), counter.clone());
            move |cpu| {
                CPU.with(|this| this.set(cpu));
                for _ in 0..bounds.rounds {
                    let token = lock.lock(&*domain);
                    counter.with_mut(
                        #[expect(unsafe_code, reason = "what the lock under test protects")]
                        // SAFETY: the claim under test; loom reports overlapping or unordered accesses.
                        |counter| unsafe { *counter += 1 },
                    );
                    lock.unlock(&*domain, token);
                }
            }
        };
        let others: Vec<_> = (1..bounds.cpus)
            .map(|cpu| {
                let run = run.clone();
                thread::spawn(move || run(cpu))
            })
            .collect();
        run(0);
        for other in others {
            other.join().unwrap();
        }
        counter.with(
            #[expect(unsafe_code, reason = "what the lock under test protects")]
            // SAFETY: all threads have been joined.
            |counter| assert_eq!(unsafe { *counter }, bounds.cpus * bounds.rounds),
        );
        at_rest(&domain);
    });
    println!("{} executions", executions.load(std::sync::atomic::Ordering::Relaxed));
}
