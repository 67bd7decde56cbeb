//! The machine: CPUs that are threads, and a host that says what a test has told it to, or what is drawn.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU8, AtomicU32, AtomicU64,
            Ordering::{Relaxed, Release},
        },
    },
};
#[cfg(not(any(loom, shuttle)))]
use std::{
    env,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use haltkick_locks::{Activity, Event, Platform, Point};

use crate::threads::{self, Clock, Latch, draw};
#[cfg(not(any(loom, shuttle)))]
use crate::threads::{Signal, until};

/// A set of threads that play CPUs.
///
/// With shuttle, the host's answers are drawn anew each time, for they may change at any: spin budget, load,
/// slices, preemptions. Else they are those that a test has set; at first that there is more to do than there
/// are processors, that no vCPU is preempted, and that no slice ends.
///
/// Data kept here for tests to read is invisible to the model checkers and adds no interleavings. A thread that
/// waits until a CPU has come somewhere (`until_...`) sees all that it has done on the way. The flag of that is
/// written by Release, and read by Acquire there and nowhere else, so that watching makes no lock look more
/// ordered than it is.
#[derive(Clone, Debug)]
pub struct Cpus(Arc<Machine>);

/// State that the CPUs share.
#[derive(Debug)]
struct Machine {
    clock: Clock,
    cpus: Vec<Cpu>,
    slice_ends_soon: AtomicBool,
    overcommitted: AtomicBool,
    /// Ticks of a nanosecond of patience that is measured in time.
    nanosecond: AtomicU64,
    slices_given_up: AtomicU64,
    /// Loom: rounds of spinning, or of yielding to a CPU, in this execution before it is no longer branched on.
    #[cfg(loom)]
    pauses_left: AtomicU64,
}

#[derive(Debug, Default)]
struct Cpu {
    latch: Latch,
    activity: AtomicU8,
    sections: AtomicU32,
    pauses: AtomicU64,
    spin_threshold: AtomicU64,
    spin_rounds: AtomicU32,
    lock_limit: AtomicU64,
    preempted: AtomicBool,
    in_nmi: AtomicBool,
    /// Bit `i`: has yielded to CPU `i`.
    yielded: AtomicU64,
    events: Vec<AtomicU64>,
}

/// Action of a CPU at each point it passes.
type Hook = Rc<dyn Fn(Point)>;

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    static AT_PAUSE: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
    static BEFORE_KICK: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

impl Cpus {
    /// CPUs whose waiters sleep at the first look at the clock.
    pub fn impatient(cpus: usize) -> Self {
        let cpu = |_| Cpu {
            lock_limit: AtomicU64::new(u64::MAX),
            events: (0..Event::COUNT).map(|_| AtomicU64::new(0)).collect(),
            ..Cpu::default()
        };
        Self(Arc::new(Machine {
            clock: Clock::new(),
            cpus: (0..cpus).map(cpu).collect(),
            slice_ends_soon: AtomicBool::new(false),
            overcommitted: AtomicBool::new(true),
            nanosecond: AtomicU64::new(1),
            slices_given_up: AtomicU64::new(0),
            #[cfg(loom)]
            pauses_left: AtomicU64::new(u64::MAX),
        }))
    }

    /// Never ends a spin budget that is measured in time, however slow the host is (Miri's clock goes by its
    /// own steps).
    #[must_use]
    pub fn unhurried(self) -> Self {
        self.0.nanosecond.store(1 << 20, Relaxed);
        self
    }

    /// A sleeper insists as soon as it has been overtaken.
    #[must_use]
    pub fn insistent(self) -> Self {
        self.0.nanosecond.store(0, Relaxed);
        self
    }

    /// Waiters spin for `ticks` before they sleep.
    #[must_use]
    pub fn patient(self, ticks: u64) -> Self {
        self.0.cpus.iter().for_each(|cpu| cpu.spin_threshold.store(ticks, Relaxed));
        self
    }

    /// Heads of queues wait for `ticks` for a lock that can fail; at first forever.
    #[must_use]
    pub fn limited(self, ticks: u64) -> Self {
        self.0.cpus.iter().for_each(|cpu| cpu.lock_limit.store(ticks, Relaxed));
        self
    }

    /// Loom: two CPUs that spin can yield to each other any number of times before the owner runs again, which makes the tree
    /// of executions infinite. So an execution in which the CPUs have paused `pauses` times runs to its end without branching
    /// any further.
    #[cfg(loom)]
    #[must_use]
    pub fn branching_for(self, pauses: u64) -> Self {
        self.0.pauses_left.store(pauses, Relaxed);
        self
    }

    /// Makes the calling thread CPU `cpu`.
    pub fn become_cpu(cpu: usize) {
        threads::become_cpu(cpu);
    }

    /// Runs `hook` at each point that the calling thread passes.
    pub fn hook(hook: impl Fn(Point) + 'static) {
        HOOK.set(Some(Rc::new(hook)));
    }

    /// Runs `hook` once, the first time that the calling thread passes `point`.
    pub fn hook_once(point: Point, hook: impl FnOnce() + 'static) {
        let hook = Cell::new(Some(hook));
        Self::hook(move |passed| {
            if passed == point
                && let Some(hook) = hook.take()
            {
                hook();
            }
        });
    }

    /// Runs `hook` at each pause of the calling thread, and each time that it finds another CPU preempted.
    pub fn hook_pauses(hook: impl Fn() + 'static) {
        AT_PAUSE.set(Some(Rc::new(hook)));
    }

    /// Runs `hook` once, before the next kick of the calling thread.
    pub fn hook_before_kick(hook: impl FnOnce() + 'static) {
        BEFORE_KICK.set(Some(Box::new(hook)));
    }
}

/// Waiting by threads of the host, and actions on all CPUs at once.
#[cfg(not(any(loom, shuttle)))]
impl Cpus {
    /// CPUs whose waiters spin for `spin_threshold`.
    pub fn new(cpus: usize, spin_threshold: Duration) -> Self {
        Self::impatient(cpus).patient(spin_threshold.as_nanos() as u64)
    }

    /// Gives `signal` the first time that the calling thread passes `point`.
    pub fn give_at(point: Point, signal: Signal) {
        Self::hook_once(point, move || signal.give());
    }

    /// Stops the calling thread the first time that it passes `point`: it gives `there`, and goes on after `goes_on`.
    pub fn stand_at(point: Point, there: Signal, goes_on: Signal) {
        Self::hook_once(point, move || {
            there.give();
            goes_on.await_it();
        });
    }

    /// Runs `cpu(i)` on all CPUs at once, and returns when all are done.
    pub fn run(&self, cpu: impl Fn(usize) + Sync) {
        self.run_some(self.0.cpus.len(), cpu);
    }

    /// Runs `cpu` on the first `cpus` CPUs. If they are not done in time, a kick may have been lost: the process ends, with a report.
    pub fn run_some(&self, cpus: usize, cpu: impl Fn(usize) + Sync) {
        let limit = env::var("WATCHDOG_SECONDS").map_or(120, |seconds| seconds.parse().expect("a number"));
        let limit = Duration::from_secs(if cfg!(miri) { 3600 } else { limit });
        let barrier = std::sync::Barrier::new(cpus);
        let (at_work, all_done) = mpsc::channel::<()>();
        thread::scope(|scope| {
            for i in 0..cpus {
                let (cpu, barrier, at_work) = (&cpu, &barrier, at_work.clone());
                scope.spawn(move || {
                    Self::become_cpu(i);
                    barrier.wait();
                    cpu(i);
                    // A panic drops it, too.
                    drop(at_work);
                });
            }
            drop(at_work);
            if all_done.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let test = thread::current().name().unwrap_or("test").to_owned();
                eprintln!("{test}: no progress for {limit:?}\n{}", self.report());
                std::process::abort();
            }
        });
    }

    /// Waits until `n` CPUs do `activity`.
    pub fn until_doing(&self, n: usize, activity: Activity) {
        until(|| self.doing(activity) >= n);
    }

    /// Waits until `event` has been counted `n` times.
    pub fn until_counted(&self, n: u64, event: Event) {
        until(|| self.events(event) >= n);
    }

    /// Waits until `cpu` has paused `n` times more.
    pub fn until_paused(&self, cpu: usize, n: u64) {
        let before = self.pauses(cpu);
        until(|| self.pauses(cpu) >= before + n);
    }

    /// Waits until `cpu` has yielded to `target`.
    pub fn until_yielded(&self, cpu: usize, target: usize) {
        until(|| self.has_yielded(cpu, target));
    }

    /// Makes one CPU spin for `spin_threshold`.
    pub fn set_patience(&self, cpu: usize, spin_threshold: Duration) {
        self.0.cpus[cpu].spin_threshold.store(spin_threshold.as_nanos() as u64, Relaxed);
    }

    /// Makes one CPU wait at most for `limit` for a lock that can fail.
    pub fn set_lock_limit(&self, cpu: usize, limit: Duration) {
        self.0.cpus[cpu].lock_limit.store(limit.as_nanos() as u64, Relaxed);
    }

    /// Makes one CPU spin for `rounds` rounds, however long they take.
    pub fn set_rounds(&self, cpu: usize, rounds: u32) {
        self.0.cpus[cpu].spin_rounds.store(rounds, Relaxed);
    }
}

