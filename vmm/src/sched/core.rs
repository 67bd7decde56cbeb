//! The scheduler of `--sched vmm` as a state machine: who is ready, who sleeps, whose turn it is and how a turn ends.
//!
//! It starts no threads, runs no vCPUs and sets no timers, and what time it is its clock says. Whoever drives it gives each vCPU
//! its turns: [`Runners`](crate::sched::runners::Runners) do so with a thread per pCPU.
//!
//! ```text
//!  next() -> begin_turn() -> (the vCPU runs, and comes out for a reason) -> exited() -> None: it runs on
//!                                                                              └─> Some(turn) -> end_turn() -> next()
//! ```
//!
//! A vCPU is a [`Task`] that exactly one place owns at any time: the [`Queue`], a driver's hands, or its slot among the
//! [`Sleepers`]. Ownership is what keeps two pCPUs from entering one vCPU.
//!
//! Its turn on a pCPU ends in one of the ways of [`Turn`], each of which has a place for it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::host::clock::Clock;
use crate::host::error::RunError;
use crate::host::locks::{lock, unlocked};
use crate::machine::exits::Exit;
use crate::machine::vcpu::Vcpu;
use crate::observe::whereabouts::Where;
use crate::sched::account::Account;
use crate::sched::deschedule::{Injector, Plan};
use crate::sched::grace::Grace;
use crate::sched::guest_run::GuestRun;
use crate::sched::halts::LookCost;
use crate::sched::pcpu::Pcpu;
use crate::sched::placing::{PcpuSet, wakes_on};
use crate::sched::queue::{Queue, Task};
use crate::sched::shares::Shares;
use crate::sched::sleepers::Sleepers;
use crate::sched::slice::Timer;
use crate::sched::timeline::MOST_TIMELINES;
use crate::sched::turn::Turn;
use crate::sched::{Finished, Rules};

/// A vCPU's first slice while its guest starts: it needs a moment only, and those that have started would make the others
/// wait. Where the moment is longer, on an emulated host, each slice that was not enough is followed by one twice as long.
const START_SLICE_NS: u64 = 100_000;

/// How pCPUs that have nothing to do learn that there is something.
pub(super) trait Bell {
    /// A vCPU that ran on `last` is ready: which of the `idle` pCPUs is to be rung for it. That one is idle no longer: the next vCPU
    /// is for another one.
    fn choose(&self, last: Option<u32>, idle: &mut PcpuSet) -> Option<u32> {
        let chosen = wakes_on(last, idle, |pcpu| last.map(|last| pcpu.abs_diff(last)))?;
        idle.remove(chosen);
        Some(chosen)
    }

    /// There may be something for `pcpu`.
    fn ring(&self, pcpu: u32);

    /// Something has changed for all of them.
    fn ring_all(&self);
}

/// What a pCPU does next.
pub(super) enum Next<'a, 'q> {
    /// It runs this vCPU.
    Runs(Box<Task<'a>>),
    /// Nothing until the bell rings, at most until this time. The queue is let go of when it sleeps.
    Idles(MutexGuard<'q, Queue<'a>>, Option<u64>),
    /// The run is over.
    Ends,
}

/// A value in cache lines of its own: its neighbours change at other times.
#[repr(align(128))]
struct Line<T>(T);

/// The scheduler.
pub(super) struct Core<'a, B> {
    pub(super) guests: &'a [GuestRun<'a>],
    pub(super) clock: &'a Clock,
    pub(super) queue: Mutex<Queue<'a>>,
    /// Rings when a vCPU becomes ready while a pCPU is idle, and when the run stops.
    pub(super) bell: B,
    pub(super) sleepers: Sleepers<Task<'a>>,
    pcpus: usize,
    pub(super) slice_ns: u64,
    grace: Grace,
    pub(super) kick_yields: bool,
    plan: Option<Plan>,
    pub(super) look_cost: LookCost,
    /// The number of ready vCPUs when it changed last.
    ready: Line<AtomicU32>,
    /// Whether guests have shares.
    charges: bool,
}

