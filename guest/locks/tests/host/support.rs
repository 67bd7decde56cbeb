//! A machine made of host threads, and what every test on it needs.
//!
//! Each thread is a CPU. `wait` blocks for good until a kick: a lost one hangs the test, and the watchdog
//! then says who was doing what.

use std::{
    cell::{Cell, RefCell, UnsafeCell},
    env,
    ops::Deref,
    rc::Rc,
    sync::{
        Arc, Barrier, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use haltkick_locks::{Activity, Event, Lock, Platform, Point};

/// How much work a test does: Miri is some thousand times slower than the processor.
pub(crate) const fn rounds(native: usize) -> usize {
    if cfg!(miri) { native / 500 + 2 } else { native }
}

/// A set of threads that play CPUs.
#[derive(Clone)]
pub(crate) struct Host(Arc<Inner>);

pub(crate) struct Inner {
    start: Instant,
    cpus: Vec<Cpu>,
    slice_ends_soon: AtomicBool,
    overcommitted: AtomicBool,
    insistent: AtomicBool,
    slices_given_up: AtomicU64,
}

struct Cpu {
    latch: Mutex<bool>,
    kicked: Condvar,
    activity: AtomicU8,
    sections: AtomicU32,
    pauses: AtomicU64,
    spin_threshold: AtomicU64,
    preempted: AtomicBool,
    in_nmi: AtomicBool,
    /// Bit `i`: has yielded to CPU `i`.
    yielded: AtomicU64,
    events: [AtomicU64; Event::COUNT],
}

/// What a CPU does at each point it passes.
type Hook = Rc<dyn Fn(Point)>;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    static AT_PAUSE: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
    static BEFORE_KICK: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

impl Deref for Host {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Host {
    /// A host whose waiters sleep at the first look at the clock.
    pub(crate) fn impatient(cpus: usize) -> Self {
        Self::new(cpus, Duration::ZERO)
    }

    /// A host whose waiters spin for `spin_threshold`.
    pub(crate) fn new(cpus: usize, spin_threshold: Duration) -> Self {
        let cpu = |_| Cpu {
            latch: Mutex::new(false),
            kicked: Condvar::new(),
            activity: AtomicU8::new(0),
            sections: AtomicU32::new(0),
            pauses: AtomicU64::new(0),
            spin_threshold: AtomicU64::new(spin_threshold.as_nanos() as u64),
            preempted: AtomicBool::new(false),
            in_nmi: AtomicBool::new(false),
            yielded: AtomicU64::new(0),
            events: [const { AtomicU64::new(0) }; Event::COUNT],
        };
        Self(Arc::new(Inner {
            start: Instant::now(),
            cpus: (0..cpus).map(cpu).collect(),
            slice_ends_soon: AtomicBool::new(false),
            overcommitted: AtomicBool::new(true),
            insistent: AtomicBool::new(false),
            slices_given_up: AtomicU64::new(0),
        }))
    }

    /// Makes the calling thread CPU `cpu`.
    pub(crate) fn become_cpu(cpu: usize) {
        CPU.set(cpu);
    }

    /// Runs `hook` at each point that the calling thread passes.
    pub(crate) fn hook(hook: impl Fn(Point) + 'static) {
        HOOK.set(Some(Rc::new(hook)));
    }

    /// Runs `hook` once, the first time that the calling thread passes `point`.
    pub(crate) fn hook_once(point: Point, hook: impl FnOnce() + 'static) {
        let hook = Cell::new(Some(hook));
        Self::hook(move |passed| {
            if passed == point
                && let Some(hook) = hook.take()
            {
                hook();
            }
        });
    }

    /// Runs `hook` at each pause of the calling thread.
    pub(crate) fn hook_pauses(hook: impl Fn() + 'static) {
        AT_PAUSE.set(Some(Rc::new(hook)));
    }

    /// Runs `hook` once, the next time that the calling thread kicks somebody, before the kick.
    pub(crate) fn hook_before_kick(hook: impl FnOnce() + 'static) {
        BEFORE_KICK.set(Some(Box::new(hook)));
    }

    /// Runs `cpu(i)` on all CPUs at once, and returns when all are done.
    pub(crate) fn run(&self, cpu: impl Fn(usize) + Sync) {
        let _watchdog = Watchdog::new(self);
        let barrier = Barrier::new(self.cpus.len());
        thread::scope(|scope| {
            for i in 0..self.cpus.len() {
                let (cpu, barrier) = (&cpu, &barrier);
                scope.spawn(move || {
                    Self::become_cpu(i);
                    barrier.wait();
                    cpu(i);
                });
            }
        });
    }

    /// Sum of an event over all CPUs.
    pub(crate) fn events(&self, event: Event) -> u64 {
        self.cpus.iter().map(|cpu| cpu.events[event.index()].load(Relaxed)).sum()
    }

    /// What `cpu` does.
    pub(crate) fn does(&self, cpu: usize, activity: Activity) -> bool {
        self.cpus[cpu].activity.load(Relaxed) == activity as u8
    }

    /// How many CPUs do `activity`.
    pub(crate) fn doing(&self, activity: Activity) -> usize {
        self.cpus.iter().filter(|cpu| cpu.activity.load(Relaxed) == activity as u8).count()
    }

    /// Waits until `n` CPUs do `activity`.
    pub(crate) fn until_doing(&self, n: usize, activity: Activity) {
        while self.doing(activity) < n {
            thread::yield_now();
        }
    }

    /// Waits until `event` has been counted `n` times.
    pub(crate) fn until_counted(&self, n: u64, event: Event) {
        while self.events(event) < n {
            thread::yield_now();
        }
    }

    /// Serves an NMI on the calling CPU.
    pub(crate) fn nmi(&self, handler: impl FnOnce()) {
        let in_nmi = &self.cpus[self.cpu()].in_nmi;
        in_nmi.store(true, Relaxed);
        handler();
        in_nmi.store(false, Relaxed);
    }

    /// Makes one CPU spin for `spin_threshold`.
    pub(crate) fn set_patience(&self, cpu: usize, spin_threshold: Duration) {
        self.cpus[cpu].spin_threshold.store(spin_threshold.as_nanos() as u64, Relaxed);
    }

    /// How often `cpu` has paused.
    pub(crate) fn pauses(&self, cpu: usize) -> u64 {
        self.cpus[cpu].pauses.load(Relaxed)
    }

    /// Waits until `cpu` has paused `n` times more.
    pub(crate) fn until_paused(&self, cpu: usize, n: u64) {
        let before = self.pauses(cpu);
        while self.pauses(cpu) < before + n {
            thread::yield_now();
        }
    }

    /// Sets what `is_preempted(cpu)` says.
    pub(crate) fn set_preempted(&self, cpu: usize, preempted: bool) {
        self.cpus[cpu].preempted.store(preempted, Relaxed);
    }

    /// Sets what all CPUs are told about their slices.
    pub(crate) fn set_slice_ends_soon(&self, soon: bool) {
        self.slice_ends_soon.store(soon, Relaxed);
    }

    /// Sets what all CPUs are told about the load of the host.
    pub(crate) fn set_overcommitted(&self, overcommitted: bool) {
        self.overcommitted.store(overcommitted, Relaxed);
    }

    /// From now on, who goes to sleep insists as soon as it has been overtaken.
    pub(crate) fn set_insistent(&self, insistent: bool) {
        self.insistent.store(insistent, Relaxed);
    }

    /// How often CPUs have yielded to nobody in particular.
    pub(crate) fn slices_given_up(&self) -> u64 {
        self.slices_given_up.load(Relaxed)
    }

    /// Waits until `cpu` has yielded to `target`.
    pub(crate) fn until_yielded(&self, cpu: usize, target: usize) {
        while self.cpus[cpu].yielded.load(Relaxed) & 1 << target == 0 {
            thread::yield_now();
        }
    }

    fn report(&self) -> String {
        let activity = |cpu: &Cpu| match cpu.activity.load(Relaxed) {
            0 => "-",
            1 => "holder",
            2 => "waiter",
            _ => "head",
        };
        let cpus: Vec<_> = self.cpus.iter().map(activity).collect();
        let events = Event::ALL.map(|event| format!("\n  {} {}", event.name(), self.events(event)));
        format!("CPUs: {}{}", cpus.join(" "), events.concat())
    }
}

impl Platform for Host {
    fn cpu(&self) -> usize {
        CPU.get()
    }

    fn pause(&self) {
        self.cpus[self.cpu()].pauses.fetch_add(1, Relaxed);
        let hook = AT_PAUSE.with_borrow(Option::clone);
        if let Some(hook) = hook {
            hook();
        }
        // There are more threads than processors: a spinning one should not use up its slice.
        thread::yield_now();
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn spin_threshold(&self) -> u64 {
        self.cpus[self.cpu()].spin_threshold.load(Relaxed)
    }

    fn wait(&self, still: impl Fn() -> bool) {
        let cpu = &self.cpus[self.cpu()];
        if cpu.in_nmi.load(Relaxed) || !still() {
            return;
        }
        let mut latch = cpu.latch.lock().unwrap();
        while !*latch {
            latch = cpu.kicked.wait(latch).unwrap();
        }
        *latch = false;
    }

    fn kick(&self, cpu: usize) {
        if let Some(hook) = BEFORE_KICK.take() {
            hook();
        }
        let cpu = &self.cpus[cpu];
        *cpu.latch.lock().unwrap() = true;
        cpu.kicked.notify_one();
    }

    fn is_preempted(&self, cpu: usize) -> bool {
        self.cpus[cpu].preempted.load(Relaxed)
    }

    fn ticks(&self, nanoseconds: u64) -> u64 {
        if self.insistent.load(Relaxed) { 0 } else { nanoseconds }
    }

    fn slice_left(&self) -> u64 {
        if self.slice_ends_soon.load(Relaxed) { 0 } else { u64::MAX }
    }

    fn slice_margin(&self) -> u64 {
        1
    }

    fn is_overcommitted(&self) -> bool {
        self.overcommitted.load(Relaxed)
    }

    fn yield_to(&self, cpu: Option<usize>) {
        match cpu {
            Some(target) => _ = self.cpus[self.cpu()].yielded.fetch_or(1 << target, Relaxed),
            None => _ = self.slices_given_up.fetch_add(1, Relaxed),
        }
        thread::yield_now();
    }

    fn count(&self, event: Event, n: u64) {
        self.cpus[self.cpu()].events[event.index()].fetch_add(n, Relaxed);
    }

    fn is_in_section(&self) -> bool {
        self.cpus[self.cpu()].sections.load(Relaxed) != 0
    }

    fn section_entered(&self) {
        self.cpus[self.cpu()].sections.fetch_add(1, Relaxed);
        self.announce(Activity::Holder);
    }

    fn section_left(&self) {
        let left = self.cpus[self.cpu()].sections.fetch_sub(1, Relaxed) - 1;
        self.announce(if left == 0 { Activity::Other } else { Activity::Holder });
    }

    fn announce(&self, activity: Activity) {
        let cpu = &self.cpus[self.cpu()];
        cpu.activity.store(activity.among(cpu.sections.load(Relaxed)) as u8, Relaxed);
    }

    fn point(&self, point: Point) {
        // The hook is taken by reference count, so that it may pass points itself.
        let hook = HOOK.with_borrow(Option::clone);
        if let Some(hook) = hook {
            hook(point);
        }
    }
}

/// Something that happens once, in one thread, and that others wait for.
#[derive(Clone, Default)]
pub(crate) struct Signal(Arc<AtomicBool>);

impl Signal {
    pub(crate) fn give(&self) {
        self.0.store(true, Release);
    }

    pub(crate) fn given(&self) -> bool {
        self.0.load(Acquire)
    }

    pub(crate) fn await_it(&self) {
        while !self.given() {
            thread::yield_now();
        }
    }
}

/// Ends the process, with a report, unless dropped in time.
pub(crate) struct Watchdog {
    fed: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watchdog {
    pub(crate) fn new(host: &Host) -> Self {
        let limit = env::var("WATCHDOG_SECONDS").map_or(120, |seconds| seconds.parse().expect("a number"));
        let limit = Duration::from_secs(if cfg!(miri) { 3600 } else { limit });
        let (fed, starved) = mpsc::channel();
        let host = host.clone();
        let test = thread::current().name().unwrap_or("test").to_owned();
        let thread = thread::spawn(move || {
            if starved.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{test}: no progress for {limit:?}\n{}", host.report());
                std::process::abort();
            }
        });
        Self { fed: Some(fed), thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.fed.take());
        _ = self.thread.take().unwrap().join();
    }
}

/// A counter that only a lock protects: unsynchronised on purpose.
#[derive(Default)]
pub(crate) struct Plain(UnsafeCell<u64>);

#[expect(unsafe_code, reason = "what the lock under test protects")]
// SAFETY: this is the claim under test. Where a lock fails, counts are lost, or Miri reports a race.
unsafe impl Sync for Plain {}

impl Plain {
    /// Adds one, in two steps with a chance to be overtaken in between.
    #[expect(unsafe_code, reason = "what the lock under test protects")]
    pub(crate) fn increment(&self) {
        // SAFETY: the claim under test, as above.
        let seen = unsafe { self.0.get().read_volatile() };
        if seen % 64 == 0 {
            thread::yield_now();
        }
        // SAFETY: the claim under test, as above.
        unsafe { self.0.get().write_volatile(seen + 1) };
    }

    /// The count, once all that increment it are done.
    #[expect(unsafe_code, reason = "what the lock under test protects")]
    pub(crate) fn get(&self) -> u64 {
        // SAFETY: the threads that wrote have been joined.
        unsafe { self.0.get().read_volatile() }
    }

    pub(crate) fn into_inner(self) -> u64 {
        self.0.into_inner()
    }
}

/// All CPUs increment one plain counter `rounds` times each under one lock.
pub(crate) fn no_increment_is_lost<D: Sync, L: Lock<D>>(host: &Host, domain: &D, lock: &L, rounds: usize) {
    let counter = Plain::default();
    host.run(|_| {
        for _ in 0..rounds {
            let token = lock.lock(domain);
            counter.increment();
            lock.unlock(domain, token);
        }
    });
    assert_eq!(counter.into_inner(), (host.cpus.len() * rounds) as u64);
}

/// As above, but each CPU takes the lock by `try_lock` where it can.
pub(crate) fn no_increment_is_lost_when_trying<D: Sync, L: Lock<D>>(
    host: &Host,
    domain: &D,
    lock: &L,
    rounds: usize,
) {
    let counter = Plain::default();
    host.run(|_| {
        for _ in 0..rounds {
            let token = lock.try_lock(domain).unwrap_or_else(|| lock.lock(domain));
            counter.increment();
            lock.unlock(domain, token);
        }
    });
    assert_eq!(counter.into_inner(), (host.cpus.len() * rounds) as u64);
}

/// `try_lock` tells a held lock from a free one, on one CPU and across two.
pub(crate) fn try_lock_tells_held_from_free<D: Sync, L: Lock<D>>(domain: &D, lock: &L) {
    Host::become_cpu(0);
    let token = lock.try_lock(domain).expect("a new lock is free");
    thread::scope(|scope| {
        scope.spawn(|| {
            Host::become_cpu(1);
            assert!(lock.try_lock(domain).is_none(), "held by CPU 0");
        });
    });
    assert!(lock.try_lock(domain).is_none(), "held by this CPU");
    lock.unlock(domain, token);
    let token = lock.try_lock(domain).expect("released");
    lock.unlock(domain, token);
    let token = lock.lock(domain);
    assert!(lock.try_lock(domain).is_none(), "held by this CPU");
    lock.unlock(domain, token);
}

/// CPUs hold two locks at a time and release them in both orders.
pub(crate) fn two_locks_may_be_released_in_any_order<D: Sync, L: Lock<D>>(
    host: &Host,
    domain: &D,
    locks: [&L; 2],
    rounds: usize,
) {
    let counters = [Plain::default(), Plain::default()];
    host.run(|_| {
        for round in 0..rounds {
            let [a, b] = locks.map(|lock| lock.lock(domain));
            counters.iter().for_each(Plain::increment);
            if round % 2 == 0 {
                locks[0].unlock(domain, a);
                locks[1].unlock(domain, b);
            } else {
                locks[1].unlock(domain, b);
                locks[0].unlock(domain, a);
            }
        }
    });
    for counter in counters {
        assert_eq!(counter.into_inner(), (host.cpus.len() * rounds) as u64);
    }
}
