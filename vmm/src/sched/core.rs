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

use std::sync::atomic::Ordering;
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
    /// One vCPU has become ready.
    fn ring_one(&self);

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

/// The scheduler.
pub(super) struct Core<'a, B> {
    pub(super) guests: &'a [GuestRun<'a>],
    pub(super) clock: &'a Clock,
    pub(super) queue: Mutex<Queue<'a>>,
    /// Rings when a vCPU becomes ready while a pCPU is idle, and when the run stops.
    pub(super) bell: B,
    pub(super) sleepers: Sleepers<Box<Task<'a>>>,
    pcpus: usize,
    pub(super) slice_ns: u64,
    grace: Grace,
    kick_yields: bool,
    plan: Option<Plan>,
    pub(super) look_cost: LookCost,
}

impl<'a, B: Bell> Core<'a, B> {
    /// Takes over the vCPUs of each of `guests`, to be run on so many pCPUs as `rules` say.
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
        queue.take_back(self.clock.now_ns());
        if let Some(task) = queue.pop(Some(pcpu)) {
            self.publish_load(&queue);
            return Next::Runs(task);
        }
        queue.idle_runners += 1;
        let next = [queue.aside.keys().next(), queue.dozing.keys().next()];
        let next = next.into_iter().flatten().min().copied();
        if next.is_none() && queue.idle_runners == self.pcpus {
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

    fn push_ready(&self, task: Box<Task<'a>>) {
        let mut queue = lock(&self.queue);
        queue.push_ready(task);
        self.publish_load(&queue);
        if queue.idle_runners > 0 {
            self.bell.ring_one();
        }
    }

    /// `task` gets `pcpu`, from the moment on at which its timer is set: that may take a thread 8 us, which the vCPU does not run.
    pub(super) fn begin_turn<T: Timer>(&self, task: &mut Task<'a>, pcpu: &mut Pcpu<'a, T>, began_ns: u64) {
        let (guest, id) = (task.guest, task.vcpu.id);
        let mut debt_ns = std::mem::take(&mut task.account.turns.debt_ns);
        if guest.is_starting() {
            let start_slice_ns = START_SLICE_NS << task.account.books.preemptions.min(30);
            // It is the guest that says so: that it starts cancels no debt.
            debt_ns = debt_ns.max(self.slice_ns.saturating_sub(start_slice_ns));
        }
        pcpu.begin(began_ns, debt_ns, guest.halts_in_kernel.then(|| self.first_look_ns()));
        let start_ns = self.clock.now_ns();
        task.account.turns.begin(self.slice_ns, start_ns.saturating_sub(began_ns));
        task.account.goes(guest, id, Where::Running, start_ns);
        pcpu.thread.iter().for_each(|thread| guest.runs_on(id, *thread));
        pcpu.publish_slice_end(task, self.clock);
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
            pcpu.publish_slice_end(task, self.clock);
        }
        None
    }

