//! `--sched host`: one thread per vCPU on the set of pCPUs; the host's scheduler decides who runs.
//!
//! Sleep is [`std::thread::park`], kick is `unpark`: a token that is latched when the thread does not sleep, which is
//! what `pv_kick` asks for.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::Scope;

use haltkick_hypercalls::READY_UNKNOWN;

use crate::host::clock::now_ns;
use crate::host::error::{RunError, no_thread, system};
use crate::host::signal::{self, KickTimer, Thread};
use crate::host::switch_probe::ThreadDoes;
use crate::host::threads::{lock, unlocked};
use crate::host::{cpus, sandbox};
use crate::machine::vcpu::{Exit, Vcpu};
use crate::observe::notes::Observer;
use crate::observe::{Where, Whereabouts};
use crate::sched::account::Account;
use crate::sched::deschedule::{Injector, Plan};
use crate::sched::guest_run::GuestRun;
use crate::sched::run_delay::{self, SchedStat};
use crate::sched::starts::StartTurns;
use crate::sched::{Finished, Scheduler};

/// vCPUs that start at a time, for each pCPU: while one waits to be woken another one starts.
const STARTS_PER_PCPU: u32 = 2;

pub(crate) struct HostThreads<'a> {
    run: &'a GuestRun<'a>,
    /// Until they are started.
    vcpus: Mutex<Vec<Vcpu>>,
    threads: Vec<VcpuThread>,
    /// Orders a thread's registration against [`Self::interrupt`].
    registration: Mutex<()>,
    /// Given out once vCPU 0 has booted.
    turns: StartTurns,
    plan: Option<Plan>,
}

/// The places of a vCPU that its thread and those that kick it tell apart, by their numbers below.
const PLACES: [Where; 4] = [Where::NotStarted, Where::Runnable, Where::Asleep, Where::Left];
const RUNNABLE: u8 = 1;
const ASLEEP: u8 = 2;
const LEFT: u8 = 3;

/// One vCPU's thread, as seen by the others.
#[derive(Default)]
struct VcpuThread {
    /// To end a sleep.
    sleeper: OnceLock<std::thread::Thread>,
    /// To end KVM_RUN.
    thread: OnceLock<Thread>,
    kicks: AtomicU64,
    /// Its place in [`PLACES`]. SeqCst: [`HostThreads::all_asleep`] looks at all of them.
    at: AtomicU8,
    /// Once it has ended.
    finished: Mutex<Option<Finished>>,
}

impl VcpuThread {
    /// Ends its sleep, or the next one.
    fn unpark(&self) {
        self.sleeper.get().into_iter().for_each(std::thread::Thread::unpark);
    }
}

struct Descheduler {
    injector: Injector,
    timer: KickTimer,
}

impl Descheduler {
    /// Has the vCPU called out when it is to be looked at; at a point it comes out by itself.
    fn set_alarm(&self) {
        if let Some(at_ns) = self.injector.alarm() {
            self.timer.set(at_ns.max(1), 0);
        }
    }
}

/// The threads of each guest: what they share is the host's scheduler.
impl Scheduler for Vec<HostThreads<'_>> {
    fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, cpus: &'scope [u32]) {
        self.iter().for_each(|threads| threads.start(scope, cpus));
    }

    fn interrupt(&self) {
        self.iter().for_each(HostThreads::interrupt);
    }

    fn interrupt_guest(&self, guest: usize) {
        self[guest].interrupt();
    }

    fn all_asleep(&self, guest: usize) -> bool {
        self[guest].all_asleep()
    }

    fn whereabouts(&self) -> Vec<Whereabouts> {
        let threads = self.iter().flat_map(|of_guest| &of_guest.threads);
        // Relaxed: shown.
        threads.map(|of| PLACES[usize::from(of.at.load(Ordering::Relaxed))].into()).collect()
    }

    fn sched_stats(&self, guest: usize) -> Vec<Option<SchedStat>> {
        let path = |thread: &Thread| format!("/proc/self/task/{}/schedstat", thread.id());
        self[guest].threads.iter().map(|of| run_delay::read(&path(of.thread.get()?))).collect()
    }

    fn finish(self: Box<Self>) -> Vec<Finished> {
        let threads = self.into_iter().flat_map(|of_guest| of_guest.threads);
        threads.filter_map(|thread| unlocked(thread.finished)).collect()
    }
}