impl Cpus {
    /// How many there are.
    pub fn count_cpus(&self) -> usize {
        self.0.cpus.len()
    }

    /// Sum of an event over all CPUs.
    pub fn events(&self, event: Event) -> u64 {
        self.0.cpus.iter().map(|cpu| cpu.events[event as usize].load(Relaxed)).sum()
    }

    /// Whether `cpu` does `activity`.
    pub fn does(&self, cpu: usize, activity: Activity) -> bool {
        self.0.cpus[cpu].activity.load(Relaxed) == activity as u8
    }

    /// How many CPUs do `activity`.
    pub fn doing(&self, activity: Activity) -> usize {
        (0..self.0.cpus.len()).filter(|cpu| self.does(*cpu, activity)).count()
    }

    /// Serves an NMI on the calling CPU.
    pub fn nmi(&self, handler: impl FnOnce()) {
        let in_nmi = &self.0.cpus[threads::cpu()].in_nmi;
        in_nmi.store(true, Relaxed);
        handler();
        in_nmi.store(false, Relaxed);
    }

    /// How often `cpu` has paused.
    pub fn pauses(&self, cpu: usize) -> u64 {
        self.0.cpus[cpu].pauses.load(Relaxed)
    }

    /// Sets what `is_preempted(cpu)` says.
    pub fn set_preempted(&self, cpu: usize, preempted: bool) {
        self.0.cpus[cpu].preempted.store(preempted, Relaxed);
    }

