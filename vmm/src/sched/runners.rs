//! `--sched vmm`: one pinned runner thread per pCPU multiplexes the vCPUs.
//!
//! A vCPU is a [`Task`] that exactly one place owns at any time: the ready queue, a runner's hands, its slot while
//! it sleeps, or the list of those that left. Ownership is what keeps two runners from entering one vCPU.
//!
//! Sleep and kick meet in the vCPU's slot, under its mutex:
//! 1. The kick comes first: it finds no sleeper, sets the latch; the sleep finds the latch and does not happen.
//! 2. The sleep comes first: the kick finds the sleeper and moves it to the ready queue.
//!
//! No third order exists, so no kick is lost.
//!
//! A vCPU that is descheduled on purpose lies aside until its time is over. Then it is ready, and late: it is next.
//!
//! A vCPU of a guest that halts in KVM's hands (a Linux guest) would keep its pCPU until something wakes it. So the runner
//! looks whether it has halted, each time after as long as it has looked away: unnoticed, it keeps the pCPU for no longer than
//! it has run. It dozes then, and as nobody says when something has come for it, runners look for that too, between turns.
//!
//! One queue for all runners keeps every pCPU busy while any vCPU is ready; `shares` and `fair_queue` say who is next.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;
use std::time::Duration;

use crate::account::{Account, Activity, By};
use crate::clock::now_ns;
use crate::config::RunConfig;
use crate::deschedule::{Injector, Plan};
use crate::error::{RunError, system};
use crate::exits::Exit;
use crate::guest_run::{GuestRun, lock};
use crate::observe::Observer;
use crate::sched::shares::Shares;
use crate::sched::slice::SliceTimer;
use crate::sched::{Finished, Place, affinity};
use crate::signal::{self, Thread};
use crate::trace::Why;
use crate::vcpu::Vcpu;

/// A vCPU's first slice while its guest starts: it needs a moment only, and those that have started would make the others
/// wait. Where the moment is longer, on an emulated host, each slice that was not enough is followed by one twice as long.
const START_SLICE_NS: u64 = 100_000;

/// A vCPU and its books.
struct Task<'a> {
    guest: &'a GuestRun<'a>,
    vcpu: Vcpu,
    account: Account,
    /// The pCPU that it ran on last. It is run there again where that is fair: its caches are warm there, and before
    /// Linux 6.13 a vCPU that changes threads waits for an RCU grace period.
    last_pcpu: Option<u32>,
    /// The end of the run took it off its pCPU.
    stopped: bool,
}

impl Task<'_> {
    /// Number among the vCPUs of all guests.
    fn number(&self) -> u32 {
        self.guest.number_of(self.vcpu.id)
    }
}

/// Where a sleeping vCPU lies, and where a kick waits for one that does not sleep yet.
#[derive(Default)]
struct Slot<'a> {
    latched: bool,
    asleep: Option<Box<Task<'a>>>,
}

/// Tasks are boxed wherever they lie: they change places thousands of times a second.
#[expect(clippy::vec_box, reason = "they come out of the other places boxed")]
struct Queue<'a> {
    ready: Shares<Box<Task<'a>>>,
    /// Descheduled on purpose: until when, and which.
    aside: BTreeMap<(u64, u32), Box<Task<'a>>>,
    /// Halted in KVM's hands: when to look next, and which.
    dozing: BTreeMap<(u64, u32), Box<Task<'a>>>,
    /// Not started until vCPU 0 says so.
    unborn: Vec<Box<Task<'a>>>,
    /// Done, or failed.
    left: Vec<Box<Task<'a>>>,
    /// Of guests that failed while others go on.
    retired: Vec<Box<Task<'a>>>,
    idle_runners: usize,
}

impl<'a> Queue<'a> {
    /// Those whose time aside is over are ready.
    fn take_back(&mut self, now_ns: u64) {
        while let Some(entry) = self.aside.first_entry().filter(|entry| entry.key().0 <= now_ns) {
            let task = entry.remove();
            self.push_after_sleep(task);
        }
    }

