//! The scheduler of `--sched vmm` as a state machine: who is ready, who sleeps, whose turn it is and how a turn ends.
//!
//! It starts no threads, runs no vCPUs and sets no timers; its clock tells the time. The driver gives each vCPU
//! its turns: [`Runners`](crate::sched::runners::Runners) do so with a thread per pCPU.
//!
//! ```text
//!  next() -> begin_turn() -> (the vCPU runs, and comes out for a reason) -> exited() -> None: it runs on
//!                                                                              └─> Some(turn) -> end_turn() -> next()
//! ```
//!
//! A vCPU is a [`Task`] that exactly one place owns at any time: a queue of the [`RunQueues`], [`Apart`], a driver's hands, or its slot
//! among the [`Sleepers`]. Ownership is what keeps two pCPUs from entering one vCPU. A thread that has `Apart` locked may lock a
//! queue, never the other way round.
//!
//! Its turn on a pCPU ends in one of the ways of [`Turn`], each of which has a place for it.
//! It gets one only if its guest is there and has CPU time left ([`Core::admits`]).

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::guest::Activity;
use crate::host::clock::Clock;
use crate::host::error::RunError;
use crate::host::threads::{lock, unlocked};
use crate::machine::vcpu::{Exit, Vcpu};
use crate::observe::{Where, Whereabouts};
use crate::sched::account::Account;
use crate::sched::books::Timeline;
use crate::sched::deschedule::{Injector, Plan};
use crate::sched::fair_queue::Shares;
use crate::sched::guest_run::GuestRun;
use crate::sched::idle::{Census, Idle, PcpuSet, wakes_on};
use crate::sched::pcpu::Pcpu;
use crate::sched::run_queues::{Exchanged, Line, RunQueues};
use crate::sched::sleepers::Sleepers;
use crate::sched::task::{Apart, LookCost, Task};
use crate::sched::{Finished, Rules, Sched};

/// A vCPU's first slice while its guest starts, where vCPUs do not say that they have: it needs a moment only, and those that have
/// started would make the others wait. Where the moment is longer, on an emulated host, each slice that was not enough is followed by one twice as long.
const START_SLICE_NS: u64 = 100_000;

/// How pCPUs that have nothing to do learn that there is something.
pub(super) trait Bell {
    /// A vCPU that ran on `last` is ready: which of the `idle` pCPUs is to be rung for it. That one is in the set no longer: the next
    /// vCPU is for another one.
    fn choose(&self, last: Option<u32>, idle: &PcpuSet) -> Option<u32> {
        loop {
            let chosen = wakes_on(last, idle, |pcpu| last.map(|last| pcpu.abs_diff(last)))?;
            // Another thread may have been faster.
            if idle.remove(chosen) {
                return Some(chosen);
            }
        }
    }

    /// There may be something for `pcpu`. Its present sleep ends, or its next one at once.
    fn ring(&self, pcpu: u32);

    /// Something has changed for all of them, as in `ring`.
    fn ring_all(&self);
}

pub(super) enum Next<'a> {
    Runs(Box<Task<'a>>),
    /// It idles until the bell rings, at most until this time. Then it leaves the idle pCPUs.
    Idles(Option<u64>),
    /// The run is over.
    Ends,
}

/// Why a vCPU's turn ended.
pub(super) enum Turn<'a> {
    /// Its slice is over and another vCPU is ready.
    SliceEnded,
    /// It is descheduled on purpose for this many nanoseconds.
    Injected(u64),
    /// It sleeps until kicked.
    Waits,
    /// It has halted in KVM's hands.
    Halts,
    /// It gives up its slice, and another vCPU is ready.
    Yields,
    /// It hands its pCPU to this vCPU.
    HandsOver(Box<Task<'a>>),
    /// It has started, and waits for the others.
    Started,
    /// It has nothing more to do, or may not be entered again.
    Left,
    /// The run is over.
    Stopped,
}

