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
//! One queue for all runners keeps every pCPU busy while any vCPU is ready; `fair_queue` says who is next.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;
use std::time::Duration;

use crate::account::{Account, Activity, By};
use crate::clock::{now_ns, read_tsc};
use crate::config::RunConfig;
use crate::deschedule::{Injector, Plan};
use crate::error::{RunError, system};
use crate::exits::Exit;
use crate::guest_run::{GuestRun, lock};
use crate::sched::fair_queue::FairQueue;
use crate::sched::slice::SliceTimer;
use crate::sched::{Finished, Place, affinity};
use crate::signal::{self, Thread};
use crate::vcpu::Vcpu;

/// A vCPU and its books.
struct Task {
    vcpu: Vcpu,
    account: Account,
    /// The pCPU that it ran on last. It is run there again where that is fair: its caches are warm there, and before
    /// Linux 6.13 a vCPU that changes threads waits for an RCU grace period.
    last_pcpu: Option<u32>,
    /// The end of the run took it off its pCPU.
    stopped: bool,
}

/// Where a sleeping vCPU lies, and where a kick waits for one that does not sleep yet.
#[derive(Default)]
struct Slot {
    latched: bool,
    asleep: Option<Box<Task>>,
}

/// Tasks are boxed wherever they lie: they change places thousands of times a second.
#[expect(clippy::vec_box, reason = "they come out of the other places boxed")]
struct Queue {
    ready: FairQueue<Box<Task>>,
    /// Descheduled on purpose: until when, and which.
    aside: BTreeMap<(u64, u32), Box<Task>>,
    /// Not started until vCPU 0 says so.
    unborn: Vec<Box<Task>>,
    /// Done, or failed.
    left: Vec<Box<Task>>,
    idle_runners: usize,
}

impl Queue {
    /// Those whose time aside is over are ready.
    fn take_back(&mut self, now_ns: u64) {
        while let Some(entry) = self.aside.first_entry().filter(|entry| entry.key().0 <= now_ns) {
            let mut task = entry.remove();
            task.account.virtual_ns = self.ready.after_sleep(task.account.virtual_ns);
            self.ready.push(task.vcpu.id, task.account.virtual_ns, task);
        }
    }
}

/// What a runner has of its own.
struct Pcpu {
    slice: SliceTimer,
    injector: Option<Injector>,
    /// While the turn is in its grace: since when.
    grace: Option<u64>,
}

impl Pcpu {
    /// A turn begins.
    fn begin(&mut self, now_ns: u64, debt_ns: u64) {
        self.slice.begin(now_ns, debt_ns);
        self.set_alarm();
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
        if let Some(at_ns) = self.injector.as_ref().and_then(Injector::alarm) {
            self.slice.also_at(at_ns);
        }
    }
}

/// Why a vCPU's turn ended.
enum Turn {
    /// Its slice is over and another vCPU is ready.
    SliceEnded,
    /// It is descheduled on purpose for so many nanoseconds.
    Injected(u64),
    /// It sleeps until kicked.
    Waits,
    /// It gives up its slice, and somebody else is ready.
    Yields,
    /// It hands its pCPU to this vCPU.
    HandsOver(Box<Task>),
    /// It has nothing more to do, or may not be entered again.
    Left,
    /// The run is over.
    Stopped,
}

/// The scheduler.
pub(crate) struct Runners<'a> {
    run: &'a GuestRun<'a>,
    queue: Mutex<Queue>,
    /// Signalled when a vCPU becomes ready while a runner is idle, and when the run stops.
    work: Condvar,
    /// One per vCPU.
    slots: Vec<Mutex<Slot>>,
    runners: usize,
    slice_ns: u64,
    grace_ns: u64,
    kick_yields: bool,
    plan: Option<Plan>,
    threads: Mutex<Vec<Thread>>,
}

