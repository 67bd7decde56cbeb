//! `--sched vmm`: one pinned runner thread per pCPU multiplexes the vCPUs.
//!
//! A vCPU is a [`Task`] that exactly one place owns at any time: the [`Queue`], a runner's hands, or its slot among the
//! [`Sleepers`]. Ownership is what keeps two runners from entering one vCPU.
//!
//! Its turn on a pCPU ends in one of the ways of [`Turn`], each of which has a place for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::Scope;
use std::time::{Duration, Instant};

use crate::guest::activity::Activity;
use crate::host::affinity;
use crate::host::clock::now_ns;
use crate::host::error::{RunError, system};
use crate::host::locks::{lock, unlocked, wait};
use crate::host::signal::{self, Thread};
use crate::machine::exits::Exit;
use crate::machine::vcpu::Vcpu;
use crate::observe::observer::Observer;
use crate::observe::trace::Why;
use crate::sched::account::{Account, By, Place};
use crate::sched::deschedule::{Injector, Plan};
use crate::sched::guest_run::GuestRun;
use crate::sched::halts::LookCost;
use crate::sched::pcpu::Pcpu;
use crate::sched::queue::{Queue, Task};
use crate::sched::shares::Shares;
use crate::sched::sleepers::Sleepers;
use crate::sched::slice::SliceTimer;
use crate::sched::{Finished, Rules, run_delay};

/// A vCPU's first slice while its guest starts: it needs a moment only, and those that have started would make the others
/// wait. Where the moment is longer, on an emulated host, each slice that was not enough is followed by one twice as long.
const START_SLICE_NS: u64 = 100_000;

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
    sleepers: Sleepers<Box<Task<'a>>>,
    runners: usize,
    slice_ns: u64,
    grace_ns: u64,
    kick_yields: bool,
    plan: Option<Plan>,
    threads: Mutex<Vec<Thread>>,
    look_cost: LookCost,
    /// A runner is missing.
    broken: AtomicBool,
}