impl Turn<'_> {
    /// Returns the place of a vCPU that was in `activity`, for a trace.
    pub(super) fn leads_to(&self, activity: Activity) -> Where {
        match self {
            Self::SliceEnded => Where::Preempted(activity),
            Self::Injected(_) => Where::KeptOut(activity),
            Self::Waits | Self::Halts => Where::Asleep,
            Self::Yields | Self::HandsOver(_) | Self::Started => Where::Ready,
            Self::Left | Self::Stopped => Where::Left,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queues {
    PerPcpu,
    One,
}

pub(super) struct Core<'a, B> {
    pub(super) guests: &'a [GuestRun<'a>],
    pub(super) clock: &'a Clock,
    pub(super) queues: RunQueues<'a>,
    pub(super) apart: Mutex<Apart<'a>>,
    pub(super) idle: Idle,
    /// Rings when a vCPU becomes ready while a pCPU is idle, and when the run stops.
    pub(super) bell: B,
    pub(super) sleepers: Sleepers<Task<'a>>,
    pcpus: usize,
    pub(super) slice_ns: u64,
    grace_ns: u64,
    pub(super) kick_yields: bool,
    pub(super) plan: Option<Plan>,
    /// Whether vCPUs may lie aside: they become ready without a word.
    pub(super) sets_aside: bool,
    pub(super) look_cost: LookCost,
    /// The number of ready vCPUs that guests were told last.
    pub(super) told: Line<AtomicU32>,
    /// Whether guests are told of slices and ready vCPUs. A host's kernel tells nothing.
    pub(super) tells: bool,
}