    /// Whether `cpu` has yielded to `target`.
    pub fn has_yielded(&self, cpu: usize, target: usize) -> bool {
        self.0.cpus[cpu].yielded.load(Relaxed) & 1 << target != 0
    }

    /// Sets what all CPUs are told about their slices.
    pub fn set_slice_ends_soon(&self, soon: bool) {
        self.0.slice_ends_soon.store(soon, Relaxed);
    }

    /// Sets what all CPUs are told about the load of the host.
    pub fn set_overcommitted(&self, overcommitted: bool) {
        self.0.overcommitted.store(overcommitted, Relaxed);
    }

    /// Returns how often CPUs have yielded without naming a CPU.
    pub fn slices_given_up(&self) -> u64 {
        self.0.slices_given_up.load(Relaxed)
    }

    /// Loom: one round of those after which an execution is no longer branched on.
    fn spun_once(&self) {
        #[cfg(loom)]
        match self.0.pauses_left.load(Relaxed) {
            0 => loom::skip_branch(),
            // Not one step, as loom runs one thread at a time.
            left => self.0.pauses_left.store(left - 1, Relaxed),
        }
    }

    /// Lists the activity of each CPU, and the events so far.
    pub fn report(&self) -> String {
        let activity = |cpu: &Cpu| ["-", "holder", "waiter", "head"][usize::from(cpu.activity.load(Relaxed))];
        let cpus: Vec<_> = self.0.cpus.iter().map(activity).collect();
        let events = Event::ALL.map(|event| format!("\n  {} {}", event.name(), self.events(event)));
        format!("CPUs: {}{}", cpus.join(" "), events.concat())
    }
}

/// Once in `n` times, where answers are drawn; else `told`.
fn one_in(n: u64, told: impl FnOnce() -> bool) -> bool {
    draw(n).map_or_else(told, |drawn| drawn == 0)
}

/// Taken by reference count, here and in `point`, so that a hook may itself pause and pass points.
fn run_hook_of_pauses() {
    if let Some(hook) = AT_PAUSE.with_borrow(Option::clone) {
        hook();
    }
}

impl Platform for Cpus {
    fn cpu(&self) -> usize {
        threads::cpu()
    }

    fn pause(&self) {
        self.0.cpus[self.cpu()].pauses.fetch_add(1, Release);
        self.0.clock.paused();
        run_hook_of_pauses();
        self.spun_once();
        threads::yield_now();
    }