impl<'a> Runners<'a> {
    /// Takes over `vcpus`.
    pub(crate) fn new(
        run: &'a GuestRun<'a>,
        vcpus: Vec<Vcpu>,
        config: &RunConfig,
        plan: Option<Plan>,
    ) -> Self {
        let runners = config.cpus.len();
        let slice_ns = config.slice.as_nanos() as u64;
        let now = now_ns();
        let slots: Vec<_> = vcpus.iter().map(|_| Mutex::default()).collect();
        let mut tasks = vcpus
            .into_iter()
            .map(|vcpu| Box::new(Task { vcpu, account: Account::new(now), last_pcpu: None, stopped: false }));
        let mut ready = FairQueue::new(slots.len(), slice_ns);
        if let Some(boot_vcpu) = tasks.next() {
            ready.push(boot_vcpu.vcpu.id, 0, boot_vcpu);
        }
        let (aside, left) = (BTreeMap::new(), Vec::new());
        let queue = Queue { ready, aside, unborn: tasks.collect(), left, idle_runners: 0 };
        Self {
            run,
            queue: Mutex::new(queue),
            work: Condvar::new(),
            slots,
            runners,
            slice_ns,
            grace_ns: config.grace.as_nanos() as u64,
            kick_yields: config.kick_yields,
            plan,
            threads: Mutex::default(),
        }
    }