impl<'a, B: Bell> Core<'a, B> {
    pub(super) fn new(
        rules: Rules,
        (pcpus, queues): (&[u32], Queues),
        guests: &'a [GuestRun<'a>],
        vcpus: Vec<Vec<Vcpu>>,
        plan: Option<Plan>,
        bell: B,
    ) -> Self {
        let slice_ns = rules.slice.as_nanos() as u64;
        let clock = guests[0].clock;
        let now = clock.now_ns();
        let count = vcpus.iter().map(Vec::len).sum();
        let timelines = guests.iter().all(|guest| guest.shared.is_some());
        let shares = |room| Shares::new(rules.share, guests.len(), room, slice_ns);
        let queues = RunQueues::new(pcpus, count, slice_ns, queues == Queues::One, shares);
        let mut apart = Apart::default();
        for (guest, vcpus) in guests.iter().zip(vcpus) {
            let mut tasks = vcpus.into_iter().map(|vcpu| {
                let mut account = Account::new(Where::Ready, now);
                account.books.timeline = timelines.then(|| Timeline::new(slice_ns, count));
                Box::new(Task { guest, vcpu, account, last_pcpu: None, stopped: false })
            });
            // A kernel of its own starts its vCPUs itself; KVM keeps them waiting until then.
            let at_once = if guest.shared.is_none() { usize::MAX } else { 1 };
            tasks.by_ref().take(at_once).for_each(|task| queues.push(None, task, false));
            apart.not_started.extend(tasks);
        }
        let highest = pcpus.iter().copied().max().unwrap_or(0);
        Self {
            guests,
            queues,
            apart: Mutex::new(apart),
            idle: Idle::new(pcpus.len(), highest),
            clock,
            bell,
            sleepers: Sleepers::new(count),
            pcpus: pcpus.len(),
            slice_ns,
            grace_ns: rules.grace.as_nanos() as u64,
            kick_yields: rules.kick_yields,
            plan,
            sets_aside: plan.is_some() || guests.iter().any(GuestRun::lies_aside),
            look_cost: LookCost::default(),
            told: Line(AtomicU32::new(u32::MAX)),
            tells: rules.sched == Sched::Vmm,
        }
    }

    pub(super) fn stopping(&self) -> bool {
        self.guests.iter().all(GuestRun::stopping)
    }

    /// Ends the scheduler when no vCPU runs any longer; returns the books of all vCPUs, guest by guest in order.
    pub(super) fn finish(self) -> Vec<Finished> {
        let now = self.clock.now_ns();
        let apart = unlocked(self.apart);
        let off = self.queues.into_tasks().chain(apart.aside.into_values());
        let off = off.chain(apart.dozing.into_values()).chain(apart.started);
        let off = off.chain(self.sleepers.into_sleepers());
        let off = off.map(|mut task| {
            let found = if task.stopped { Where::Running.into() } else { task.account.whereabouts() };
            task.account.goes(task.guest, task.vcpu.id, Where::Left, now);
            task.account.books.settle_quota(task.guest);
            (task, found)
        });
        let all = off
            .chain(apart.not_started.into_iter().map(|task| (task, Where::NotStarted.into())))
            .chain(apart.left.into_iter().map(|task| (task, Where::Left.into())))
            .map(|(task, whereabouts)| Finished {
                guest: task.guest.index,
                vcpu: task.vcpu,
                account: task.account,
                whereabouts,
            });
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|vcpu| (vcpu.guest, vcpu.vcpu.id));
        all
    }

    /// Whether every vCPU that is ready, or descheduled on purpose, became so after `since_ns`, and so has run since; but for those whose
    /// guest is away.
    pub(super) fn everybody_ran_since(&self, since_ns: u64) -> bool {
        let ran = |task: &Task<'_>| task.account.since_ns >= since_ns;
        let is_away = |task: &Task<'_>| task.guest.absent_until(self.clock.now_ns()).is_some();
        let mut all = lock(&self.apart).aside.values().all(|task| ran(task) || is_away(task));
        self.queues.for_each(|task, is_over| all &= is_over || ran(task));
        all
    }

    /// Lists the places of all guests' vCPUs, in order. No vCPU is stopped for it: one that changes places meanwhile may be seen in
    /// either, or as running, the state of a vCPU that is in none. Runners that change vCPUs wait as long as it takes to go through
    /// their queues.
    pub(super) fn whereabouts(&self) -> Vec<Whereabouts> {
        let mut found = vec![Whereabouts::from(Where::Running); self.sleepers.len()];
        let mut note = |number: u32, whereabouts| found[number as usize] = whereabouts;
        // Locked throughout: a pCPU that is about to report that no vCPU can run must not miss one that is awake in here.
        let apart = lock(&self.apart);
        // Sleepers first: a vCPU that is kicked meanwhile is found again among those that are ready.
        self.sleepers
            .look(|number, task| note(number, task.account.whereabouts()), |kicked| self.make_ready(kicked));
        self.queues.for_each(|task, is_over| {
            note(task.number(), if is_over { Where::Left.into() } else { task.account.whereabouts() });
        });
        let off = apart.aside.values().chain(apart.dozing.values()).chain(&apart.started);
        off.for_each(|task| note(task.number(), task.account.whereabouts()));
        apart.not_started.iter().for_each(|task| note(task.number(), Where::NotStarted.into()));
        apart.left.iter().for_each(|task| note(task.number(), Where::Left.into()));
        drop(apart);
        found
    }

    /// The injector that deschedules vCPUs on purpose on pCPU number `pcpu` of the run.
    pub(super) fn injector(&self, pcpu: u32) -> Option<Injector> {
        self.plan.map(|plan| Injector::new(plan, pcpu, self.pcpus, self.clock.now_ns()))
    }

    pub(super) fn next(&self, pcpu: u32) -> Next<'a> {
        loop {
            if self.stopping() {
                return Next::Ends;
            }
            self.take_back();
            let next = self.queues.pop(pcpu);
            self.publish_load();
            if let Some(task) = next {
                return Next::Runs(task);
            }
            let census = self.idle.enter(pcpu);
            // Anew: what has become ready before `enter` may have found this pCPU busy.
            if self.queues.len() == 0 {
                return Next::Idles(self.idles(census));
            }
            self.idle.leave(pcpu);
        }
    }

    /// A pCPU is idle since `census`: until when at most. vCPUs lie apart with a time only under a plan, a quota or an absence, or in KVM's hands.
    fn idles(&self, census: Census) -> Option<u64> {
        let has_times = self.plan.is_some()
            || self.guests.iter().any(|guest| guest.halts_in_kernel || guest.lies_aside());
        if !has_times && !self.idle.were_all(census) {
            return None;
        }
        let apart = lock(&self.apart);
        let until_ns = apart.next_ns();
        // No vCPU became ready, and no pCPU looked for one, between `census` and now: so it was at all moments between.
        let none_can = self.idle.were_all(census) && self.queues.len() == 0 && self.idle.is_as(census);
        if none_can && until_ns.is_none() {
            self.nobody_can_run(&apart);
        }
        until_ns
    }

    pub(super) fn first_look_ns(&self) -> u64 {
        self.look_cost.first_look_ns(self.slice_ns)
    }

    /// Only a running vCPU can kick another, so if none runs and none is ready, none ever will. The exception is a guest that is over:
    /// its ready vCPUs have left the queue.
    fn nobody_can_run(&self, apart: &Apart<'a>) {
        for guest in self.guests.iter().filter(|guest| !guest.failed() && !guest.stopping()) {
            let of_guest =
                |tasks: &[Box<Task<'_>>]| tasks.iter().filter(|task| task.guest.index == guest.index).count();
            let left = of_guest(&apart.left);
            let asleep =
                guest.vcpus as usize - left - of_guest(&apart.not_started) - of_guest(&apart.started);
            // Once the window is closed vCPUs leave as they come by, and may leave others asleep.
            let leaving = left > 0 && guest.window.is_closed();
            if asleep > 0 && !leaving {
                guest.fail(RunError::NoProgress(format!(
                    "{asleep} vCPUs sleep in pv_wait and none is left to kick them ({left} have left): a wake-up was lost"
                )));
            }
        }
    }

    /// The slice of `task` on `pcpu` is over: it goes back among those that are ready, and the one that is next comes out, which it
    /// may be itself if the others have found pCPUs meanwhile. `None`: all guests are over.
    fn exchange(&self, task: Box<Task<'a>>, pcpu: u32) -> Option<Box<Task<'a>>> {
        self.take_back();
        let Exchanged { next, waits } = self.queues.exchange(pcpu, task);
        self.publish_load();
        if let Some(last) = waits {
            self.wake_one(last);
        }
        next
    }

    /// Takes a slice out of the purse of the guest of `task`, which is to run on `pcpu` from `now_ns` on. `None`: there is nothing in it,
    /// or the guest is not there; the vCPU lies aside until then.
    pub(super) fn admits(
        &self,
        mut task: Box<Task<'a>>,
        pcpu: &mut Pcpu<'a>,
        now_ns: u64,
    ) -> Option<Box<Task<'a>>> {
        if let Some(until_ns) = task.guest.absent_until(now_ns) {
            self.lays_aside(task, until_ns);
            return None;
        }
        let Some(purse) = &task.guest.purse else { return Some(task) };
        match purse.take(self.slice_ns, now_ns) {
            Ok(portion) => {
                pcpu.portion = Some(portion);
                task.account.books.settle_quota(task.guest);
                Some(task)
            }
            Err(until_ns) => {
                let at = task.account.whereabouts().at;
                task.account.books.throttle(task.guest, at, now_ns, until_ns);
                self.lays_aside(task, until_ns);
                None
            }
        }
    }

    fn lays_aside(&self, task: Box<Task<'a>>, until_ns: u64) {
        lock(&self.apart).aside.insert((until_ns, task.number()), task);
        // Idle pCPUs sleep at most until then.
        self.bell.ring_all();
    }

    /// The portion of `task` has ended at `now_ns`, and no other vCPU is due: whether its guest is there and has the CPU time for
    /// another one, of its slice or of the next.
    pub(super) fn goes_on(&self, task: &Task<'a>, pcpu: &mut Pcpu<'a>, now_ns: u64) -> bool {
        if task.guest.absent_until(now_ns).is_some() {
            return false;
        }
        let Some(purse) = &task.guest.purse else { return true };
        let slice_ends_ns =
            pcpu.portion.map(|portion| portion.slice_ends_ns).filter(|ends_ns| *ends_ns > now_ns);
        self.spends(task, pcpu, now_ns);
        let left_ns = slice_ends_ns.map_or(self.slice_ns, |ends_ns| ends_ns - now_ns);
        pcpu.portion = purse.take(left_ns, now_ns).ok();
        if let Some(portion) = pcpu.portion.filter(|portion| portion.ns < self.slice_ns) {
            pcpu.slice.extend(now_ns + portion.ns);
        }
        pcpu.portion.is_some()
    }

    /// `task` has run on `pcpu` until `now_ns`: gives back the rest of what it took.
    pub(super) fn spends(&self, task: &Task<'a>, pcpu: &mut Pcpu<'a>, now_ns: u64) {
        if let (Some(purse), Some(portion)) = (&task.guest.purse, pcpu.portion.take()) {
            purse.settle(portion, now_ns);
        }
    }

    /// `task` gets `pcpu`, which has been on its way to it since `began_ns`, at `now_ns`, or once its timer is set: that may take a
    /// thread 8 us, which the vCPU does not run.
    pub(super) fn begin_turn(&self, task: &mut Task<'a>, pcpu: &mut Pcpu<'a>, began_ns: u64, now_ns: u64) {
        let (guest, id) = (task.guest, task.vcpu.id);
        let mut debt_ns = std::mem::take(&mut task.account.turns.debt_ns);
        if guest.starts_unsaid() {
            let start_slice_ns = START_SLICE_NS << task.account.books.preemptions.min(30);
            // It is the guest that says so: that it starts cancels no debt.
            debt_ns = debt_ns.max(self.slice_ns.saturating_sub(start_slice_ns));
        }
        if let Some(portion) = &mut pcpu.portion {
            portion.slice_ends_ns = began_ns + self.slice_ns.saturating_sub(debt_ns);
            debt_ns = debt_ns.max(self.slice_ns.saturating_sub(portion.ns));
        }
        let first_look_ns = guest.halts_in_kernel.then(|| self.first_look_ns());
        let was_set = pcpu.begin(began_ns, debt_ns, first_look_ns);
        let start_ns = if was_set { self.clock.now_ns() } else { now_ns };
        if self.tells {
            pcpu.publish_slice_end(task, self.clock, start_ns);
        }
        task.account.turns.begin(self.slice_ns, start_ns.saturating_sub(began_ns));
        task.account.goes(guest, id, Where::Running, start_ns);
        pcpu.thread.iter().for_each(|thread| guest.runs_on(id, *thread));
        let counts = |at_ns| guest.window.contains(at_ns);
        pcpu.observer.runs(guest.number_of(id), task.last_pcpu, start_ns, counts);
    }

    /// The vCPU came out with `exit`, other than because its driver interrupted it. `Some` if its turn is over.
    pub(super) fn exited(&self, task: &mut Task<'a>, pcpu: &mut Pcpu<'a>, exit: Exit) -> Option<Turn<'a>> {
        let guest = task.guest;
        match exit {
            Exit::Wait => (!self.sleepers.take_latch(task.number())).then_some(Turn::Waits),
            Exit::Kick(vcpu) => {
                let ends = (task.number(), guest.number_of(vcpu));
                pcpu.observer.kicks(self.clock, ends, || self.kick(task, vcpu)).map(Turn::HandsOver)
            }
            Exit::Yield(to) => self.yields(task, pcpu, to),
            Exit::Point(point) => pcpu.takes(Some(point), task, self.clock.now_ns()).map(Turn::Injected),
            Exit::Booted if guest.boots(task.vcpu.id) => {
                if let Some(shared) = &guest.shared {
                    let booted = shared.memory.control().booted_tsc.load(Ordering::Relaxed);
                    guest.tsc.compare(booted, self.clock.tsc());
                }
                if let Some(virtual_ns) = self.start_the_others(guest, task) {
                    let ran_ns = self.clock.now_ns().saturating_sub(task.account.since_ns);
                    task.account.turns.booted(virtual_ns, ran_ns);
                }
                None
            }
            Exit::Started => guest.starts.says(task.vcpu.id).then_some(Turn::Started),
            Exit::Left => Some(Turn::Left),
            exit => (!guest.serve(&task.vcpu, exit)).then_some(Turn::Left),
        }
    }

    /// The alarm of `pcpu` has rung at `now_ns`, or may have. `Some` if the turn is over.
    pub(super) fn rang(&self, task: &mut Task<'a>, pcpu: &mut Pcpu<'a>, now_ns: u64) -> Option<Turn<'a>> {
        pcpu.looked(now_ns);
        if let Some(length_ns) = pcpu.takes(None, task, now_ns) {
            return Some(Turn::Injected(length_ns));
        }
        if pcpu.slice.ended(now_ns) {
            // Between portions of a slice nothing is due.
            let is_amid = pcpu.portion.is_some_and(|portion| now_ns < portion.slice_ends_ns);
            let ends = match !is_amid && self.is_another_due(task, pcpu.number, now_ns) {
                true => !pcpu.grants_grace(task, self.grace_ns, now_ns),
                false => !self.goes_on(task, pcpu, now_ns),
            };
            if ends {
                pcpu.settle_grace(task, self.slice_ns, true, now_ns);
                return Some(Turn::SliceEnded);
            }
            // An alarm within the next slice was beyond the end of the last.
            pcpu.set_alarm();
            // The clock anew: to set the timer may have taken 8 us.
            pcpu.publish_slice_end(task, self.clock, self.clock.now_ns());
        }
        None
    }

    /// The turn that began at `began_ns` has ended at `now`: puts the vCPU where it belongs. The vCPU to run next on `pcpu`, if that
    /// is known already.
    pub(super) fn end_turn(
        &self,
        mut task: Box<Task<'a>>,
        pcpu: &mut Pcpu<'a>,
        turn: Turn<'a>,
        (began_ns, now): (u64, u64),
    ) -> Option<Box<Task<'a>>> {
        let (guest, id) = (task.guest, task.vcpu.id);
        // Not more than the vCPU: the rest of a long turn took nothing from other guests.
        self.queues.charge(guest.index, task.account.turns.costs_ns(now.saturating_sub(began_ns)));
        self.spends(&task, pcpu, now);
        // A turn may end in its grace for another reason than the grace.
        pcpu.settle_grace(&mut task, self.slice_ns, false, now);
        task.stopped = matches!(turn, Turn::Stopped);
        pcpu.observer.stops(guest.number_of(id), now, || turn.leads_to(guest.activity(id)));
        let attributed = guest.attributed(id);
        let to = if task.stopped { Where::Preempted(attributed) } else { turn.leads_to(attributed) };
        task.account.goes(guest, id, to, now);
        match turn {
            Turn::SliceEnded => return self.exchange(task, pcpu.number),
            Turn::Stopped => self.place(task, false),
            Turn::Injected(length_ns) => self.lays_aside(task, now.saturating_add(length_ns)),
            Turn::Waits => {
                if let Some(kicked) = self.sleepers.put(task.number(), task) {
                    self.make_ready(kicked);
                }
            }
            Turn::Halts => {
                let last = task.last_pcpu;
                lock(&self.apart).doze(now, self.first_look_ns(), task);
                // Idle pCPUs sleep at most until the next look.
                self.wake_one(last);
            }
            Turn::Yields => return self.pass_slice(task),
            Turn::HandsOver(next) => {
                self.place(task, false);
                return Some(next);
            }
            Turn::Started => self.has_started(task),
            Turn::Left => self.leaves(task),
        }
        None
    }

    /// The pCPU on which the vCPU that is next ran last, if one is ready and one queue serves all pCPUs.
    pub(super) fn next_ran_on(&self) -> Option<Option<u32>> {
        self.take_back();
        self.queues.next_ran_on()
    }

    /// The vCPU gives up its slice: to vCPU `to` of its guest, or to anyone. `Some` if its turn is over.
    fn yields(&self, task: &mut Task<'a>, pcpu: &mut Pcpu<'a>, to: Option<u32>) -> Option<Turn<'a>> {
        if pcpu.grace.is_some() {
            pcpu.settle_grace(task, self.slice_ns, false, self.clock.now_ns());
            return Some(Turn::SliceEnded);
        }
        match to {
            Some(to) => self.take_ready(task, to),
            None => self.is_any_ready().then_some(Turn::Yields),
        }
    }
}