impl<'a, B: Bell> Core<'a, B> {
    /// Takes over the vCPUs of each of `guests`, to be run on `pcpus` pCPUs as `rules` say.
    pub(super) fn new(
        rules: Rules,
        pcpus: usize,
        guests: &'a [GuestRun<'a>],
        vcpus: Vec<Vec<Vcpu>>,
        plan: Option<Plan>,
        bell: B,
    ) -> Self {
        let slice_ns = rules.slice.as_nanos() as u64;
        let clock = guests[0].clock;
        let now = clock.now_ns();
        let count = vcpus.iter().map(Vec::len).sum();
        let timelines = count <= MOST_TIMELINES && guests.iter().all(|guest| guest.shared.is_some());
        let mut queue = Queue::new(Shares::new(rules.share, guests.len(), count, slice_ns));
        for (guest, vcpus) in guests.iter().zip(vcpus) {
            let mut tasks = vcpus.into_iter().map(|vcpu| {
                let account = Account::new(Where::Ready, now);
                let account = if timelines { account.with_timeline(slice_ns) } else { account };
                Box::new(Task { guest, vcpu, account, last_pcpu: None, stopped: false })
            });
            // A kernel of its own starts its vCPUs itself; KVM keeps them waiting until then.
            let at_once = if guest.shared.is_none() { usize::MAX } else { 1 };
            tasks.by_ref().take(at_once).for_each(|task| queue.push_ready(task));
            queue.unborn.extend(tasks);
        }
        let charges = queue.ready.charges();
        Self {
            guests,
            queue: Mutex::new(queue),
            clock,
            bell,
            sleepers: Sleepers::new(count),
            pcpus,
            slice_ns,
            grace: Grace { length_ns: rules.grace.as_nanos() as u64, slice_ns },
            kick_yields: rules.kick_yields,
            plan,
            look_cost: LookCost::default(),
            ready: Line(AtomicU32::new(0)),
            charges,
        }
    }

    /// Whether all guests are to stop.
    pub(super) fn stopping(&self) -> bool {
        self.guests.iter().all(GuestRun::stopping)
    }

    /// All vCPUs' books, once no vCPU runs any more.
    pub(super) fn finish(self) -> Vec<Finished> {
        let now = self.clock.now_ns();
        let queue = unlocked(self.queue);
        let off = queue.ready.into_vcpus().chain(queue.aside.into_values());
        let off = off.chain(queue.dozing.into_values()).chain(self.sleepers.into_sleepers());
        let off = off.chain(queue.retired).map(|mut task| {
            let found = if task.stopped { Where::Running.into() } else { task.account.whereabouts() };
            task.account.goes(task.guest, task.vcpu.id, Where::Left, now);
            (task, found)
        });
        off.chain(queue.unborn.into_iter().map(|task| (task, Where::NotStarted.into())))
            .chain(queue.left.into_iter().map(|task| (task, Where::Left.into())))
            .map(|(task, whereabouts)| Finished {
                guest: task.guest.index,
                id: task.vcpu.id,
                vcpu: task.vcpu,
                account: task.account,
                whereabouts,
            })
            .collect()
    }

    /// Whether every vCPU that is ready, or descheduled on purpose, became so after `since_ns`, and so has run since.
    pub(super) fn everybody_ran_since(&self, since_ns: u64) -> bool {
        let queue = lock(&self.queue);
        queue.ready.iter().chain(queue.aside.values()).all(|task| task.account.since_ns() >= since_ns)
    }

    /// What deschedules vCPUs on purpose on pCPU number `pcpu` of the run.
    pub(super) fn injector(&self, pcpu: u32) -> Option<Injector> {
        self.plan.map(|plan| Injector::new(plan, pcpu, self.pcpus, self.clock.now_ns()))
    }

    /// What `pcpu` does next.
    pub(super) fn next(&self, pcpu: u32) -> Next<'a, '_> {
        let mut queue = lock(&self.queue);
        if self.stopping() {
            return Next::Ends;
        }
        queue.take_back(self.clock);
        let next = queue.pop(Some(pcpu));
        self.publish_load(&mut queue);
        if let Some(task) = next {
            return Next::Runs(task);
        }
        queue.idle.insert(pcpu);
        let next = [queue.aside.keys().next(), queue.dozing.keys().next()];
        let next = next.into_iter().flatten().min().copied();
        if next.is_none() && queue.idle.len() == self.pcpus {
            self.nobody_can_run(&queue);
        }
        Next::Idles(queue, next.map(|(until_ns, _)| until_ns))
    }

    pub(super) fn first_look_ns(&self) -> u64 {
        self.look_cost.first_look_ns(self.slice_ns)
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

    /// Wakes an idle pCPU for a vCPU that ran on `last` and has come into `queue`, if there is one. Lets go of the queue first: the pCPU that
    /// wakes needs it.
    pub(super) fn announce(&self, mut queue: MutexGuard<'_, Queue<'a>>, last: Option<u32>) {
        self.publish_load(&mut queue);
        let chosen = if queue.idle.len() > 0 { self.bell.choose(last, &mut queue.idle) } else { None };
        drop(queue);
        if let Some(pcpu) = chosen {
            self.bell.ring(pcpu);
        }
    }

    /// The queue, with `ran_ns` charged to `guest` if guests have shares.
    pub(super) fn charged(&self, guest: &GuestRun<'a>, ran_ns: u64) -> MutexGuard<'_, Queue<'a>> {
        let mut queue = lock(&self.queue);
        if self.charges {
            queue.ready.charge(guest.index, ran_ns);
        }
        queue
    }

    /// The slice of `task` on `pcpu` is over: it goes back among those that are ready, and the one that is next comes out, which it
    /// may be itself if the others have found pCPUs meanwhile. `None`: all guests are over.
    fn exchange(&self, task: Box<Task<'a>>, pcpu: u32, ran_ns: u64) -> Option<Box<Task<'a>>> {
        let mut queue = self.charged(task.guest, ran_ns);
        queue.take_back(self.clock);
        queue.push_ready(task);
        let next = queue.pop(Some(pcpu));
        if queue.ready.is_empty() {
            self.publish_load(&mut queue);
        } else {
            let last = queue.ready.iter().next().and_then(|task| task.last_pcpu);
            self.announce(queue, last);
        }
        next
    }

    /// `task` gets `pcpu`, which has been on its way to it since `began_ns`, at `now_ns`, or once its timer is set: that may take a
    /// thread 8 us, which the vCPU does not run.
    pub(super) fn begin_turn<T: Timer>(
        &self,
        task: &mut Task<'a>,
        pcpu: &mut Pcpu<'a, T>,
        began_ns: u64,
        now_ns: u64,
    ) {
        let (guest, id) = (task.guest, task.vcpu.id);
        let mut debt_ns = std::mem::take(&mut task.account.turns.debt_ns);
        if guest.is_starting() {
            let start_slice_ns = START_SLICE_NS << task.account.books.preemptions.min(30);
            // It is the guest that says so: that it starts cancels no debt.
            debt_ns = debt_ns.max(self.slice_ns.saturating_sub(start_slice_ns));
        }
        let first_look_ns = guest.halts_in_kernel.then(|| self.first_look_ns());
        let was_set = pcpu.begin(began_ns, debt_ns, first_look_ns);
        let start_ns = if was_set { self.clock.now_ns() } else { now_ns };
        pcpu.publish_slice_end(task, self.clock, start_ns);
        task.account.turns.begin(self.slice_ns, start_ns.saturating_sub(began_ns));
        task.account.goes(guest, id, Where::Running, start_ns);
        pcpu.thread.iter().for_each(|thread| guest.runs_on(id, *thread));
        pcpu.observer.runs(guest.number_of(id), task.last_pcpu, start_ns);
    }

    /// The vCPU came out with `exit`, other than because its driver interrupted it. `Some` if its turn is over.
    pub(super) fn exited<T: Timer>(
        &self,
        task: &mut Task<'a>,
        pcpu: &mut Pcpu<'a, T>,
        exit: Exit,
    ) -> Option<Turn<'a>> {
        let guest = task.guest;
        match exit {
            Exit::Wait => (!self.sleepers.take_latch(task.number())).then_some(Turn::Waits),
            Exit::Kick(vcpu) => {
                let ends = (task.number(), guest.number_of(vcpu));
                pcpu.observer.kicks(self.clock, ends, || self.kick(task, vcpu)).map(Turn::HandsOver)
            }
            Exit::Yield(to) => self.yields(task, pcpu, to),
            Exit::Point(point) => {
                let (activity, now_ns) = (guest.activity(task.vcpu.id), self.clock.now_ns());
                pcpu.takes_at(point, activity, now_ns).map(Turn::Injected)
            }
            Exit::Booted if guest.boots(task.vcpu.id) => {
                if let Some(shared) = &guest.shared {
                    let booted = shared.memory.control().booted_tsc.load(Ordering::Relaxed);
                    guest.tsc.compare(booted, self.clock.tsc());
                }
                if let Some(virtual_ns) = self.start_the_others(guest) {
                    task.account.booted(virtual_ns, self.clock.now_ns());
                }
                None
            }
            Exit::Left => Some(Turn::Left),
            exit => (!guest.serve(&task.vcpu, exit)).then_some(Turn::Left),
        }
    }

    /// The alarm of `pcpu` has rung at `now_ns`, or may have. `Some` if the turn is over.
    pub(super) fn rang<T: Timer>(
        &self,
        task: &mut Task<'a>,
        pcpu: &mut Pcpu<'a, T>,
        now_ns: u64,
    ) -> Option<Turn<'a>> {
        pcpu.looked(now_ns);
        if let Some(length_ns) = pcpu.takes(|| task.guest.checked_activity(task.vcpu.id), now_ns) {
            return Some(Turn::Injected(length_ns));
        }
        if pcpu.slice.ended(now_ns) {
            if self.somebody_is_ready() && !self.grace.grants(task, pcpu, now_ns) {
                self.grace.settle(task, pcpu, true, now_ns);
                return Some(Turn::SliceEnded);
            }
            // The clock anew: to set the timer may have taken 8 us.
            pcpu.publish_slice_end(task, self.clock, self.clock.now_ns());
        }
        None
    }

    /// The turn that began at `began_ns` has ended at `now`: puts the vCPU where it belongs. The vCPU to run next on `pcpu`, if that
    /// is known already.
    pub(super) fn end_turn<T: Timer>(
        &self,
        mut task: Box<Task<'a>>,
        pcpu: &mut Pcpu<'a, T>,
        turn: Turn<'a>,
        (began_ns, now): (u64, u64),
    ) -> Option<Box<Task<'a>>> {
        let (guest, id, ran_ns) = (task.guest, task.vcpu.id, now.saturating_sub(began_ns));
        // A turn may end in its grace for another reason than the grace.
        self.grace.settle(&mut task, pcpu, false, now);
        task.stopped = matches!(turn, Turn::Stopped);
        pcpu.observer.stops(guest.number_of(id), now, || turn.leads_to(guest.activity(id)));
        match turn {
            Turn::SliceEnded | Turn::Stopped => {
                task.account.goes(guest, id, Where::Preempted(guest.attributed(id)), now);
                if !task.stopped {
                    return self.exchange(task, pcpu.number, ran_ns);
                }
                self.push_ready(task, ran_ns);
            }
            Turn::Injected(length_ns) => {
                task.account.goes(guest, id, Where::KeptOut(guest.attributed(id)), now);
                let until = (now.saturating_add(length_ns), task.number());
                self.charged(guest, ran_ns).aside.insert(until, task);
                // Whoever is idle sleeps no longer than until then.
                self.bell.ring_all();
            }
            Turn::Waits => {
                if self.charges {
                    drop(self.charged(guest, ran_ns));
                }
                task.account.goes(guest, id, Where::Asleep, now);
                if let Some(kicked) = self.sleepers.put(task.number(), task) {
                    self.make_ready(kicked);
                }
            }
            Turn::Halts => {
                task.account.goes(guest, id, Where::Asleep, now);
                let (mut queue, last) = (self.charged(guest, ran_ns), task.last_pcpu);
                queue.doze(now, self.first_look_ns(), task);
                // Whoever is idle sleeps no longer than until the next look.
                self.announce(queue, last);
            }
            Turn::Yields => {
                task.account.goes(guest, id, Where::Ready, now);
                return self.pass_slice(task, ran_ns);
            }
            Turn::HandsOver(next) => {
                task.account.goes(guest, id, Where::Ready, now);
                self.push_ready(task, ran_ns);
                return Some(next);
            }
            Turn::Left => {
                task.account.goes(guest, id, Where::Left, now);
                self.charged(guest, ran_ns).left.push(task);
            }
        }
        None
    }

    /// A vCPU that was to run next, and does not.
    pub(super) fn give_back(&self, task: Box<Task<'a>>) {
        self.push_ready(task, 0);
    }

    fn push_ready(&self, task: Box<Task<'a>>, ran_ns: u64) {
        let mut queue = self.charged(task.guest, ran_ns);
        let last = task.last_pcpu;
        queue.push_ready(task);
        self.announce(queue, last);
    }

    /// The pCPU on which the vCPU that is next ran last, if one is ready.
    pub(super) fn next_ran_on(&self) -> Option<Option<u32>> {
        let mut queue = lock(&self.queue);
        queue.take_back(self.clock);
        queue.ready.next().map(|task| task.last_pcpu)
    }

    /// The vCPU is never to run again.
    pub(super) fn lay_away(&self, task: Box<Task<'a>>) {
        lock(&self.queue).left.push(task);
    }

    /// The vCPU gives up its slice: to vCPU `to` of its guest, or to anyone. `Some` if its turn is over.
    fn yields<T: Timer>(
        &self,
        task: &mut Task<'a>,
        pcpu: &mut Pcpu<'a, T>,
        to: Option<u32>,
    ) -> Option<Turn<'a>> {
        if pcpu.grace.is_some() {
            self.grace.settle(task, pcpu, false, self.clock.now_ns());
            return Some(Turn::SliceEnded);
        }
        match to {
            Some(to) => self.take_ready(task, to),
            None => self.somebody_is_ready().then_some(Turn::Yields),
        }
    }

    /// Tells the guests, and pCPUs whose slices end, how many vCPUs have no pCPU, if that has changed: each guest's number is in a
    /// line that its vCPUs read. A thread that changes the ready queue calls this before it lets go of it.
    pub(super) fn publish_load(&self, queue: &mut Queue<'_>) {
        let count = queue.ready.len() as u32;
        if queue.told.replace(count) == Some(count) {
            return;
        }
        // Relaxed: a hint. Partner: `somebody_is_ready`, which at worst looks again a slice later.
        self.ready.0.store(count, Ordering::Relaxed);
        for shared in self.guests.iter().filter_map(|guest| guest.shared.as_ref()) {
            shared.tell_ready_vcpus(count);
        }
    }

    fn somebody_is_ready(&self) -> bool {
        if self.plan.is_some() {
            // vCPUs that lie aside become ready without a word.
            let mut queue = lock(&self.queue);
            queue.take_back(self.clock);
            self.publish_load(&mut queue);
        }
        // Relaxed: a hint. Partner: `publish_load`.
        self.ready.0.load(Ordering::Relaxed) > 0
    }

    /// The virtual time at which they start; `None` if they have started already.
    fn start_the_others(&self, guest: &GuestRun<'_>) -> Option<u64> {
        let mut queue = lock(&self.queue);
        let now = self.clock.now_ns();
        let is_first = queue.unborn.iter().any(|task| task.guest.index == guest.index);
        for mut task in std::mem::take(&mut queue.unborn) {
            if task.guest.index == guest.index {
                task.account.begin(now);
                // Those of a guest that started earlier have run meanwhile.
                queue.push_after_sleep(task);
            } else {
                queue.unborn.push(task);
            }
        }
        self.publish_load(&mut queue);
        let starts_ns = queue.ready.after_sleep(guest.index, 0);
        drop(queue);
        self.bell.ring_all();
        is_first.then_some(starts_ns)
    }

    pub(super) fn make_ready(&self, task: Box<Task<'a>>) {
        self.make_ready_in(lock(&self.queue), task);
    }

    pub(super) fn make_ready_in(&self, mut queue: MutexGuard<'_, Queue<'a>>, mut task: Box<Task<'a>>) {
        task.account.goes(task.guest, task.vcpu.id, Where::Ready, self.clock.now_ns());
        let last = task.last_pcpu;
        queue.push_after_sleep(task);
        self.announce(queue, last);
    }
}