    /// A vCPU that dozes and that nobody has looked at since it was due at `now_ns`: one of `pcpu`'s own, or anyone's if there
    /// is nothing else to do.
    fn take_dozing(&mut self, now_ns: u64, pcpu: u32) -> Option<Box<Task<'a>>> {
        let nothing_else = self.ready.is_empty();
        let mut due = self.dozing.iter().take_while(|((look_ns, _), _)| *look_ns <= now_ns);
        let (&key, _) = due.find(|(_, task)| nothing_else || task.last_pcpu == Some(pcpu))?;
        self.dozing.remove(&key)
    }

    /// Lays a halted vCPU to rest. The longer it has slept the less often it is looked at, so that it is found at most a
    /// quarter of that late; an idle guest must not keep its pCPUs busy.
    fn doze(&mut self, now_ns: u64, first_look_ns: u64, task: Box<Task<'a>>) {
        let slept_ns = now_ns.saturating_sub(task.account.off_since_ns());
        let look_ns = (slept_ns / 4).clamp(first_look_ns, first_look_ns.max(LONGEST_LOOK_NS));
        self.dozing.insert((now_ns + look_ns, task.number()), task);
    }

    fn push_ready(&mut self, task: Box<Task<'a>>) {
        self.ready.push(task.guest.index, task.number(), task.account.virtual_ns, task);
    }

    fn push_after_sleep(&mut self, mut task: Box<Task<'a>>) {
        task.account.virtual_ns = self.ready.after_sleep(task.guest.index, task.account.virtual_ns);
        self.push_ready(task);
    }

    /// The vCPU that is next on `pcpu`. Those of guests that are over are laid away.
    fn pop(&mut self, pcpu: Option<u32>) -> Option<Box<Task<'a>>> {
        loop {
            let task = self.ready.pop(|task| task.last_pcpu == pcpu)?;
            if !task.guest.stopping() {
                return Some(task);
            }
            self.retired.push(task);
        }
    }
}

/// How long the first look at whether a vCPU has halted, or has been woken, waits: so long at least, and so many times what a look
/// has taken lately. On hardware the former is more; emulated, a look may take a millisecond.
const LOOK_NS: u64 = 100_000;
const LOOK_COSTS: u64 = 16;
/// The longest that anyone waits for the next look after a wake-up: less than a tick of most kernels.
const LONGEST_LOOK_NS: u64 = 2_000_000;

/// When to look whether the vCPU on a pCPU has halted.
struct Look {
    began_ns: u64,
    at_ns: u64,
}

/// What a runner has of its own.
struct Pcpu<'a> {
    number: u32,
    slice: SliceTimer,
    injector: Option<Injector>,
    /// While the turn is in its grace: since when.
    grace: Option<u64>,
    /// In turns of vCPUs that halt in KVM's hands.
    look: Option<Look>,
    observer: Observer<'a>,
}

impl Pcpu<'_> {
    /// A turn begins.
    fn begin(&mut self, now_ns: u64, debt_ns: u64, first_look_ns: Option<u64>) {
        self.slice.begin(now_ns, debt_ns);
        self.look = first_look_ns.map(|look_ns| Look { began_ns: now_ns, at_ns: now_ns + look_ns });
        self.set_alarm();
    }

    /// The vCPU has not halted.
    fn looked(&mut self, now_ns: u64) {
        if let Some(look) = self.look.as_mut().filter(|look| look.at_ns <= now_ns) {
            look.at_ns = now_ns + (now_ns - look.began_ns);
            self.set_alarm();
        }
    }

    /// The vCPU is out: for how long it is to stay out, if that is what the experiment wants.
    fn takes(&mut self, activity: impl FnOnce() -> Activity, now_ns: u64) -> Option<u64> {
        let injector = self.injector.as_mut()?;
        let length_ns = injector.takes(activity(), now_ns).then(|| injector.length_ns());
        self.set_alarm();
        length_ns
    }

    /// The vCPU is at `point`: the same.
    fn takes_at(&mut self, point: u32, activity: Activity) -> Option<u64> {
        let injector = self.injector.as_mut()?;
        injector.takes_at(point, activity, now_ns()).then(|| injector.length_ns())
    }

    fn set_alarm(&mut self) {
        let look_ns = self.look.as_ref().map(|look| look.at_ns);
        let injection_ns = self.injector.as_ref().and_then(Injector::alarm);
        if let Some(at_ns) = look_ns.into_iter().chain(injection_ns).min() {
            self.slice.also_at(at_ns);
        }
    }
}

