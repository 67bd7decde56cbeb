//! vCPUs under the model of a host's scheduler: what happens to them becomes its events, and it says who runs where.
//!
//! The [`Core`](crate::sched::core::Core) keeps the books, and serves exits. A vCPU that it makes ready is a wake-up for the model; one
//! that is off its pCPU lies here until the model picks it.

use std::cmp::Reverse;
use std::sync::Arc;

use haltkick_sim::board::Board;
use haltkick_sim::hosts::{Host, Invalidations, Scheduler, Yielded};
use haltkick_sim::machine::Machine;

use crate::guest::Activity;
use crate::guest::memory::Ram;
use crate::machine::vcpu::Exit;
use crate::sched::core::{Next, Turn};
use crate::sched::guest_run::GuestRun;
use crate::sched::task::Task;

use super::pause_exits::PauseExits;
use super::{Doing, Due, PS, Simulated, Slot, State};

/// The time until an interrupt from another pCPU takes a vCPU out of its guest.
const INTERRUPT_PS: u64 = 500_000;

/// The model, and the vCPUs in its hands.
pub(super) struct Hosted<'a> {
    pub(super) scheduler: Scheduler,
    pub(super) host: Host,
    /// Runnable vCPUs that are on no pCPU, by their numbers.
    pub(super) off: Vec<Option<Box<Task<'a>>>>,
    pub(super) pauses: Option<PauseExits>,
    /// How long each vCPU polls, in nanoseconds, and since when it has halted.
    polls: Vec<(u64, u64)>,
    /// The vCPU that polls on each pCPU, and until when.
    polling: Vec<Option<(u32, u64)>>,
    /// The pCPU on which a vCPU has just kicked.
    waker: Option<usize>,
}

impl<'a> Hosted<'a> {
    pub(super) fn new(
        host: &Host,
        guests: &[GuestRun<'_>],
        (machine, cpus, seed): (&Arc<Machine>, &[u32], u64),
    ) -> Self {
        let vcpus: Vec<u32> = guests.iter().map(|guest| guest.vcpus).collect();
        let count = vcpus.iter().sum::<u32>() as usize;
        Self {
            scheduler: Scheduler::new(host.clone(), &machine.topology, cpus, &vcpus, seed),
            host: host.clone(),
            off: (0..count).map(|_| None).collect(),
            pauses: PauseExits::new(host, machine.costs.clock_khz, &vcpus),
            polls: vec![(0, 0); count],
            polling: vec![None; cpus.len()],
            waker: None,
        }
    }

    /// Limits pause loops of the vCPU that runs on a pCPU, as it has just entered its guest.
    pub(super) fn limit_pauses(&self, board: &mut Board<Ram<'a>>, slot: &Slot<'a>) {
        if let (Some(pauses), Doing::Runs { task, .. }) = (&self.pauses, &slot.doing) {
            let ring = board.cpu(slot.pcpu.number).map_or(0, |cpu| cpu.ring);
            board.limit_pauses(slot.pcpu.number, pauses.limits(task.number(), ring));
        }
    }

    /// vCPUs that are off their pCPUs.
    pub(super) fn tasks(&self) -> impl Iterator<Item = &Task<'a>> {
        self.off.iter().flatten().map(|task| &**task)
    }
}

/// The model. Only called where there is one.
fn model<'s, 'a>(state: &'s mut State<'a>) -> &'s mut Hosted<'a> {
    state.hosted.as_mut().expect("the caller has looked")
}

impl State<'_> {
    /// No vCPU polls on the pCPU any longer. Whether one did.
    fn ends_poll(&mut self, index: usize, at_ps: u64) -> bool {
        let hosted = model(self);
        let polled = hosted.polling[index].take().is_some();
        if polled {
            hosted.scheduler.blocks(index, at_ps / PS);
        }
        polled
    }
}

impl<'a> Simulated<'a> {
    /// vCPUs that the core has made ready wake up.
    pub(super) fn admit(&self, state: &mut State<'a>) {
        let waker = model(state).waker.take();
        for task in self.take_all_ready(state) {
            self.wakes(state, task, waker);
        }
    }