impl<'a> HostThreads<'a> {
    pub(crate) fn new(run: &'a GuestRun<'a>, vcpus: Vec<Vcpu>, plan: Option<Plan>) -> Self {
        if let Some(shared) = &run.shared {
            shared.tell_ready_vcpus(READY_UNKNOWN);
        }
        let turns = StartTurns::new(run.vcpus);
        if run.shared.is_none() {
            // A kernel of its own starts its vCPUs itself; KVM keeps them waiting until then.
            turns.open(run.vcpus);
        }
        Self {
            run,
            threads: vcpus.iter().map(|_| VcpuThread::default()).collect(),
            vcpus: Mutex::new(vcpus),
            registration: Mutex::new(()),
            turns,
            plan,
        }
    }

    fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, cpus: &'scope [u32]) {
        let spawn = |(thread, vcpu): (&'scope VcpuThread, Vcpu)| -> std::io::Result<()> {
            let builder = std::thread::Builder::new().name(format!("vcpu{}", vcpu.id)).stack_size(128 << 10);
            let spawned = builder.spawn_scoped(scope, move || self.serve_vcpu(vcpu, cpus))?;
            thread.sleeper.get_or_init(|| spawned.thread().clone());
            Ok(())
        };
        let vcpus = std::mem::take(&mut *lock(&self.vcpus));
        // vCPU 0 last: it boots at once, and every vCPU that it kicks can be woken.
        if let Err(source) = self.threads.iter().zip(vcpus).rev().try_for_each(spawn) {
            self.run.fail(no_thread("start a thread for each vCPU")(source));
            self.run.stop();
            self.turns.end();
        }
    }

    fn interrupt(&self) {
        let _registration = lock(&self.registration);
        self.threads.iter().filter_map(|of| of.thread.get()).for_each(|thread| thread.kick());
        self.threads.iter().for_each(VcpuThread::unpark);
        self.turns.end();
    }

    fn all_asleep(&self) -> bool {
        let left = |thread: &VcpuThread| thread.at.load(Ordering::SeqCst) == LEFT;
        let idle = |thread: &VcpuThread| left(thread) || thread.at.load(Ordering::SeqCst) == ASLEEP;
        !self.threads.iter().all(left) && (self.threads.iter().all(idle) || self.all_halt_in_kernel())
    }

    /// Whether all vCPUs halt where KVM puts them to sleep, by the state of their threads: KVM does not tell of one in KVM_RUN.
    fn all_halt_in_kernel(&self) -> bool {
        // One that is gone has left.
        let sleeps_or_left = |thread: &Thread| is_asleep(*thread).unwrap_or(true);
        self.run.halts_in_kernel && self.threads.iter().all(|of| of.thread.get().is_some_and(sleeps_or_left))
    }

    fn serve_vcpu(&self, mut vcpu: Vcpu, cpus: &[u32]) {
        signal::block_all();
        let pinned = cpus::pin_to(cpus);
        let of_vcpu = &self.threads[vcpu.id as usize];
        // Before the vCPU runs: others may kick it before the thread that has started this one goes on.
        of_vcpu.sleeper.get_or_init(std::thread::current);
        {
            // Before this, `interrupt` does not see the thread, and the thread sees `stopping` below; after it,
            // `interrupt` kicks the thread.
            let _registration = lock(&self.registration);
            let thread = of_vcpu.thread.get_or_init(Thread::current);
            self.run.runs_on(vcpu.id, *thread);
        }
        self.run.watcher.runs_here(vcpu.id);
        let mut account = Account::new(Where::Running, now_ns());
        let ran = pinned.and_then(|()| self.run_vcpu(&mut vcpu, &mut account, cpus.len()));
        let whereabouts = ran.unwrap_or_else(|error| {
            self.run.fail(error);
            Where::Left.into()
        });
        if let Err(lost) = cpus::check_pinned(cpus) {
            _ = self.run.pinning_lost.set(lost);
        }
        of_vcpu.at.store(LEFT, Ordering::SeqCst);
        // A turn to start that it has not given back.
        self.starts(vcpu.id);
        // Relaxed: a count.
        account.books.kicks = of_vcpu.kicks.load(Ordering::Relaxed);
        account.books.preemptions = involuntary_switches().unwrap_or(0);
        self.run.watcher.thread_does(vcpu.id, ThreadDoes::Left);
        *lock(&of_vcpu.finished) = Some(Finished { guest: self.run.index, vcpu, account, whereabouts });
    }

    /// Waits until a vCPU may start: vCPU 0 may at once, the others wait for that and a turn. `false`: the run is over.
    fn may_start(&self, vcpu: u32) -> bool {
        // The turns' mutex comes between this and the writes of the boot vCPU.
        let may = vcpu == 0 && self.run.shared.is_some() || self.turns.take();
        if may {
            self.threads[vcpu as usize].at.store(RUNNABLE, Ordering::SeqCst);
        }
        may
    }

    /// vCPU 0 has booted the guest, and has a turn to start. The others have theirs.
    fn boots(&self, pcpus: usize) {
        let others = self.run.vcpus - 1;
        let at_a_time = if self.run.starts.are_said() { pcpus as u32 * STARTS_PER_PCPU - 1 } else { others };
        self.turns.open(at_a_time.min(others));
    }

    /// `vcpu` has started, or never will. Whether that is news.
    fn starts(&self, vcpu: u32) -> bool {
        let is_news = self.run.starts.says(vcpu);
        if is_news {
            self.turns.give_back();
        }
        is_news
    }

    /// The run loop of a vCPU. Where it was when it ended.
    fn run_vcpu(
        &self,
        vcpu: &mut Vcpu,
        account: &mut Account,
        pcpus: usize,
    ) -> Result<Whereabouts, RunError> {
        if !self.may_start(vcpu.id) {
            return Ok(Where::NotStarted.into());
        }
        let mut descheduler = self.descheduler(vcpu.id)?;
        let observer = Observer::new(self.run.notes, vcpu.id);
        let mut observer = observer.map_err(system("create a sampling timer"))?;
        sandbox::confine_runner()?;
        observer.runs(self.run.number_of(vcpu.id), None, now_ns(), |at_ns| self.run.window.contains(at_ns));
        while !self.run.stopping() {
            observer.enters(now_ns);
            let exit = self.run.enter(vcpu).map_err(|source| self.run.cannot_run(vcpu, source))?;
            match exit {
                Exit::Interrupted => {
                    signal::take_kick();
                    let now = now_ns();
                    observer.interrupted(vcpu, now, || self.run.sampled(vcpu.id, now));
                    self.deschedule(&mut descheduler, None, vcpu.id, account, &mut observer);
                }
                Exit::Wait => {
                    if let Some(whereabouts) = self.sleep(vcpu.id, account, &mut observer) {
                        return Ok(whereabouts);
                    }
                }
                Exit::Kick(target) => {
                    let (from, to) = (self.run.number_of(vcpu.id), self.run.number_of(target));
                    observer.kicks(self.run.clock, (from, to), || (self.kick(target), ()));
                }
                // The host's scheduler takes no directions: a directed yield is a plain one.
                Exit::Yield(_) => {
                    self.run.watcher.thread_does(vcpu.id, ThreadDoes::Yields);
                    std::thread::yield_now();
                    self.run.watcher.thread_does(vcpu.id, ThreadDoes::Runs);
                }
                Exit::Point(point) => {
                    self.deschedule(&mut descheduler, Some(point), vcpu.id, account, &mut observer);
                }
                Exit::Booted if self.run.boots(vcpu.id) => self.boots(pcpus),
                Exit::Started => {
                    if self.starts(vcpu.id) {
                        self.turns.await_all();
                    }
                }
                Exit::Left => return Ok(Where::Left.into()),
                exit => {
                    if !self.run.serve(vcpu, exit) {
                        return Ok(Where::Left.into());
                    }
                }
            }
        }
        let at = if vcpu.is_halted() { Where::Asleep } else { Where::Running };
        Ok(at.into())
    }

    /// `pv_wait`, until this vCPU is kicked. `Some`: the run ended meanwhile.
    fn sleep(&self, vcpu: u32, account: &mut Account, observer: &mut Observer<'_>) -> Option<Whereabouts> {
        account.books.waits += 1;
        let since_ns = now_ns();
        if self.run.watcher.reports().is_err() {
            observer.stops(self.run.number_of(vcpu), since_ns, || Where::Asleep);
        }
        self.run.watcher.thread_does(vcpu, ThreadDoes::Waits);
        let at = &self.threads[vcpu as usize].at;
        at.store(ASLEEP, Ordering::SeqCst);
        std::thread::park();
        self.run.watcher.thread_does(vcpu, ThreadDoes::Runs);
        if self.run.stopping() {
            return Some(Whereabouts { at: Where::Asleep, since_ns: Some(since_ns) });
        }
        at.store(RUNNABLE, Ordering::SeqCst);
        observer.runs(self.run.number_of(vcpu), None, now_ns(), |at_ns| self.run.window.contains(at_ns));
        None
    }

    fn descheduler(&self, vcpu: u32) -> Result<Option<Descheduler>, RunError> {
        let Some(plan) = self.plan else { return Ok(None) };
        let timer = KickTimer::new().map_err(system("create a timer for descheduling"))?;
        let injector = Injector::new(plan, vcpu, self.threads.len(), now_ns());
        let descheduler = Descheduler { injector, timer };
        descheduler.set_alarm();
        Ok(Some(descheduler))
    }

    /// Keeps a vCPU off its pCPU which is out, maybe at a `point`, if it is to stay out.
    fn deschedule(
        &self,
        descheduler: &mut Option<Descheduler>,
        point: Option<u32>,
        vcpu: u32,
        account: &mut Account,
        observer: &mut Observer<'_>,
    ) {
        let Some(descheduler) = descheduler else { return };
        if let Some(length_ns) =
            descheduler.injector.takes(point, self.run.activity_at(point, vcpu), now_ns())
        {
            self.keep_out(vcpu, length_ns, account, observer);
        }
        descheduler.set_alarm();
    }

    fn keep_out(&self, vcpu: u32, length_ns: u64, account: &mut Account, observer: &mut Observer<'_>) {
        let start = now_ns();
        self.run.watcher.thread_does(vcpu, ThreadDoes::KeepsOut);
        observer.stops(self.run.number_of(vcpu), start, || Where::KeptOut(self.run.activity(vcpu)));
        account.goes(self.run, vcpu, Where::KeptOut(self.run.attributed(vcpu)), start);
        let end = start.saturating_add(length_ns);
        let mut now = start;
        while now < end && !self.run.stopping() {
            // A kick that was under way ends the sleep early; the one that ends the run comes after `stopping`.
            signal::await_kick(end - now);
            now = now_ns();
        }
        account.goes(self.run, vcpu, Where::Running, now);
        self.run.watcher.thread_does(vcpu, ThreadDoes::Runs);
        observer.runs(self.run.number_of(vcpu), None, now, |at_ns| self.run.window.contains(at_ns));
    }

    /// `pv_kick`: whether that vCPU slept. A number that is no vCPU's is the guest's mistake and has no effect.
    fn kick(&self, vcpu: u32) -> Option<bool> {
        let thread = self.threads.get(vcpu as usize)?;
        // Relaxed: a count.
        thread.kicks.fetch_add(1, Ordering::Relaxed);
        // It is awake from now on, even if the host does not run it yet: a run ends in which all sleep.
        let slept = thread.at.compare_exchange(ASLEEP, RUNNABLE, Ordering::SeqCst, Ordering::SeqCst);
        thread.unpark();
        Some(slept.is_ok())
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