    /// Starts a runner on each of `cpus`.
    pub(crate) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, cpus: &'scope [u32]) {
        for (&cpu, runner) in cpus.iter().zip(0..) {
            let spawned =
                std::thread::Builder::new().name(format!("pcpu{cpu}")).spawn_scoped(scope, move || {
                    if let Err(error) = self.serve_pcpu(cpu, runner) {
                        self.run.fail(error);
                    }
                });
            if let Err(source) = spawned {
                self.run.fail(RunError::System { what: "start a runner thread".into(), source });
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
        let off = queue.ready.into_vcpus().chain(queue.aside.into_values()).chain(asleep);
        let off = off.map(|mut task| {
            task.account.end_while_off(self.run, task.vcpu.id, now);
            let place = if task.stopped { Place::Running } else { task.account.place() };
            (task, place)
        });
        off.chain(queue.unborn.into_iter().map(|task| (task, Place::NotStarted)))
            .chain(queue.left.into_iter().map(|task| (task, Place::Left)))
            .map(|(task, place)| Finished { id: task.vcpu.id, vcpu: task.vcpu, account: task.account, place })
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
        let mut pcpu = Pcpu { slice, injector, grace: None };
        lock(&self.threads).push(Thread::current());
        let mut next = None;
        while let Some(mut task) = next.take().or_else(|| self.next_ready(cpu)) {
            task.last_pcpu = Some(cpu);
            next = self.give_turn(task, &mut pcpu)?;
        }
        Ok(())
    }

    /// The vCPU whose turn it is; sleeps while none is ready. `None`: the run is over.
    fn next_ready(&self, pcpu: u32) -> Option<Box<Task>> {
        let mut queue = lock(&self.queue);
        loop {
            if self.run.stopping() {
                return None;
            }
            queue.take_back(now_ns());
            if let Some(task) = queue.ready.pop(|task| task.last_pcpu == Some(pcpu)) {
                return Some(task);
            }
            queue.idle_runners += 1;
            queue = match queue.aside.keys().next() {
                Some(&(until_ns, _)) => {
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

    /// Only a running vCPU can kick another, so if none runs and none is ready, none ever will.
    fn nobody_can_run(&self, queue: &MutexGuard<'_, Queue>) {
        let asleep = self.slots.len() - queue.left.len() - queue.unborn.len();
        if asleep > 0 && !self.run.failed() {
            let left = queue.left.len();
            self.run.fail(RunError::NoProgress(format!(
                "{asleep} vCPUs sleep in pv_wait and none is left to kick them ({left} have left): a wake-up was lost"
            )));
        }
    }

    fn push_ready(&self, task: Box<Task>) {
        let mut queue = lock(&self.queue);
        queue.ready.push(task.vcpu.id, task.account.virtual_ns, task);
        if queue.idle_runners > 0 {
            self.work.notify_one();
        }
    }

    /// Runs `task` until its turn ends, then puts it where it belongs. The vCPU to run next, if it chose one.
    fn give_turn(&self, mut task: Box<Task>, pcpu: &mut Pcpu) -> Result<Option<Box<Task>>, RunError> {
        let turn = self.run_turn(&mut task, pcpu);
        let (id, now) = (task.vcpu.id, now_ns());
        // A turn may end in its grace for another reason than the grace.
        self.settle_grace(&mut task, pcpu, false, now);
        task.stopped = matches!(turn, Ok(Turn::Stopped));
        match turn {
            Ok(Turn::SliceEnded | Turn::Stopped) => {
                task.account.preempt(self.run, id, By::Schedule, now);
                self.push_ready(task);
            }
            Ok(Turn::Injected(length_ns)) => {
                task.account.preempt(self.run, id, By::Injection, now);
                let mut queue = lock(&self.queue);
                queue.aside.insert((now.saturating_add(length_ns), id), task);
                // Whoever is idle sleeps no longer than until then.
                self.work.notify_all();
            }
            Ok(Turn::Waits) => {
                task.account.sleep(self.run, id, now);
                self.put_to_sleep(task);
            }
            Ok(Turn::Yields) => {
                task.account.give_up(self.run, id, now);
                return Ok(self.pass_slice(task));
            }
            Ok(Turn::HandsOver(next)) => {
                task.account.give_up(self.run, id, now);
                self.push_ready(task);
                return Ok(Some(next));
            }
            Ok(Turn::Left) => {
                task.account.leave(self.run, id, now);
                lock(&self.queue).left.push(task);
            }
            Err(error) => {
                lock(&self.queue).left.push(task);
                return Err(RunError::System { what: format!("run vCPU {id}"), source: error });
            }
        }
        Ok(None)
    }

    /// The run loop of a vCPU's turn.
    fn run_turn(&self, task: &mut Task, pcpu: &mut Pcpu) -> std::io::Result<Turn> {
        let (id, start) = (task.vcpu.id, now_ns());
        task.account.resume(self.run, id, start);
        self.run.invalidations.runs_here(id);
        pcpu.begin(start, std::mem::take(&mut task.account.debt_ns));
        self.publish_slice_end(id, pcpu, start);
        loop {
            if self.run.stopping() {
                return Ok(Turn::Stopped);
            }
            match self.run.enter(&mut task.vcpu)? {
                Exit::Interrupted => {
                    // Taken before the clock is read: if this was the timer's kick, the clock says so; if it was the
                    // one that ends the run, the flag does, which was set before it.
                    signal::take_kick();
                    let now = now_ns();
                    if let Some(length_ns) = pcpu.takes(|| Activity::checked(self.run, id), now) {
                        return Ok(Turn::Injected(length_ns));
                    }
                    if pcpu.slice.ended(now) {
                        if self.somebody_is_ready() && !self.grants_grace(id, pcpu, now) {
                            self.settle_grace(task, pcpu, true, now);
                            return Ok(Turn::SliceEnded);
                        }
                        self.publish_slice_end(id, pcpu, now);
                    }
                }
                Exit::Wait if self.take_latch(task) => {}
                Exit::Wait => return Ok(Turn::Waits),
                Exit::Kick(vcpu) => {
                    if let Some(next) = self.kick(vcpu) {
                        return Ok(Turn::HandsOver(next));
                    }
                }
                Exit::Invalidate => self.run.invalidations.ring(self.run.memory),
                Exit::Yield(_) if pcpu.grace.is_some() => {
                    self.settle_grace(task, pcpu, false, now_ns());
                    return Ok(Turn::SliceEnded);
                }
                Exit::Yield(Some(to)) => {
                    if let Some(next) = self.take_ready(to) {
                        return Ok(Turn::HandsOver(next));
                    }
                }
                Exit::Yield(None) if self.somebody_is_ready() => return Ok(Turn::Yields),
                Exit::Yield(None) => {}
                Exit::Point(point) => {
                    let activity = Activity::of(self.run.area(id));
                    if let Some(length_ns) = pcpu.takes_at(point, activity) {
                        return Ok(Turn::Injected(length_ns));
                    }
                }
                Exit::Booted => self.start_the_others(),
                Exit::Left => return Ok(Turn::Left),
                exit => {
                    if !self.run.serve(&task.vcpu, exit) {
                        return Ok(Turn::Left);
                    }
                }
            }
        }
    }

    fn somebody_is_ready(&self) -> bool {
        let mut queue = lock(&self.queue);
        queue.take_back(now_ns());
        !queue.ready.is_empty()
    }

    /// Tells the guest when the slice ends that began, or went on, at `now_ns`.
    fn publish_slice_end(&self, vcpu: u32, pcpu: &Pcpu, now_ns: u64) {
        let end = self.run.losses.ticks(pcpu.slice.deadline_ns().saturating_sub(now_ns)) + read_tsc();
        // Relaxed: a hint, which the vCPU reads once it runs.
        self.run.area(vcpu).host.slice_end_tsc.store(end, Ordering::Relaxed);
    }

    /// The slice of `vcpu` is over: whether it may run a little longer, once, to leave its section.
    ///
    /// What it runs beyond the slice is charged to the next one. So a vCPU that always claims to hold a lock gains nothing.
    fn grants_grace(&self, vcpu: u32, pcpu: &mut Pcpu, now_ns: u64) -> bool {
        let area = self.run.area(vcpu);
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
    fn settle_grace(&self, task: &mut Task, pcpu: &mut Pcpu, expired: bool, now_ns: u64) {
        let Some(granted_ns) = pcpu.grace.take() else { return };
        self.run.area(task.vcpu.id).host.yield_wanted.store(0, Ordering::Relaxed);
        let overrun_ns = now_ns.saturating_sub(granted_ns);
        task.account.debt_ns = overrun_ns.min(self.slice_ns);
        if self.run.window.contains(now_ns) {
            let graces = &mut task.account.graces;
            graces.granted += 1;
            graces.expired += u64::from(expired);
            graces.overrun_ns += overrun_ns;
        }
    }

    fn start_the_others(&self) {
        let mut queue = lock(&self.queue);
        let now = now_ns();
        for mut task in std::mem::take(&mut queue.unborn) {
            task.account = Account::new(now);
            queue.ready.push(task.vcpu.id, 0, task);
        }
        self.work.notify_all();
    }

    /// Case 1 without the way through the queue: the vCPU goes on at once.
    fn take_latch(&self, task: &Task) -> bool {
        std::mem::take(&mut lock(&self.slots[task.vcpu.id as usize]).latched)
    }

    fn put_to_sleep(&self, task: Box<Task>) {
        let mut slot = lock(&self.slots[task.vcpu.id as usize]);
        if std::mem::take(&mut slot.latched) {
            drop(slot);
            self.make_ready(task);
        } else {
            slot.asleep = Some(task);
        }
    }

    /// `pv_kick`. A number that is no vCPU's is the guest's mistake and kicks nobody. The vCPU that was woken, if it is
    /// to be run at once.
    fn kick(&self, vcpu: u32) -> Option<Box<Task>> {
        let mut slot = lock(self.slots.get(vcpu as usize)?);
        let Some(mut task) = slot.asleep.take() else {
            slot.latched = true;
            return None;
        };
        drop(slot);
        task.account.kicks += 1;
        if !self.kick_yields {
            self.make_ready(task);
            return None;
        }
        task.account.wake(self.run, now_ns());
        task.account.virtual_ns = lock(&self.queue).ready.after_sleep(task.account.virtual_ns);
        task.account.handed += 1;
        Some(task)
    }

    fn make_ready(&self, mut task: Box<Task>) {
        let mut queue = lock(&self.queue);
        task.account.wake(self.run, now_ns());
        task.account.virtual_ns = queue.ready.after_sleep(task.account.virtual_ns);
        queue.ready.push(task.vcpu.id, task.account.virtual_ns, task);
        if queue.idle_runners > 0 {
            self.work.notify_one();
        }
    }

    /// Directed yield: `vcpu`, if it is ready. Else the yield has no effect, as in KVM: it runs already, or it sleeps, and
    /// nothing would be gained by giving up the pCPU for it.
    fn take_ready(&self, vcpu: u32) -> Option<Box<Task>> {
        let mut queue = lock(&self.queue);
        queue.take_back(now_ns());
        let mut task = queue.ready.take(vcpu)?;
        task.account.handed += 1;
        Some(task)
    }

    /// Yield: whoever else is next.
    fn pass_slice(&self, task: Box<Task>) -> Option<Box<Task>> {
        let mut queue = lock(&self.queue);
        let next = queue.ready.pop(|ready| ready.last_pcpu == task.last_pcpu);
        queue.ready.push(task.vcpu.id, task.account.virtual_ns, task);
        if next.is_none() && queue.idle_runners > 0 {
            self.work.notify_one();
        }
        next
    }
}