    /// The turn that began at `began_ns` has ended: puts the vCPU where it belongs. The vCPU to run next on `pcpu`, if it chose
    /// one.
    pub(super) fn end_turn<T: Timer>(
        &self,
        mut task: Box<Task<'a>>,
        pcpu: &mut Pcpu<'a, T>,
        turn: Turn<'a>,
        began_ns: u64,
    ) -> Option<Box<Task<'a>>> {
        let (guest, id, now) = (task.guest, task.vcpu.id, self.clock.now_ns());
        if self.guests.len() > 1 {
            lock(&self.queue).ready.charge(guest.index, now.saturating_sub(began_ns));
        }
        // A turn may end in its grace for another reason than the grace.
        self.grace.settle(&mut task, pcpu, false, now);
        task.stopped = matches!(turn, Turn::Stopped);
        pcpu.observer.stops(guest.number_of(id), now, || turn.leads_to(guest.activity(id)));
        match turn {
            Turn::SliceEnded | Turn::Stopped => {
                task.account.goes(guest, id, Where::Preempted(guest.attributed(id)), now);
                self.push_ready(task);
            }
            Turn::Injected(length_ns) => {
                task.account.goes(guest, id, Where::KeptOut(guest.attributed(id)), now);
                let mut queue = lock(&self.queue);
                queue.aside.insert((now.saturating_add(length_ns), task.number()), task);
                // Whoever is idle sleeps no longer than until then.
                self.bell.ring_all();
            }
            Turn::Waits => {
                task.account.goes(guest, id, Where::Asleep, now);
                if let Some(kicked) = self.sleepers.put(task.number(), task) {
                    self.make_ready(kicked);
                }
            }
            Turn::Halts => {
                task.account.goes(guest, id, Where::Asleep, now);
                let mut queue = lock(&self.queue);
                queue.doze(now, self.first_look_ns(), task);
                // Whoever is idle sleeps no longer than until the next look.
                if queue.idle_runners > 0 {
                    self.bell.ring_one();
                }
            }
            Turn::Yields => {
                task.account.goes(guest, id, Where::Ready, now);
                return self.pass_slice(task);
            }
            Turn::HandsOver(next) => {
                task.account.goes(guest, id, Where::Ready, now);
                self.push_ready(task);
                return Some(next);
            }
            Turn::Left => {
                task.account.goes(guest, id, Where::Left, now);
                self.lay_away(task);
            }
        }
        None
    }

    /// A vCPU that was to run next, and does not.
    pub(super) fn give_back(&self, task: Box<Task<'a>>) {
        self.push_ready(task);
    }

    /// How many are ready.
    pub(super) fn ready(&self) -> usize {
        let mut queue = lock(&self.queue);
        queue.take_back(self.clock.now_ns());
        queue.ready.len()
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

    /// Tells the guests how many vCPUs, of all of them, have no pCPU. Whoever changes the ready queue says so before he
    /// lets go of it.
    fn publish_load(&self, queue: &Queue<'_>) {
        for shared in self.guests.iter().filter_map(|guest| guest.shared.as_ref()) {
            shared.tell_ready_vcpus(queue.ready.len() as u32);
        }
    }

    fn somebody_is_ready(&self) -> bool {
        let mut queue = lock(&self.queue);
        queue.take_back(self.clock.now_ns());
        self.publish_load(&queue);
        !queue.ready.is_empty()
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
        self.publish_load(&queue);
        self.bell.ring_all();
        is_first.then(|| queue.ready.after_sleep(guest.index, 0))
    }

    /// `pv_kick`: whether that vCPU slept, and the vCPU itself if it is to be run at once. A number that is no vCPU's of
    /// this guest is the guest's mistake and kicks nobody.
    fn kick(&self, from: &mut Task<'a>, vcpu: u32) -> (Option<bool>, Option<Box<Task<'a>>>) {
        let guest = from.guest;
        if vcpu >= guest.vcpus {
            return (None, None);
        }
        let Some(mut task) = self.sleepers.kick(guest.number_of(vcpu)) else { return (Some(false), None) };
        task.account.books.kicks += 1;
        if self.kick_yields {
            let queue = lock(&self.queue);
            let virtual_ns = queue.ready.after_sleep(guest.index, task.account.turns.virtual_ns);
            if let Some(virtual_ns) = self.gives_its_place(&queue, from, virtual_ns) {
                task.account.goes(guest, vcpu, Where::Ready, self.clock.now_ns());
                task.account.turns.virtual_ns = virtual_ns;
                task.account.turns.handed += 1;
                return (Some(true), Some(task));
            }
        }
        self.make_ready(task);
        (Some(true), None)
    }

    /// `from`, which runs, hands its pCPU to a vCPU of its guest at `virtual_ns`: the virtual time from which on that one runs, if
    /// it may, as far as others are concerned.
    ///
    /// If the other one has had more than `from`, the two exchange their virtual times: `from` gives it its own place in the
    /// queue and takes that one's. So waiters that yield to the owner of their lock give it their turns, all of them, and nobody
    /// else's place changes. Without the exchange one could have only one of the two: either an owner that is yielded to is
    /// as late as if it were not, or whoever yields to nobody has no turn while others feed it.
    fn gives_its_place(&self, queue: &Queue<'a>, from: &mut Task<'a>, virtual_ns: u64) -> Option<u64> {
        let running_ns = self.clock.now_ns().saturating_sub(from.account.since_ns());
        // What the present turn has taken is charged when it ends.
        let own_ns = from.account.turns.virtual_ns.saturating_add(running_ns);
        let place_ns = virtual_ns.min(own_ns);
        queue.ready.may_go_first(from.guest.index, place_ns, running_ns).then(|| {
            from.account.turns.virtual_ns += virtual_ns - place_ns;
            place_ns
        })
    }

    pub(super) fn make_ready(&self, mut task: Box<Task<'a>>) {
        let mut queue = lock(&self.queue);
        task.account.goes(task.guest, task.vcpu.id, Where::Ready, self.clock.now_ns());
        queue.push_after_sleep(task);
        self.publish_load(&queue);
        if queue.idle_runners > 0 {
            self.bell.ring_one();
        }
    }

    /// Directed yield: `vcpu` of the same guest, if it is ready. Else the yield has no effect, as in KVM: it runs already, or
    /// it sleeps, and nothing would be gained by giving up the pCPU for it. If others would lose too much by it, it is a yield
    /// to whoever is next, as under Linux, where the scheduler takes a directed yield for a hint.
    fn take_ready(&self, from: &mut Task<'a>, vcpu: u32) -> Option<Turn<'a>> {
        let guest = from.guest;
        if vcpu >= guest.vcpus {
            return None;
        }
        let mut queue = lock(&self.queue);
        queue.take_back(self.clock.now_ns());
        let virtual_ns = queue.ready.virtual_ns_of(guest.index, guest.number_of(vcpu))?;
        let Some(virtual_ns) = self.gives_its_place(&queue, from, virtual_ns) else {
            return Some(Turn::Yields);
        };
        let mut task = queue.ready.take(guest.index, guest.number_of(vcpu))?;
        task.account.turns.virtual_ns = virtual_ns;
        task.account.turns.handed += 1;
        Some(Turn::HandsOver(task))
    }

    /// Yield: whoever else is next.
    fn pass_slice(&self, task: Box<Task<'a>>) -> Option<Box<Task<'a>>> {
        let mut queue = lock(&self.queue);
        let next = queue.pop(task.last_pcpu);
        queue.push_ready(task);
        self.publish_load(&queue);
        if next.is_none() && queue.idle_runners > 0 {
            self.bell.ring_one();
        }
        next
    }
}
