//! `--sched host`: one thread per vCPU on the set of pCPUs; the host's scheduler decides who runs.
//!
//! Sleep is [`std::thread::park`], kick is `unpark`: a token that is latched when the thread does not sleep, which is
//! what `pv_kick` asks for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::Scope;
use std::time::Duration;

use haltkick_hypercalls::READY_UNKNOWN;

use crate::host::affinity;
use crate::host::clock::now_ns;
use crate::host::error::{RunError, system};
use crate::host::locks::{lock, unlocked};
use crate::host::signal::{self, KickTimer, Thread};
use crate::host::switches::ThreadDoes;
use crate::machine::exits::Exit;
use crate::machine::vcpu::Vcpu;
use crate::observe::observer::Observer;
use crate::observe::trace::Why;
use crate::sched::account::{Account, By, Place};
use crate::sched::deschedule::{Injector, Plan};
use crate::sched::guest_run::GuestRun;
use crate::sched::{Finished, SchedStat};

/// The threads.
pub(crate) struct HostThreads<'a> {
    run: &'a GuestRun<'a>,
    /// One per vCPU, to end a sleep. Complete before any vCPU runs.
    sleepers: OnceLock<Vec<std::thread::Thread>>,
    /// One per vCPU, to end KVM_RUN.
    threads: Vec<OnceLock<Thread>>,
    /// Orders a thread's registration against [`Self::interrupt`].
    registration: Mutex<()>,
    kicks: Vec<AtomicU64>,
    sleeping: Vec<AtomicBool>,
    asleep: AtomicU64,
    left: AtomicU64,
    booted: AtomicBool,
    /// Not started yet.
    vcpus: Mutex<Vec<Vcpu>>,
    finished: Mutex<Vec<Finished>>,
    plan: Option<Plan>,
}

/// What takes one vCPU off on purpose.
struct Descheduler {
    injector: Injector,
    timer: KickTimer,
}

impl Descheduler {
    fn set_alarm(&self) {
        if let Some(at_ns) = self.injector.alarm() {
            self.timer.set(at_ns.max(1), 0);
        }
    }
}

impl<'a> HostThreads<'a> {
    /// Takes over `vcpus`.
    pub(crate) fn new(run: &'a GuestRun<'a>, vcpus: Vec<Vcpu>, plan: Option<Plan>) -> Self {
        let count = vcpus.len();
        run.memory.control().ready_vcpus.store(READY_UNKNOWN, Ordering::Relaxed);
        Self {
            run,
            sleepers: OnceLock::new(),
            threads: (0..count).map(|_| OnceLock::new()).collect(),
            registration: Mutex::new(()),
            kicks: (0..count).map(|_| AtomicU64::new(0)).collect(),
            sleeping: (0..count).map(|_| AtomicBool::new(false)).collect(),
            asleep: AtomicU64::new(0),
            left: AtomicU64::new(0),
            // A kernel of its own starts its vCPUs itself; KVM keeps them waiting until then.
            booted: AtomicBool::new(run.runs_linux),
            vcpus: Mutex::new(vcpus),
            finished: Mutex::default(),
            plan,
        }
    }