    fn now(&self) -> u64 {
        self.0.clock.now()
    }

    fn spin_threshold(&self) -> u64 {
        draw(8).unwrap_or_else(|| self.0.cpus[self.cpu()].spin_threshold.load(Relaxed))
    }

    fn spin_rounds(&self) -> u32 {
        self.0.cpus[self.cpu()].spin_rounds.load(Relaxed)
    }

    fn lock_limit(&self) -> u64 {
        draw(8).unwrap_or_else(|| self.0.cpus[self.cpu()].lock_limit.load(Relaxed))
    }

    fn is_in_nmi(&self) -> bool {
        self.0.cpus[self.cpu()].in_nmi.load(Relaxed)
    }

    fn wait(&self, still: impl Fn() -> bool) {
        let cpu = &self.0.cpus[self.cpu()];
        if self.is_in_nmi() {
            return;
        }
        if !still() {
            // No reason to sleep, yet the caller may be back at once: to loom a spin loop like any other.
            if cfg!(loom) {
                self.pause();
            }
            return;
        }
        if !one_in(4, || false) {
            cpu.latch.sleep();
        }
    }

    fn kick(&self, cpu: usize) {
        if let Some(hook) = BEFORE_KICK.take() {
            hook();
        }
        self.0.cpus[cpu].latch.kick();
    }

    fn is_preempted(&self, cpu: usize) -> bool {
        let is_preempted = one_in(3, || self.0.cpus[cpu].preempted.load(Relaxed));
        if is_preempted {
            run_hook_of_pauses();
        }
        is_preempted
    }

    fn ticks(&self, nanoseconds: u64) -> u64 {
        // A few looks at the clock: patience that is measured in time ends, too.
        draw(16).unwrap_or_else(|| nanoseconds * self.0.nanosecond.load(Relaxed))
    }

    fn is_overcommitted(&self) -> bool {
        !one_in(4, || !self.0.overcommitted.load(Relaxed))
    }

    fn yield_to(&self, cpu: Option<usize>) {
        match cpu {
            Some(target) => {
                self.0.cpus[self.cpu()].yielded.fetch_or(1 << target, Release);
                self.spun_once();
            }
            None => _ = self.0.slices_given_up.fetch_add(1, Relaxed),
        }
        threads::yield_now();
    }

    fn is_in_section(&self) -> bool {
        one_in(4, || self.0.cpus[self.cpu()].sections.load(Relaxed) != 0)
    }

    fn section_entered(&self) {
        self.0.cpus[self.cpu()].sections.fetch_add(1, Relaxed);
        self.announce(Activity::Holder);
    }

    fn section_left(&self) {
        let left = self.0.cpus[self.cpu()].sections.fetch_sub(1, Relaxed) - 1;
        self.announce(if left == 0 { Activity::Other } else { Activity::Holder });
    }

    fn slice_left(&self) -> u64 {
        if one_in(4, || self.0.slice_ends_soon.load(Relaxed)) { 0 } else { u64::MAX }
    }

    fn slice_margin(&self) -> u64 {
        1
    }

    fn count(&self, event: Event, n: u64) {
        self.0.cpus[self.cpu()].events[event as usize].fetch_add(n, Release);
        if n != 0 {
            reach(event);
        }
    }

    fn announce(&self, activity: Activity) {
        let cpu = &self.0.cpus[self.cpu()];
        cpu.activity.store(activity.among(cpu.sections.load(Relaxed)) as u8, Release);
    }

    fn point(&self, point: Point) {
        if let Some(hook) = HOOK.with_borrow(Option::clone) {
            hook(point);
        }
    }
}

thread_local! {
    /// Set of the events that some execution of this test has counted. A model checker runs all of them on one thread.
    static REACHED: Cell<u64> = const { Cell::new(0) };
}

fn reach(event: Event) {
    REACHED.with(|reached| reached.set(reached.get() | 1 << (event as usize)));
}

/// That the executions of this test have come to what they are about; of a schedule that is replayed, nothing is asked.
pub fn assert_reached<const EVENTS: usize>(events: [Event; EVENTS]) {
    let is_replay = std::env::var_os("SHUTTLE_REPLAY").is_some();
    for event in events {
        let reached = REACHED.with(Cell::get) & 1 << (event as usize) != 0;
        assert!(reached || is_replay, "no execution has come to {}", event.name());
    }
}