/// Why a vCPU's turn ended.
enum Turn<'a> {
    /// Its slice is over and another vCPU is ready.
    SliceEnded,
    /// It is descheduled on purpose for so many nanoseconds.
    Injected(u64),
    /// It sleeps until kicked.
    Waits,
    /// It has halted in KVM's hands.
    Halts,
    /// It gives up its slice, and somebody else is ready.
    Yields,
    /// It hands its pCPU to this vCPU.
    HandsOver(Box<Task<'a>>),
    /// It has nothing more to do, or may not be entered again.
    Left,
    /// The run is over.
    Stopped,
}

/// The scheduler.
pub(crate) struct Runners<'a> {
    guests: &'a [GuestRun<'a>],
    queue: Mutex<Queue<'a>>,
    /// Signalled when a vCPU becomes ready while a runner is idle, and when the run stops.
    work: Condvar,
    /// One per vCPU of all guests.
    slots: Vec<Mutex<Slot<'a>>>,
    runners: usize,
    slice_ns: u64,
    grace_ns: u64,
    kick_yields: bool,
    plan: Option<Plan>,
    threads: Mutex<Vec<Thread>>,
    /// What a look at a vCPU that is halted in KVM's hands has taken lately.
    look_cost_ns: AtomicU64,
    /// A runner is missing.
    broken: AtomicBool,
}