    fn wakes(&self, state: &mut State<'a>, task: Box<Task<'a>>, waker: Option<usize>) {
        let (now_ps, now_ns) = (state.now_ps, state.now_ps / PS);
        let hosted = model(state);
        let number = task.number();
        let (polls_ns, halted_ns) = &mut hosted.polls[number as usize];
        *polls_ns = hosted.host.poll.next_ns(*polls_ns, now_ns.saturating_sub(*halted_ns));
        hosted.off[number as usize] = Some(task);
        hosted.pauses.iter_mut().for_each(|pauses| pauses.woke(number));
        let is_it = |polls: &Option<(u32, u64)>| polls.is_some_and(|(polling, _)| polling == number);
        if let Some(index) = hosted.polling.iter().position(is_it) {
            // It never left its pCPU.
            hosted.polling[index] = None;
            return self.begins_after(state, index, number, (now_ps, 0), None, true);
        }
        let woken = hosted.scheduler.wakes(number, waker, now_ns);
        let index = woken.cpu;
        // Law 15 (halt polling): a runnable task cuts the poll.
        if state.ends_poll(index, now_ps) || woken.was_idle {
            self.picks(state, index, now_ps, None);
        } else if woken.interrupts {
            self.interrupts(state, index);
        }
    }

    /// Takes the vCPU on another pCPU out of its guest.
    fn interrupts(&self, state: &mut State<'a>, index: usize) {
        if let Doing::Runs { .. } = state.slots[index].doing {
            let (cpu, at_ps) = (state.slots[index].pcpu.number, state.now_ps + INTERRUPT_PS);
            state.board.set_alarm_by(cpu, at_ps);
        }
    }

    /// An idle pCPU looks: a poll may be over, or something ready.
    pub(super) fn looks_hosted(&self, state: &mut State<'a>, index: usize, at_ps: u64) {
        let is_idle = matches!(state.slots[index].doing, Doing::Idle { .. });
        let polls_on = model(state).polling[index].is_some_and(|(_, until_ps)| until_ps > at_ps);
        if is_idle && !polls_on {
            state.ends_poll(index, at_ps);
            self.picks(state, index, at_ps, None);
        }
    }

    /// The pCPU picks the vCPU that it runs from now on. `left`: which one it has just run.
    fn picks(&self, state: &mut State<'a>, index: usize, at_ps: u64, left: Option<u32>) {
        let picked = model(state).scheduler.picks(index, at_ps / PS);
        match picked.task {
            Some(number) => {
                self.begins_after(state, index, number, (at_ps, picked.took_ns * PS), left, false)
            }
            None => self.idles(state, index, at_ps),
        }
    }

    /// The turn of a vCPU begins once its pCPU has come to it: from idle, from the vCPU that has `left`, or it `polled` there itself.
    fn begins_after(
        &self,
        state: &mut State<'a>,
        index: usize,
        number: u32,
        (at_ps, took_ps): (u64, u64),
        left: Option<u32>,
        polled: bool,
    ) {
        let hosted = model(state);
        let task = hosted.off[number as usize].take().expect("a vCPU that is picked is off its pCPU");
        let barrier_ps = hosted.host.costs.barrier_ns * PS;
        let costs = &self.machine.costs.guest;
        let (cost_ps, since_ps) = match (&state.slots[index].doing, left) {
            _ if polled => (0, None),
            (Doing::Idle { since_ps }, None) => {
                let deep_ps = self.machine.deep_wake_ps(at_ps.saturating_sub(*since_ps));
                (costs.wake_ps + deep_ps, None)
            }
            (_, Some(left)) if left == number => (0, Some(at_ps)),
            _ => (costs.switch_ps + barrier_ps, Some(at_ps)),
        };
        let stays = polled || left == Some(number);
        model(state).pauses.iter_mut().for_each(|pauses| pauses.loaded(number, stays));
        self.leaves_idle(state, index);
        let entry_ps = if since_ps.is_some() || polled { self.entry_ps(state) } else { 0 };
        let begins_ps = at_ps + took_ps + state.scattered(cost_ps) + entry_ps;
        if since_ps.is_some() {
            state.spent.switches_ps += begins_ps - at_ps;
        }
        state.slots[index].doing = Doing::Changes { task, since_ps };
        state.due.push(Reverse((begins_ps, Due::Begins(index))));
    }