    /// Starts a thread per vCPU on `cpus`.
    pub(crate) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, cpus: &'scope [u32]) {
        let started: std::io::Result<Vec<_>> = std::mem::take(&mut *lock(&self.vcpus))
            .into_iter()
            .map(|vcpu| {
                let builder =
                    std::thread::Builder::new().name(format!("vcpu{}", vcpu.id)).stack_size(128 << 10);
                let thread = builder.spawn_scoped(scope, move || self.serve_vcpu(vcpu, cpus))?;
                Ok(thread.thread().clone())
            })
            .collect();
        match started {
            Ok(sleepers) => {
                let sleepers = self.sleepers.get_or_init(|| sleepers);
                sleepers.iter().for_each(std::thread::Thread::unpark);
            }
            Err(source) => {
                let what = "start a thread per vCPU (raise `ulimit -u`, or use fewer vCPUs)".into();
                self.run.fail(RunError::System { what, source });
                // Those that were started wait for a signal that will not come: they look at this instead.
                self.run.stop();
            }
        }
    }

    /// Gets every thread out of its vCPU and to its end. [`GuestRun::stop`] comes first.
    pub(crate) fn interrupt(&self) {
        let _registration = lock(&self.registration);
        self.threads.iter().filter_map(OnceLock::get).for_each(|thread| thread.kick());
        self.sleepers.get().into_iter().flatten().for_each(std::thread::Thread::unpark);
    }

    /// All vCPUs' books, once the threads have ended.
    pub(crate) fn finish(self) -> Vec<Finished> {
        unlocked(self.finished)
    }

    /// What the kernel says of each vCPU's thread; `None` where it says nothing.
    pub(crate) fn sched_stats(&self) -> Vec<Option<SchedStat>> {
        self.threads.iter().map(|thread| read_sched_stat(*thread.get()?)).collect()
    }

    /// Whether every vCPU that has not left sleeps.
    pub(crate) fn all_asleep(&self) -> bool {
        let (all, left) = (self.threads.len() as u64, self.left.load(Ordering::SeqCst));
        left < all && (self.asleep.load(Ordering::SeqCst) + left == all || self.all_halt_in_kernel())
    }

    /// The same where KVM puts vCPUs to sleep, by the state of their threads: KVM does not tell of one in KVM_RUN.
    fn all_halt_in_kernel(&self) -> bool {
        // One that is gone has left.
        let sleeps_or_left = |thread: &Thread| is_asleep(*thread).unwrap_or(true);
        self.run.halts_in_kernel && self.threads.iter().all(|thread| thread.get().is_some_and(sleeps_or_left))
    }

    fn serve_vcpu(&self, mut vcpu: Vcpu, cpus: &[u32]) {
        signal::block_all();
        let pinned = affinity::pin_to(cpus);
        {
            // Before this, `interrupt` does not see the thread, and the thread sees `stopping` below; after it,
            // `interrupt` kicks the thread.
            let _registration = lock(&self.registration);
            self.threads[vcpu.id as usize].get_or_init(Thread::current);
        }
        self.run.invalidations.runs_here(vcpu.id);
        self.run.watcher.runs_here(vcpu.id);
        let mut account = Account::new(now_ns());
        let place = match pinned.and_then(|()| self.run_vcpu(&mut vcpu, &mut account)) {
            Ok(place) => place,
            Err(error) => {
                self.run.fail(error);
                Place::Left
            }
        };
        if let Err(lost) = affinity::check(cpus) {
            _ = self.run.pinning_lost.set(lost);
        }
        self.left.fetch_add(1, Ordering::SeqCst);
        // Relaxed: a count.
        account.kicks = self.kicks[vcpu.id as usize].load(Ordering::Relaxed);
        account.preemptions = involuntary_switches().unwrap_or(0);
        self.run.watcher.thread_does(vcpu.id, ThreadDoes::Left);
        lock(&self.finished).push(Finished { guest: self.run.index, id: vcpu.id, vcpu, account, place });
    }

    /// vCPU 0 waits for all threads to exist, the others for vCPU 0.
    fn may_start(&self, vcpu: u32) -> bool {
        // Acquire pairs with the release of vCPU 0's thread: what the boot vCPU wrote is there.
        if vcpu == 0 { self.sleepers.get().is_some() } else { self.booted.load(Ordering::Acquire) }
    }

    /// The run loop of a vCPU. Where it was when it ended.
    fn run_vcpu(&self, vcpu: &mut Vcpu, account: &mut Account) -> Result<Place, RunError> {
        while !self.may_start(vcpu.id) && !self.run.stopping() {
            // With a limit: if not all threads could be started, nobody knows whom to unpark.
            std::thread::park_timeout(Duration::from_millis(100));
        }
        if !self.may_start(vcpu.id) {
            return Ok(Place::NotStarted);
        }
        let mut descheduler = self.descheduler(vcpu.id)?;
        let observer = Observer::new(self.run.notes, vcpu.id);
        let mut observer = observer.map_err(system("create a sampling timer"))?;
        observer.runs(vcpu.id, None, now_ns());
        while !self.run.stopping() {
            observer.enters();
            let exit = self
                .run
                .enter(vcpu)
                .map_err(|source| RunError::System { what: format!("run vCPU {}", vcpu.id), source })?;
            match exit {
                Exit::Interrupted => {
                    signal::take_kick();
                    let now = now_ns();
                    let does = || (self.run.activity(vcpu.id), self.run.window.contains(now));
                    observer.interrupted(vcpu, now, does);
                    if let Some(descheduler) = &mut descheduler {
                        let activity = self.run.checked_activity(vcpu.id);
                        if descheduler.injector.takes(activity, now_ns()) {
                            self.keep_out(vcpu.id, descheduler.injector.length_ns(), account, &mut observer);
                        }
                        descheduler.set_alarm();
                    }
                }
                Exit::Wait => {
                    account.waits += 1;
                    let since_ns = now_ns();
                    if self.run.watcher.reports().is_err() {
                        observer.stops(self.run.number_of(vcpu.id), since_ns, || Why::Waits);
                    }
                    self.run.watcher.thread_does(vcpu.id, ThreadDoes::Waits);
                    self.asleep.fetch_add(1, Ordering::SeqCst);
                    // Relaxed: as in `kick`.
                    self.sleeping[vcpu.id as usize].store(true, Ordering::Relaxed);
                    std::thread::park();
                    self.sleeping[vcpu.id as usize].store(false, Ordering::Relaxed);
                    self.run.watcher.thread_does(vcpu.id, ThreadDoes::Runs);
                    if self.run.stopping() {
                        return Ok(Place::Halted { since_ns });
                    }
                    self.asleep.fetch_sub(1, Ordering::SeqCst);
                    observer.runs(vcpu.id, None, now_ns());
                }
                Exit::Kick(target) => {
                    let (from, to) =
                        (self.run.number_of(vcpu.id), self.run.first_vcpu.saturating_add(target));
                    observer.kicks(from, to, || (self.kick(target), ()));
                }
                Exit::Invalidate => self.run.invalidations.ring(self.run.memory),
                // The host's scheduler takes no directions: a directed yield is a plain one.
                Exit::Yield(_) => {
                    self.run.watcher.thread_does(vcpu.id, ThreadDoes::Yields);
                    std::thread::yield_now();
                    self.run.watcher.thread_does(vcpu.id, ThreadDoes::Runs);
                }
                Exit::Point(point) => {
                    let activity = self.run.activity(vcpu.id);
                    if let Some(descheduler) = &mut descheduler
                        && descheduler.injector.takes_at(point, activity, now_ns())
                    {
                        self.keep_out(vcpu.id, descheduler.injector.length_ns(), account, &mut observer);
                    }
                }
                Exit::Booted => {
                    self.booted.store(true, Ordering::Release);
                    self.sleepers.get().into_iter().flatten().for_each(std::thread::Thread::unpark);
                }
                Exit::Left => return Ok(Place::Left),
                exit => {
                    if !self.run.serve(vcpu, exit) {
                        return Ok(Place::Left);
                    }
                }
            }
        }
        Ok(if vcpu.is_halted() { Place::HaltedInKernel } else { Place::Running })
    }

    fn descheduler(&self, vcpu: u32) -> Result<Option<Descheduler>, RunError> {
        let Some(plan) = self.plan else { return Ok(None) };
        let timer = KickTimer::new().map_err(system("create a timer for descheduling"))?;
        let injector = Injector::new(plan, vcpu, self.threads.len(), now_ns());
        let descheduler = Descheduler { injector, timer };
        descheduler.set_alarm();
        Ok(Some(descheduler))
    }

    /// Deschedules the calling thread's vCPU on purpose.
    fn keep_out(&self, vcpu: u32, length_ns: u64, account: &mut Account, observer: &mut Observer<'_>) {
        let start = now_ns();
        self.run.watcher.thread_does(vcpu, ThreadDoes::KeepsOut);
        observer.stops(self.run.number_of(vcpu), start, || Why::Injected(self.run.activity(vcpu)));
        account.preempt(self.run, vcpu, By::Injection, start);
        let end = start.saturating_add(length_ns);
        let mut now = start;
        while now < end && !self.run.stopping() {
            // A kick that was under way ends the sleep early; the one that ends the run comes after `stopping`.
            signal::await_kick(end - now);
            now = now_ns();
        }
        account.resume_injected(self.run, vcpu, now);
        self.run.watcher.thread_does(vcpu, ThreadDoes::Runs);
        observer.runs(vcpu, None, now);
    }

    /// `pv_kick`: whether that vCPU slept. A number that is no vCPU's is the guest's mistake and kicks nobody.
    fn kick(&self, vcpu: u32) -> Option<bool> {
        let sleeper = self.sleepers.get()?.get(vcpu as usize)?;
        // Relaxed, here and below: a count; a flag that only a trace depends on.
        self.kicks[vcpu as usize].fetch_add(1, Ordering::Relaxed);
        let asleep = self.sleeping[vcpu as usize].load(Ordering::Relaxed);
        sleeper.unpark();
        Some(asleep)
    }
}

/// Times that the calling thread lost its CPU while it could have gone on.
fn involuntary_switches() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?.trim().parse().ok()
}

/// Whether `thread` sleeps, by the kernel's word; `None` when it is gone.
fn is_asleep(thread: Thread) -> Option<bool> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{}/stat", thread.id())).ok()?;
    // The name before the state may hold anything, parentheses too.
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.trim_start().starts_with('S'))
}

fn read_sched_stat(thread: Thread) -> Option<SchedStat> {
    let path = format!("/proc/self/task/{}/schedstat", thread.id());
    super::parse_sched_stat(&std::fs::read_to_string(path).ok()?)
}