impl<'a> Runners<'a> {
    /// Takes over the vCPUs of each of `guests`, to be run as `rules` say.
    pub(crate) fn new(
        rules: Rules,
        guests: &'a [GuestRun<'a>],
        vcpus: Vec<Vec<Vcpu>>,
        plan: Option<Plan>,
    ) -> Self {
        let slice_ns = rules.slice.as_nanos() as u64;
        let now = now_ns();
        let count = vcpus.iter().map(Vec::len).sum();
        let mut queue = Queue::new(Shares::new(rules.share, guests.len(), count, slice_ns));
        for (guest, vcpus) in guests.iter().zip(vcpus) {
            let mut tasks = vcpus.into_iter().map(|vcpu| {
                let account = Account::new(now);
                Box::new(Task { guest, vcpu, account, last_pcpu: None, stopped: false })
            });
            // A kernel of its own starts its vCPUs itself; KVM keeps them waiting until then.
            let at_once = if guest.shared.is_none() { usize::MAX } else { 1 };
            tasks.by_ref().take(at_once).for_each(|task| queue.push_ready(task));
            queue.unborn.extend(tasks);
        }
        Self {
            guests,
            queue: Mutex::new(queue),
            work: Condvar::new(),
            sleepers: Sleepers::new(count),
            runners: rules.pcpus,
            slice_ns,
            grace_ns: rules.grace.as_nanos() as u64,
            kick_yields: rules.kick_yields,
            plan,
            threads: Mutex::default(),
            look_cost: LookCost::default(),
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
        let queue = unlocked(self.queue);
        let off = queue.ready.into_vcpus().chain(queue.aside.into_values());
        let off = off.chain(queue.dozing.into_values()).chain(self.sleepers.into_sleepers());
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
        let born = Instant::now();
        signal::block_all();
        affinity::pin_to(&[cpu])?;
        let slice = SliceTimer::new(self.slice_ns).map_err(system("create a slice timer"))?;
        let injector = self.plan.map(|plan| Injector::new(plan, runner, self.runners, now_ns()));
        let observer =
            Observer::new(self.guests[0].notes, runner).map_err(system("create a sampling timer"))?;
        let mut pcpu = Pcpu::new(cpu, slice, injector, observer);
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
        let stat = run_delay::of_this_thread();
        self.guests.iter().for_each(|guest| guest.run_delays.add(born, stat));
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
            if next.is_none() && queue.idle_runners == self.runners {
                self.nobody_can_run(&queue);
            }
            let most = next.map(|(until_ns, _)| Duration::from_nanos(until_ns.saturating_sub(now_ns())));
            queue = wait(&self.work, queue, most);
            queue.idle_runners -= 1;
        }
    }

    fn first_look_ns(&self) -> u64 {
        self.look_cost.first_look_ns(self.slice_ns)
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
            self.look_cost.note(end_ns - start_ns);
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

    /// Only a running vCPU can kick another, so if none runs and none is ready, none ever will. Unless a guest is over: whoever
    /// was ready then is out of the queue.
    fn nobody_can_run(&self, queue: &MutexGuard<'_, Queue<'a>>) {
        for guest in self.guests.iter().filter(|guest| !guest.failed() && !guest.stopping()) {
            let of_guest =
                |tasks: &[Box<Task<'_>>]| tasks.iter().filter(|task| task.guest.index == guest.index).count();
            let left = of_guest(&queue.left);
            let asleep = guest.vcpus as usize - left - of_guest(&queue.unborn) - of_guest(&queue.retired);
            // Once the window is closed vCPUs leave as they come by, and may leave others asleep.
            let leaving = left > 0 && guest.window.is_closed();
            if asleep > 0 && !leaving {
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

    /// Runs `task` until its turn ends, then puts it where it belongs. The vCPU to run next, if it chose one. As long as there
    /// are ways for a turn to end.
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
        pcpu.observer.stops(guest.number_of(id), now, || match &turn {
            Ok(Turn::SliceEnded) => Why::Preempted(guest.activity(id)),
            Ok(Turn::Injected(_)) => Why::Injected(guest.activity(id)),
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
                if let Some(kicked) = self.sleepers.put(task.number(), task) {
                    self.make_ready(kicked);
                }
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
    fn run_turn(
        &self,
        task: &mut Task<'a>,
        pcpu: &mut Pcpu<'a>,
        began_ns: u64,
    ) -> Result<Turn<'a>, RunError> {
        let guest = task.guest;
        self.begin_turn(task, pcpu, began_ns);
        loop {
            if guest.stopping() {
                return Ok(Turn::Stopped);
            }
            pcpu.observer.enters();
            let entered = guest.enter(&mut task.vcpu);
            let what = || format!("run vCPU {}", task.vcpu.id);
            let exit = entered.map_err(|source| RunError::System { what: what(), source })?;
            let ended = match exit {
                Exit::Interrupted => self.interrupted(task, pcpu)?,
                Exit::Wait => (!self.sleepers.take_latch(task.number())).then_some(Turn::Waits),
                Exit::Kick(vcpu) => {
                    let kick = || self.kick(guest, vcpu);
                    let (from, to) = (task.number(), guest.number_of(vcpu));
                    pcpu.observer.kicks(from, to, kick).map(Turn::HandsOver)
                }
                Exit::Yield(to) => self.yields(task, pcpu, to),
                Exit::Point(point) => pcpu.takes_at(point, guest.activity(task.vcpu.id)).map(Turn::Injected),
                Exit::Booted => {
                    if let Some(shared) = &guest.shared {
                        guest.tsc.compare(shared.memory.control().booted_tsc.load(Ordering::Relaxed));
                    }
                    if let Some(virtual_ns) = self.start_the_others(guest) {
                        task.account.booted(virtual_ns, now_ns());
                    }
                    None
                }
                Exit::Left => Some(Turn::Left),
                exit => (!guest.serve(&task.vcpu, exit)).then_some(Turn::Left),
            };
            if let Some(turn) = ended {
                return Ok(turn);
            }
        }
    }

    /// The timer is set first: that may take 8 us, which the vCPU does not run.
    fn begin_turn(&self, task: &mut Task<'a>, pcpu: &mut Pcpu<'a>, began_ns: u64) {
        let (guest, id) = (task.guest, task.vcpu.id);
        let mut debt_ns = std::mem::take(&mut task.account.debt_ns);
        if guest.is_starting() {
            let start_slice_ns = START_SLICE_NS << task.account.preemptions.min(30);
            debt_ns = self.slice_ns.saturating_sub(start_slice_ns);
        }
        pcpu.begin(began_ns, debt_ns, guest.halts_in_kernel.then(|| self.first_look_ns()));
        let start_ns = now_ns();
        task.account.resume(guest, id, start_ns);
        guest.runs_here(id);
        Self::publish_slice_end(task, pcpu);
        pcpu.observer.runs(guest.number_of(id), task.last_pcpu, start_ns);
    }

    /// A signal got the vCPU out: the slice timer's, a look's, the experiment's, or that of the run's end. `Some` if its turn is
    /// over.
    fn interrupted(&self, task: &mut Task<'a>, pcpu: &mut Pcpu<'a>) -> Result<Option<Turn<'a>>, RunError> {
        let guest = task.guest;
        // Taken before the clock is read: if this was the timer's kick, the clock says so; if it was the one that ends the run,
        // the flag does, which was set before it.
        signal::take_kick();
        let now = now_ns();
        pcpu.observer.interrupted(&task.vcpu, now, || guest.sampled(task.vcpu.id, now));
        if guest.halts_in_kernel && task.vcpu.is_halted() {
            return Ok(Some(Turn::Halts));
        }
        pcpu.looked(now);
        if let Some(length_ns) = pcpu.takes(|| guest.checked_activity(task.vcpu.id), now) {
            return Ok(Some(Turn::Injected(length_ns)));
        }
        if pcpu.slice.ended(now) {
            self.look_at_dozing(pcpu.number)?;
            if self.somebody_is_ready() && !self.grants_grace(task, pcpu, now) {
                self.settle_grace(task, pcpu, true, now);
                return Ok(Some(Turn::SliceEnded));
            }
            Self::publish_slice_end(task, pcpu);
        }
        Ok(None)
    }

    /// The vCPU gives up its slice: to vCPU `to` of its guest, or to anyone. `Some` if its turn is over.
    fn yields(&self, task: &mut Task<'a>, pcpu: &mut Pcpu<'a>, to: Option<u32>) -> Option<Turn<'a>> {
        if pcpu.grace.is_some() {
            self.settle_grace(task, pcpu, false, now_ns());
            return Some(Turn::SliceEnded);
        }
        match to {
            Some(to) => self.take_ready(task.guest, to).map(Turn::HandsOver),
            None => self.somebody_is_ready().then_some(Turn::Yields),
        }
    }

    /// Tells the guests how many vCPUs, of all of them, have no pCPU. Whoever changes the ready queue says so before he
    /// lets go of it.
    fn publish_load(&self, queue: &Queue<'_>) {
        for shared in self.guests.iter().filter_map(|guest| guest.shared.as_ref()) {
            shared.tell_ready_vcpus(queue.ready.len() as u32);
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
        let Some(shared) = &task.guest.shared else { return };
        // The clock is read here and not taken from the caller: to set the timer may have taken 8 us since then.
        let end = task.guest.tsc.in_ns(pcpu.slice.deadline_ns().saturating_sub(now_ns()));
        // Relaxed: a hint, which the vCPU reads once it runs.
        shared.area(task.vcpu.id).host.slice_end_tsc.store(end, Ordering::Relaxed);
    }

    /// The slice of the vCPU is over: whether it may run a little longer, once, to leave its section.
    ///
    /// What it runs beyond the slice is charged to the next one. So a vCPU that always claims to hold a lock gains nothing.
    fn grants_grace(&self, task: &Task<'_>, pcpu: &mut Pcpu, now_ns: u64) -> bool {
        let Some(shared) = &task.guest.shared else { return false };
        if self.grace_ns == 0 || pcpu.grace.is_some() || task.guest.activity(task.vcpu.id) != Activity::Holder
        {
            return false;
        }
        pcpu.grace = Some(now_ns);
        pcpu.slice.extend(now_ns + self.grace_ns);
        // Relaxed: the vCPU is stopped.
        shared.area(task.vcpu.id).host.yield_wanted.store(1, Ordering::Relaxed);
        true
    }

    /// The end of a turn, with grace or without.
    fn settle_grace(&self, task: &mut Task<'_>, pcpu: &mut Pcpu, expired: bool, now_ns: u64) {
        let Some(granted_ns) = pcpu.grace.take() else { return };
        if let Some(shared) = &task.guest.shared {
            // Relaxed: the vCPU is stopped.
            shared.area(task.vcpu.id).host.yield_wanted.store(0, Ordering::Relaxed);
        }
        let overrun_ns = now_ns.saturating_sub(granted_ns);
        task.account.debt_ns = overrun_ns.min(self.slice_ns);
        if task.guest.window.contains(now_ns) {
            let graces = &mut task.account.graces;
            graces.granted += 1;
            graces.expired += u64::from(expired);
            graces.overrun_ns += overrun_ns;
        }
    }

    /// The virtual time at which they start; `None` if they have started already.
    fn start_the_others(&self, guest: &GuestRun<'_>) -> Option<u64> {
        let mut queue = lock(&self.queue);
        let now = now_ns();
        let is_first = queue.unborn.iter().any(|task| task.guest.index == guest.index);
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
        is_first.then(|| queue.ready.after_sleep(guest.index, 0))
    }

    /// `pv_kick`: whether that vCPU slept, and the vCPU itself if it is to be run at once. A number that is no vCPU's of
    /// this guest is the guest's mistake and kicks nobody.
    fn kick(&self, guest: &GuestRun<'_>, vcpu: u32) -> (Option<bool>, Option<Box<Task<'a>>>) {
        if vcpu >= guest.vcpus {
            return (None, None);
        }
        let Some(mut task) = self.sleepers.kick(guest.number_of(vcpu)) else { return (Some(false), None) };
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
        if vcpu >= guest.vcpus {
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