    /// The core counts the pCPU as idle no longer, as it does at first.
    fn leaves_idle(&self, state: &State<'a>, index: usize) {
        let cpu = state.slots[index].pcpu.number;
        if self.core.idle.set.contains(cpu) {
            self.core.idle.leave(cpu);
        }
    }

    fn idles(&self, state: &mut State<'a>, index: usize, at_ps: u64) {
        self.leaves_idle(state, index);
        let slot = &mut state.slots[index];
        slot.doing = match self.core.next(slot.pcpu.number) {
            Next::Ends => Doing::Ended,
            // The model has all ready vCPUs, so this one has just become ready.
            Next::Runs(task) => {
                slot.doing = Doing::Idle { since_ps: at_ps };
                return self.wakes(state, task, None);
            }
            Next::Idles(_) => match slot.doing {
                Doing::Idle { since_ps } => Doing::Idle { since_ps },
                _ => Doing::Idle { since_ps: at_ps },
            },
        };
    }

    /// A vCPU on the pCPU with this index has come out with `exit`. `Some` if its turn is over.
    pub(super) fn exited_hosted(
        &self,
        state: &mut State<'a>,
        index: usize,
        task: &mut Task<'a>,
        exit: Exit,
    ) -> Option<Turn<'a>> {
        let now_ns = state.now_ps / PS;
        let number = task.number();
        let ring = state.board.cpu(state.slots[index].pcpu.number).map_or(0, |cpu| cpu.ring);
        model(state).pauses.iter_mut().for_each(|pauses| pauses.exited(number, ring));
        if exit == Exit::Interrupted {
            let ticked = model(state).scheduler.ticks(index, now_ns);
            if let Some(woke) = ticked.woke {
                self.cuts_poll(state, woke);
            }
            return (ticked.gives_way && self.gives_way(state, index, number)).then_some(Turn::SliceEnded);
        }
        let turn = match exit {
            Exit::Yield(Some(to)) if to < task.guest.vcpus => {
                let target = task.guest.number_of(to);
                (self.yields_to(state, index, target) && self.gives_way(state, index, number))
                    .then_some(Turn::SliceEnded)
            }
            Exit::Yield(_) => {
                let yields = model(state).scheduler.yields(index, now_ns);
                (yields && self.gives_way(state, index, number)).then_some(Turn::SliceEnded)
            }
            Exit::PauseLoop => None,
            Exit::Invalidate if model(state).host.invalidations == Invalidations::Wait => {
                self.rings(state, task);
                None
            }
            exit => self.core.exited(task, &mut state.slots[index].pcpu, exit),
        };
        if turn.is_some() {
            return turn;
        }
        let mut yields = exit == Exit::PauseLoop && self.spins(state, index, task);
        if let Exit::Kick(woken) = exit {
            model(state).waker = Some(index);
            if woken < task.guest.vcpus {
                model(state).pauses.iter_mut().for_each(|pauses| pauses.kicked(task.guest.index, woken));
            }
            self.admit(state);
            // Law 16 (kicks).
            yields = model(state).host.kick_yields
                && woken < task.guest.vcpus
                && self.yields_to(state, index, task.guest.number_of(woken));
        }
        let asked = yields || model(state).scheduler.gives_way_at_exit(index);
        (asked && self.gives_way(state, index, number)).then_some(Turn::SliceEnded)
    }

    /// Law 20 (invalidations): vCPUs that are to drop translations acknowledge it, but for those that wait for a pCPU.
    fn rings(&self, state: &mut State<'a>, task: &Task<'a>) {
        let Some(shared) = &task.guest.shared else { return };
        let on_its_way = state.slots.iter().filter_map(|slot| match &slot.doing {
            Doing::Changes { task, .. } => Some(task.number()),
            _ => None,
        });
        let on_its_way: Vec<u32> = on_its_way.collect();
        let hosted = model(state);
        shared.invalidations.ring(shared.memory, |vcpu| {
            let number = task.guest.number_of(vcpu);
            hosted.off[number as usize].is_some() || on_its_way.contains(&number)
        });
    }

    /// Whether the model picks another vCPU than `number`, which runs on the pCPU. If not, that one goes on.
    fn gives_way(&self, state: &mut State<'a>, index: usize, number: u32) -> bool {
        let now_ns = state.now_ps / PS;
        model(state).scheduler.peeks(index, now_ns) != Some(number)
    }

    fn yields_to(&self, state: &mut State<'a>, index: usize, target: u32) -> bool {
        let now_ns = state.now_ps / PS;
        let yielded = model(state).scheduler.yields_to(index, target, now_ns);
        let Yielded::To(other) = yielded else { return false };
        self.reschedules(state, index, other);
        true
    }

    /// A pause loop of a vCPU on this pCPU has exited. Whether it has yielded to another one.
    fn spins(&self, state: &mut State<'a>, index: usize, task: &Task<'_>) -> bool {
        let now_ns = state.now_ps / PS;
        let Hosted { scheduler, pauses: Some(pauses), off, .. } = model(state) else { return false };
        let says = |number: u32| {
            off[number as usize].as_ref().map_or(Activity::Other, |task| task.guest.activity(task.vcpu.id))
        };
        let yields_to = |target| scheduler.yields_to(index, target, now_ns);
        let spun = pauses.spins(task.guest.index, task.number(), says, yields_to);
        spun.to.into_iter().for_each(|other| self.reschedules(state, index, other));
        spun.to.is_some()
    }

    /// The pCPU `other` has the target of a directed yield to run, which came from the pCPU with this index.
    fn reschedules(&self, state: &mut State<'a>, index: usize, other: usize) {
        if other != index {
            self.cuts_poll(state, other);
            self.interrupts(state, other);
        }
    }

    /// A pCPU that is idle, or on which a vCPU polls, has got something to run.
    fn cuts_poll(&self, state: &mut State<'a>, index: usize) {
        if matches!(state.slots[index].doing, Doing::Idle { .. }) {
            let now_ps = state.now_ps;
            state.ends_poll(index, now_ps);
            self.picks(state, index, now_ps, None);
        }
    }

    /// The turn of `task` has ended: its pCPU polls, or picks another one.
    pub(super) fn turn_over_hosted(
        &self,
        state: &mut State<'a>,
        index: usize,
        task: Box<Task<'a>>,
        (turn, began_ns): (Turn<'a>, u64),
        at_ps: u64,
    ) {
        let number = task.number();
        let waits = matches!(turn, Turn::Waits);
        let ends = (began_ns, self.core.clock.now_ns());
        // A vCPU that has just become ready may take this one's place in the core's queue, before the model knows of it.
        let next = self.core.end_turn(task, &mut state.slots[index].pcpu, turn, ends);
        let mut others: Vec<_> = next.into_iter().chain(self.take_all_ready(state)).collect();
        let back = others.iter().position(|task| task.number() == number).map(|at| others.remove(at));
        let now_ns = at_ps / PS;
        let is_back = back.is_some();
        let hosted = model(state);
        if let Some(pauses) = hosted.pauses.as_mut().filter(|_| is_back) {
            if waits { pauses.woke(number) } else { pauses.preempted(number) }
        }
        hosted.off[number as usize] = back;
        let mut polls_ns = 0;
        if !is_back && waits {
            hosted.polls[number as usize].1 = now_ns;
            polls_ns = hosted.polls[number as usize].0;
            if polls_ns == 0 || hosted.scheduler.has_waiting(index) {
                polls_ns = 0;
                hosted.scheduler.blocks(index, now_ns);
            }
        } else if !is_back {
            hosted.scheduler.leaves(index, now_ns);
        }
        if polls_ns > 0 {
            let until_ps = at_ps + polls_ns * PS;
            hosted.polling[index] = Some((number, until_ps));
            state.slots[index].doing = Doing::Idle { since_ps: until_ps };
            state.due.push(Reverse((until_ps, Due::Looks(index))));
        } else {
            self.picks(state, index, at_ps, Some(number));
        }
        others.into_iter().for_each(|task| self.wakes(state, task, None));
    }

    /// All vCPUs that are ready, in their order.
    #[expect(clippy::vec_box, reason = "they come out of the queue boxed")]
    fn take_all_ready(&self, state: &State<'a>) -> Vec<Box<Task<'a>>> {
        self.core.take_back();
        std::iter::from_fn(|| self.core.queues.pop(state.slots[0].pcpu.number)).collect()
    }
}