impl<'a> Runners<'a> {
    /// Takes over the vCPUs of each of `guests`, to be run on the pCPUs of `config`.
    pub(crate) fn new(
        config: &RunConfig,
        guests: &'a [GuestRun<'a>],
        vcpus: Vec<Vec<Vcpu>>,
        plan: Option<Plan>,
    ) -> Self {
        let slice_ns = config.slice.as_nanos() as u64;
        let now = now_ns();
        let slots: Vec<_> = vcpus.iter().flatten().map(|_| Mutex::default()).collect();
        let ready = Shares::new(config.share, guests.len(), slots.len(), slice_ns);
        let (aside, dozing) = (BTreeMap::new(), BTreeMap::new());
        let (unborn, left, retired) = (Vec::new(), Vec::new(), Vec::new());
        let mut queue = Queue { ready, aside, dozing, unborn, left, retired, idle_runners: 0 };
        for (guest, vcpus) in guests.iter().zip(vcpus) {
            let mut tasks = vcpus.into_iter().map(|vcpu| {
                let account = Account::new(now);
                Box::new(Task { guest, vcpu, account, last_pcpu: None, stopped: false })
            });
            // A kernel of its own starts its vCPUs itself; KVM keeps them waiting until then.
            let at_once = if guest.runs_linux { usize::MAX } else { 1 };
            tasks.by_ref().take(at_once).for_each(|task| queue.push_ready(task));
            queue.unborn.extend(tasks);
        }
        Self {
            guests,
            queue: Mutex::new(queue),
            work: Condvar::new(),
            slots,
            runners: config.cpus.len(),
            slice_ns,
            grace_ns: config.grace.as_nanos() as u64,
            kick_yields: config.kick_yields,
            plan,
            threads: Mutex::default(),
            look_cost_ns: AtomicU64::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// Whether all guests are to stop.
    fn stopping(&self) -> bool {
        self.guests.iter().all(GuestRun::stopping)
    }

    /// The run cannot go on as it should.
    fn fail(&self, error: RunError) {
        self.guests[0].fail(error);
        // Relaxed: polled.
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Whether a runner failed, so that no guest has what it should have.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Starts a runner on each of `cpus`.
    pub(crate) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, cpus: &'scope [u32]) {
        for (&cpu, runner) in cpus.iter().zip(0..) {
            let spawned =
                std::thread::Builder::new().name(format!("pcpu{cpu}")).spawn_scoped(scope, move || {
                    if let Err(error) = self.serve_pcpu(cpu, runner) {
                        self.fail(error);
                    }
                });
            if let Err(source) = spawned {
                self.fail(RunError::System { what: "start a runner thread".into(), source });
            }
        }
    }

    /// Gets every runner out of its vCPU and to its end. [`GuestRun::stop`] comes first.
    pub(crate) fn interrupt(&self) {
        lock(&self.threads).iter().for_each(|thread| thread.kick());
        // Under the queue's mutex, so that no runner is between its look at `stopping` and its sleep.
        let _queue = lock(&self.queue);
        self.work.notify_all();
    }

    /// All vCPUs' books, once the runners have ended.
    pub(crate) fn finish(self) -> Vec<Finished> {
        let now = now_ns();
        let queue = self.queue.into_inner().unwrap_or_else(PoisonError::into_inner);
        let asleep = self
            .slots
            .into_iter()
            .filter_map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner).asleep);
        let off = queue.ready.into_vcpus().chain(queue.aside.into_values());
        let off = off.chain(queue.dozing.into_values()).chain(asleep);
        let off = off.chain(queue.retired).map(|mut task| {
            task.account.end_while_off(task.guest, task.vcpu.id, now);
            let place = if task.stopped { Place::Running } else { task.account.place() };
            (task, place)
        });
        off.chain(queue.unborn.into_iter().map(|task| (task, Place::NotStarted)))
            .chain(queue.left.into_iter().map(|task| (task, Place::Left)))
            .map(|(task, place)| Finished {
                guest: task.guest.index,
                id: task.vcpu.id,
                vcpu: task.vcpu,
                account: task.account,
                place,
            })
            .collect()
    }

    /// Whether every vCPU that is ready, or descheduled on purpose, became so after `since_ns`, and so has run since.
    pub(crate) fn everybody_ran_since(&self, since_ns: u64) -> bool {
        let queue = lock(&self.queue);
        queue.ready.iter().chain(queue.aside.values()).all(|task| task.account.off_since_ns() >= since_ns)
    }

    fn serve_pcpu(&self, cpu: u32, runner: u32) -> Result<(), RunError> {
        signal::block_all();
        affinity::pin_to(&[cpu])?;
        let slice = SliceTimer::new(self.slice_ns).map_err(system("create a slice timer"))?;
        let injector = self.plan.map(|plan| Injector::new(plan, runner, self.runners, now_ns()));
        let observer =
            Observer::new(self.guests[0].watch, runner).map_err(system("create a sampling timer"))?;
        let mut pcpu = Pcpu { number: cpu, slice, injector, grace: None, look: None, observer };
        lock(&self.threads).push(Thread::current());
        let mut next = None;
        while let Some(mut task) = match next.take() {
            Some(task) => Some(task),
            None => self.next_ready(cpu)?,
        } {
            task.last_pcpu = Some(cpu);
            next = self.give_turn(task, &mut pcpu)?;
        }
        if let Err(lost) = affinity::check(&[cpu]) {
            self.guests.iter().for_each(|guest| _ = guest.pinning_lost.set(lost.clone()));
        }
        Ok(())
    }

    /// The vCPU whose turn it is; sleeps while none is ready. `None`: the run is over.
    fn next_ready(&self, pcpu: u32) -> Result<Option<Box<Task<'a>>>, RunError> {
        loop {
            self.look_at_dozing(pcpu)?;
            let mut queue = lock(&self.queue);
            if self.stopping() {
                return Ok(None);
            }
            queue.take_back(now_ns());
            if let Some(task) = queue.pop(Some(pcpu)) {
                self.publish_load(&queue);
                return Ok(Some(task));
            }
            queue.idle_runners += 1;
            let next = [queue.aside.keys().next(), queue.dozing.keys().next()];
            let next = next.into_iter().flatten().min().copied();
            queue = match next {
                Some((until_ns, _)) => {
                    let wait = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
                    self.work.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    if queue.idle_runners == self.runners {
                        self.nobody_can_run(&queue);
                    }
                    self.work.wait(queue).unwrap_or_else(PoisonError::into_inner)
                }
            };
            queue.idle_runners -= 1;
        }
    }

    /// When to look first at a vCPU that has got a pCPU, or has gone to sleep; within a slice in any case.
    fn first_look_ns(&self) -> u64 {
        // Relaxed: an estimate.
        let costs_ns = self.look_cost_ns.load(Ordering::Relaxed) * LOOK_COSTS;
        costs_ns.min(self.slice_ns / 2).max(LOOK_NS)
    }

    /// Looks once at each vCPU that is halted in KVM's hands and due: those that something has come for are ready.
    fn look_at_dozing(&self, pcpu: u32) -> Result<(), RunError> {
        // Fixed, since those that go on dozing are due again soon.
        let began_ns = now_ns();
        loop {
            let mut queue = lock(&self.queue);
            let Some(mut task) = queue.take_dozing(began_ns, pcpu) else { return Ok(()) };
            drop(queue);
            let start_ns = now_ns();
            let woken = task.vcpu.has_woken();
            let end_ns = now_ns();
            let lately_ns = self.look_cost_ns.load(Ordering::Relaxed);
            // Relaxed: an estimate; one that is lost by two at once is as good.
            self.look_cost_ns.store((lately_ns * 7 + (end_ns - start_ns)) / 8, Ordering::Relaxed);
            match woken {
                Ok(true) => self.make_ready(task),
                Ok(false) => lock(&self.queue).doze(end_ns, self.first_look_ns(), task),
                Err(source) => {
                    let what = format!("look at vCPU {}", task.vcpu.id);
                    lock(&self.queue).left.push(task);
                    return Err(RunError::System { what, source });
                }
            }
        }
    }

    /// Only a running vCPU can kick another, so if none runs and none is ready, none ever will.
    fn nobody_can_run(&self, queue: &MutexGuard<'_, Queue<'a>>) {
        for guest in self.guests.iter().filter(|guest| !guest.failed()) {
            let of_guest =
                |tasks: &[Box<Task<'_>>]| tasks.iter().filter(|task| task.guest.index == guest.index).count();
            let left = of_guest(&queue.left);
            let asleep =
                guest.memory.vcpus() as usize - left - of_guest(&queue.unborn) - of_guest(&queue.retired);
            if asleep > 0 {
                guest.fail(RunError::NoProgress(format!(
                    "{asleep} vCPUs sleep in pv_wait and none is left to kick them ({left} have left): a wake-up was lost"
                )));
            }
        }
    }

    fn push_ready(&self, task: Box<Task<'a>>) {
        let mut queue = lock(&self.queue);
        queue.push_ready(task);
        self.publish_load(&queue);
        if queue.idle_runners > 0 {
            self.work.notify_one();
        }
    }

    /// Runs `task` until its turn ends, then puts it where it belongs. The vCPU to run next, if it chose one.
    fn give_turn(
        &self,
        mut task: Box<Task<'a>>,
        pcpu: &mut Pcpu<'a>,
    ) -> Result<Option<Box<Task<'a>>>, RunError> {
        let began_ns = now_ns();
        let turn = self.run_turn(&mut task, pcpu, began_ns);
        let (guest, id, now) = (task.guest, task.vcpu.id, now_ns());
        if self.guests.len() > 1 {
            lock(&self.queue).ready.charge(guest.index, now.saturating_sub(began_ns));
        }
        // A turn may end in its grace for another reason than the grace.
        self.settle_grace(&mut task, pcpu, false, now);
        task.stopped = matches!(turn, Ok(Turn::Stopped));
        pcpu.observer.stops(guest, id, now, |activity| match &turn {
            Ok(Turn::SliceEnded) => Why::Preempted(activity),
            Ok(Turn::Injected(_)) => Why::Injected(activity),
            Ok(Turn::Waits | Turn::Halts) => Why::Waits,
            Ok(Turn::Yields | Turn::HandsOver(_)) => Why::Yields,
            Ok(Turn::Left | Turn::Stopped) | Err(_) => Why::Left,
        });
        match turn {
            Ok(Turn::SliceEnded | Turn::Stopped) => {
                task.account.preempt(guest, id, By::Schedule, now);
                self.push_ready(task);
            }
            Ok(Turn::Injected(length_ns)) => {
                task.account.preempt(guest, id, By::Injection, now);
                let mut queue = lock(&self.queue);
                queue.aside.insert((now.saturating_add(length_ns), task.number()), task);
                // Whoever is idle sleeps no longer than until then.
                self.work.notify_all();
            }
            Ok(Turn::Waits) => {
                task.account.sleep(guest, id, now);
                self.put_to_sleep(task);
            }
            Ok(Turn::Halts) => {
                task.account.sleep(guest, id, now);
                let mut queue = lock(&self.queue);
                queue.doze(now, self.first_look_ns(), task);
                // Whoever is idle sleeps no longer than until the next look.
                if queue.idle_runners > 0 {
                    self.work.notify_one();
                }
            }
            Ok(Turn::Yields) => {
                task.account.give_up(guest, id, now);
                return Ok(self.pass_slice(task));
            }
            Ok(Turn::HandsOver(next)) => {
                task.account.give_up(guest, id, now);
                self.push_ready(task);
                return Ok(Some(next));
            }
            Ok(Turn::Left) => {
                task.account.leave(guest, id, now);
                lock(&self.queue).left.push(task);
            }
            Err(error) => {
                lock(&self.queue).left.push(task);
                return Err(error);
            }
        }
        Ok(None)
    }

    /// The run loop of a vCPU's turn.
    fn run_turn(&self, task: &mut Task<'a>, pcpu: &mut Pcpu<'a>, start: u64) -> Result<Turn<'a>, RunError> {
        let (guest, id) = (task.guest, task.vcpu.id);
        task.account.resume(guest, id, start);
        guest.invalidations.runs_here(id);
        let mut debt_ns = std::mem::take(&mut task.account.debt_ns);
        if guest.is_starting() {
            let start_slice_ns = START_SLICE_NS << task.account.preemptions.min(30);
            debt_ns = self.slice_ns.saturating_sub(start_slice_ns);
        }
        pcpu.begin(start, debt_ns, guest.halts_in_kernel.then(|| self.first_look_ns()));
        Self::publish_slice_end(task, pcpu);
        pcpu.observer.runs(guest.number_of(id), task.last_pcpu, start);
        loop {
            if guest.stopping() {
                return Ok(Turn::Stopped);
            }
            pcpu.observer.enters();
            let entered = guest.enter(&mut task.vcpu);
            match entered.map_err(|source| RunError::System { what: format!("run vCPU {id}"), source })? {
                Exit::Interrupted => {
                    // Taken before the clock is read: if this was the timer's kick, the clock says so; if it was the
                    // one that ends the run, the flag does, which was set before it.
                    signal::take_kick();
                    let now = now_ns();
                    pcpu.observer.interrupted(guest, &task.vcpu, now);
                    if guest.halts_in_kernel && task.vcpu.is_halted() {
                        return Ok(Turn::Halts);
                    }
                    pcpu.looked(now);
                    if let Some(length_ns) = pcpu.takes(|| Activity::checked(guest, id), now) {
                        return Ok(Turn::Injected(length_ns));
                    }
                    if pcpu.slice.ended(now) {
                        self.look_at_dozing(pcpu.number)?;
                        if self.somebody_is_ready() && !self.grants_grace(task, pcpu, now) {
                            self.settle_grace(task, pcpu, true, now);
                            return Ok(Turn::SliceEnded);
                        }
                        Self::publish_slice_end(task, pcpu);
                    }
                }
                Exit::Wait if self.take_latch(task) => {}
                Exit::Wait => return Ok(Turn::Waits),
                Exit::Kick(vcpu) => {
                    if let Some(next) = pcpu.observer.kicks(guest, id, vcpu, || self.kick(guest, vcpu)) {
                        return Ok(Turn::HandsOver(next));
                    }
                }
                Exit::Invalidate => guest.invalidations.ring(guest.memory),
                Exit::Yield(_) if pcpu.grace.is_some() => {
                    self.settle_grace(task, pcpu, false, now_ns());
                    return Ok(Turn::SliceEnded);
                }
                Exit::Yield(Some(to)) => {
                    if let Some(next) = self.take_ready(guest, to) {
                        return Ok(Turn::HandsOver(next));
                    }
                }
                Exit::Yield(None) if self.somebody_is_ready() => return Ok(Turn::Yields),
                Exit::Yield(None) => {}
                Exit::Point(point) => {
                    let activity = Activity::of(guest.area(id));
                    if let Some(length_ns) = pcpu.takes_at(point, activity) {
                        return Ok(Turn::Injected(length_ns));
                    }
                }
                Exit::Booted => {
                    guest.tsc.compare(guest.memory.control().booted_tsc.load(Ordering::Relaxed));
                    self.start_the_others(guest);
                }
                Exit::Left => return Ok(Turn::Left),
                exit => {
                    if !guest.serve(&task.vcpu, exit) {
                        return Ok(Turn::Left);
                    }
                }
            }
        }
    }

    /// Tells the guests how many vCPUs, of all of them, have no pCPU. Whoever changes the ready queue says so before he
    /// lets go of it.
    fn publish_load(&self, queue: &Queue<'_>) {
        // Relaxed: a hint.
        for guest in self.guests {
            guest.memory.control().ready_vcpus.store(queue.ready.len() as u32, Ordering::Relaxed);
        }
    }

    fn somebody_is_ready(&self) -> bool {
        let mut queue = lock(&self.queue);
        queue.take_back(now_ns());
        self.publish_load(&queue);
        !queue.ready.is_empty()
    }

    /// Tells the guest when the slice ends that began, or went on.
    fn publish_slice_end(task: &Task<'_>, pcpu: &Pcpu) {
        // The clock is read here and not taken from the caller: to set the timer may have taken 8 us since then.
        let end = task.guest.tsc.in_ns(pcpu.slice.deadline_ns().saturating_sub(now_ns()));
        // Relaxed: a hint, which the vCPU reads once it runs.
        task.guest.area(task.vcpu.id).host.slice_end_tsc.store(end, Ordering::Relaxed);
    }

    /// The slice of the vCPU is over: whether it may run a little longer, once, to leave its section.
    ///
    /// What it runs beyond the slice is charged to the next one. So a vCPU that always claims to hold a lock gains nothing.
    fn grants_grace(&self, task: &Task<'_>, pcpu: &mut Pcpu, now_ns: u64) -> bool {
        let area = task.guest.area(task.vcpu.id);
        if self.grace_ns == 0 || pcpu.grace.is_some() || Activity::of(area) != Activity::Holder {
            return false;
        }
        pcpu.grace = Some(now_ns);
        pcpu.slice.extend(now_ns + self.grace_ns);
        // Relaxed: the vCPU is stopped.
        area.host.yield_wanted.store(1, Ordering::Relaxed);
        true
    }

    /// The end of a turn, with grace or without.
    fn settle_grace(&self, task: &mut Task<'_>, pcpu: &mut Pcpu, expired: bool, now_ns: u64) {
        let Some(granted_ns) = pcpu.grace.take() else { return };
        task.guest.area(task.vcpu.id).host.yield_wanted.store(0, Ordering::Relaxed);
        let overrun_ns = now_ns.saturating_sub(granted_ns);
        task.account.debt_ns = overrun_ns.min(self.slice_ns);
        if task.guest.window.contains(now_ns) {
            let graces = &mut task.account.graces;
            graces.granted += 1;
            graces.expired += u64::from(expired);
            graces.overrun_ns += overrun_ns;
        }
    }

    fn start_the_others(&self, guest: &GuestRun<'_>) {
        let mut queue = lock(&self.queue);
        let now = now_ns();
        for mut task in std::mem::take(&mut queue.unborn) {
            if task.guest.index == guest.index {
                task.account = Account::new(now);
                // Those of a guest that started earlier have run meanwhile.
                queue.push_after_sleep(task);
            } else {
                queue.unborn.push(task);
            }
        }
        self.publish_load(&queue);
        self.work.notify_all();
    }

    /// Case 1 without the way through the queue: the vCPU goes on at once.
    fn take_latch(&self, task: &Task<'a>) -> bool {
        std::mem::take(&mut lock(&self.slots[task.number() as usize]).latched)
    }

    fn put_to_sleep(&self, task: Box<Task<'a>>) {
        let mut slot = lock(&self.slots[task.number() as usize]);
        if std::mem::take(&mut slot.latched) {
            drop(slot);
            self.make_ready(task);
        } else {
            slot.asleep = Some(task);
        }
    }

    /// `pv_kick`: whether that vCPU slept, and the vCPU itself if it is to be run at once. A number that is no vCPU's of
    /// this guest is the guest's mistake and kicks nobody.
    fn kick(&self, guest: &GuestRun<'_>, vcpu: u32) -> (Option<bool>, Option<Box<Task<'a>>>) {
        if vcpu >= guest.memory.vcpus() {
            return (None, None);
        }
        let mut slot = lock(&self.slots[guest.number_of(vcpu) as usize]);
        let Some(mut task) = slot.asleep.take() else {
            slot.latched = true;
            return (Some(false), None);
        };
        drop(slot);
        task.account.kicks += 1;
        if !self.kick_yields {
            self.make_ready(task);
            return (Some(true), None);
        }
        task.account.wake(guest, now_ns());
        let virtual_ns = task.account.virtual_ns;
        task.account.virtual_ns = lock(&self.queue).ready.after_sleep(guest.index, virtual_ns);
        task.account.handed += 1;
        (Some(true), Some(task))
    }

    fn make_ready(&self, mut task: Box<Task<'a>>) {
        let mut queue = lock(&self.queue);
        task.account.wake(task.guest, now_ns());
        queue.push_after_sleep(task);
        self.publish_load(&queue);
        if queue.idle_runners > 0 {
            self.work.notify_one();
        }
    }

    /// Directed yield: `vcpu` of the same guest, if it is ready. Else the yield has no effect, as in KVM: it runs already, or
    /// it sleeps, and nothing would be gained by giving up the pCPU for it.
    fn take_ready(&self, guest: &GuestRun<'_>, vcpu: u32) -> Option<Box<Task<'a>>> {
        if vcpu >= guest.memory.vcpus() {
            return None;
        }
        let mut queue = lock(&self.queue);
        queue.take_back(now_ns());
        let mut task = queue.ready.take(guest.index, guest.number_of(vcpu))?;
        task.account.handed += 1;
        Some(task)
    }

    /// Yield: whoever else is next.
    fn pass_slice(&self, task: Box<Task<'a>>) -> Option<Box<Task<'a>>> {
        let mut queue = lock(&self.queue);
        let next = queue.pop(task.last_pcpu);
        queue.push_ready(task);
        self.publish_load(&queue);
        if next.is_none() && queue.idle_runners > 0 {
            self.work.notify_one();
        }
        next
    }
}
