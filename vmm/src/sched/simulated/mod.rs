//! `--sched vmm` on a simulated machine: an event loop gives vCPUs their turns, as the [`Core`] says.
//!
//! The board simulates the pCPUs and says when something happens on one of them. This loop charges for it (an exit, a kick, a
//! timer interrupt, another vCPU), sets the clock, asks the core what it means, and lets the vCPU go on or another one begin.

pub(crate) mod absences;
mod host_model;
mod idle;
mod pause_exits;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use haltkick_hypercalls::Control;
use haltkick_sim::board::{Board, Happening, Watching, What, WorkLoop};
use haltkick_sim::hosts::Host;
use haltkick_sim::machine::{Invalidation, Machine};
use haltkick_sim::schedule::Schedule;
use haltkick_sim::{Event, Partition};

use crate::guest::Activity;
use crate::guest::memory::Ram;
use crate::host::clock::{Clock, Moment};
use crate::host::random::SplitMix;
use crate::machine::invalidate::acknowledge;
use crate::machine::vcpu::{Exit, NOT_CARRIED_OUT, Vcpu};
use crate::observe::notes::Observer;
use crate::observe::profile::Sampled;
use crate::observe::{Where, Whereabouts};
use crate::sched::core::{Bell, Core, Next, Queues, Turn};
use crate::sched::deschedule::Plan;
use crate::sched::guest_run::GuestRun;
use crate::sched::idle::PcpuSet;
use crate::sched::pcpu::Pcpu;
use crate::sched::slice::{Rings, SliceTimer};
use crate::sched::task::Task;
use crate::sched::{Finished, Rules, Scheduler};

use absences::{Recorded, WITH_PCPU, for_ns};
use host_model::Hosted;

pub use absences::Repeated;

/// Which of the seed's sequences costs scatter by: threads, which deschedule vCPUs on purpose, have those from 0 on.
const SCATTER_STREAM: u64 = 1 << 32;

/// Picoseconds in a nanosecond.
const PS: u64 = 1000;

/// A bell that does not ring: the loop itself looks for ready vCPUs.
struct NoBell;

impl Bell for NoBell {
    fn choose(&self, _: Option<u32>, _: &PcpuSet) -> Option<u32> {
        None
    }

    fn ring(&self, _: u32) {}

    fn ring_all(&self) {}
}

enum Doing<'a> {
    /// It is idle, since this time, and was to look again at that one.
    Idle { since_ps: u64 },
    /// It is on its way to this vCPU: wakes up, or changes vCPUs, which has been the vCPU's own time since then.
    Changes { task: Box<Task<'a>>, since_ps: Option<u64> },
    /// It runs this one, whose turn began at this time.
    Runs { task: Box<Task<'a>>, began_ns: u64 },
    /// It is taken away for a while.
    Taken,
    /// The run is over.
    Ended,
}

struct Slot<'a> {
    pcpu: Pcpu<'a>,
    rings: Rings,
    doing: Doing<'a>,
    /// The vCPU that it runs is out of its guest: when it came out, and why. What that does takes place when it is due.
    out: Option<(Happening, Exit)>,
}

/// Due events besides those of the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A turn begins on the pCPU with this index.
    Begins(usize),
    /// An idle one looks again.
    Looks(usize),
    /// The vCPU of this one has come out, and the VMM has handled it.
    ExitHandled(usize),
    /// This one comes back, which was taken away.
    Returns(usize),
}

/// The scheduler, with the machine that it schedules.
pub(crate) struct Simulated<'a> {
    core: Core<'a, NoBell>,
    machine: Arc<Machine>,
    /// The run is to end. Time stands still from then on.
    stop: &'a AtomicBool,
    /// Which part of the machine's memory each guest has.
    partitions: Vec<Partition>,
    state: RefCell<State<'a>>,
}

struct State<'a> {
    board: Board<Ram<'a>>,
    slots: Vec<Slot<'a>>,
    /// By number in the machine; `usize::MAX`: the run does not use that one.
    slot_of: Vec<usize>,
    due: BinaryHeap<Reverse<(u64, Due)>>,
    /// The model of a host's scheduler, which decides instead of the core.
    hosted: Option<Hosted<'a>>,
    recorded: Option<Recorded>,
    now_ps: u64,
    spent: Spent,
    /// How costs scatter.
    random: SplitMix,
    scatter_permille: u64,
}

/// Time that is over, of all pCPUs.
#[derive(Debug, Default)]
struct Spent {
    /// Turns of vCPUs.
    busy_ps: u64,
    /// Exits from leaving a guest to entering it again, or to the end of the vCPU's turn.
    exits_ps: u64,
    /// Changes from one vCPU to the next.
    switches_ps: u64,
}

impl State<'_> {
    /// A cost, as it is this time.
    fn scattered(&mut self, cost_ps: u64) -> u64 {
        let widest = 2 * self.scatter_permille + 1;
        cost_ps * (1000 - self.scatter_permille + self.random.next() % widest) / 1000
    }
}

impl Scheduler for Simulated<'_> {
    /// Lets this much time pass, or less if the run is to end.
    fn pass_watched(&self, time: Duration, stopped: &mut dyn FnMut(u32)) {
        let state = &mut *self.state.borrow_mut();
        let end_ps = state.now_ps.saturating_add(time.as_nanos() as u64 * PS);
        self.wrote_to_all(&mut state.board, |control| &control.window);
        self.count_time(state);
        self.call_out(state);
        loop {
            // Relaxed: a request; nothing is read on the strength of it.
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let next_ps = state.due.peek().map_or(end_ps, |next| next.0.0.min(end_ps));
            if let Some(happening) = state.board.run_unless(self.stop, next_ps) {
                if matches!(happening.what, What::Stopped(_)) {
                    stopped(self.asleep(state));
                }
                self.happens(state, happening);
                self.wake_idle(state);
                continue;
            }
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            match state.due.pop() {
                Some(Reverse((at_ps, due))) if at_ps <= end_ps => {
                    self.set_clock(state, at_ps);
                    match due {
                        Due::Begins(index) => self.begins(state, index, at_ps),
                        Due::Looks(index) => {
                            // A vCPU that has become ready chooses its pCPU, which may be another one.
                            self.wake_idle(state);
                            self.looks(state, index, at_ps);
                        }
                        Due::ExitHandled(index) => self.exit_handled(state, index, at_ps),
                        Due::Returns(index) => self.returns(state, index, at_ps),
                    }
                    self.wake_idle(state);
                }
                later => {
                    state.due.extend(later);
                    break;
                }
            }
        }
        self.set_clock(state, end_ps);
    }

    fn cpu_time(&self) -> Duration {
        let state = self.state.borrow();
        let under_way = state.slots.iter().map(|slot| match slot.doing {
            Doing::Runs { began_ns, .. } => state.now_ps.saturating_sub(began_ns * PS),
            Doing::Idle { .. } | Doing::Changes { .. } | Doing::Taken | Doing::Ended => 0,
        });
        Duration::from_nanos((state.spent.busy_ps + under_way.sum::<u64>()) / PS)
    }

    fn repeated(&self) -> Option<Repeated> {
        let state = self.state.borrow();
        state.recorded.as_ref().map(|recorded| recorded.repeated(&self.core.guests[0]))
    }

    /// Work as the time that it takes a vCPU which has a core to itself. Waking up from idle is idle time.
    fn spent(&self) -> [Duration; 3] {
        let busy_ps = self.cpu_time().as_nanos() as u64 * PS;
        let state = self.state.borrow();
        let all_ps = state.now_ps * state.slots.len() as u64;
        let idle_ps = all_ps.saturating_sub(busy_ps + state.spent.switches_ps);
        let in_vmm_ps = state.spent.exits_ps + state.spent.switches_ps;
        [state.board.worked_ps, idle_ps, in_vmm_ps].map(|ps| Duration::from_nanos(ps / PS))
    }

    fn interrupt(&self) {
        let state = &mut *self.state.borrow_mut();
        for index in 0..state.slots.len() {
            state.slots[index].out = None;
            match std::mem::replace(&mut state.slots[index].doing, Doing::Ended) {
                Doing::Runs { mut task, began_ns } => {
                    let times = (began_ns, self.core.clock.now_ns());
                    state.note_turn(index, &task, &Turn::Stopped, times);
                    task.vcpu.simulated = state.board.take(state.slots[index].pcpu.number);
                    self.core.end_turn(task, &mut state.slots[index].pcpu, Turn::Stopped, times);
                }
                Doing::Changes { task, .. } => self.core.place(task, false),
                Doing::Idle { .. } | Doing::Taken | Doing::Ended => {}
            }
        }
        let hosted = state.hosted.iter_mut();
        let off = hosted.flat_map(|hosted| hosted.off.iter_mut().filter_map(Option::take));
        off.for_each(|task| self.core.place(task, false));
    }

    fn everybody_ran_since(&self, since_ns: u64) -> bool {
        let state = self.state.borrow();
        let mut off = state.hosted.iter().flat_map(Hosted::tasks);
        off.all(|task| task.account.since_ns >= since_ns) && self.core.everybody_ran_since(since_ns)
    }

    /// A vCPU that a pCPU changes to counts as running.
    fn whereabouts(&self) -> Vec<Whereabouts> {
        let (mut found, state) = (self.core.whereabouts(), self.state.borrow());
        for task in state.hosted.iter().flat_map(Hosted::tasks) {
            found[task.number() as usize] = task.account.whereabouts();
        }
        found
    }

    fn finish(self: Box<Self>) -> Vec<Finished> {
        self.hand_in_time();
        drop(self.state);
        self.core.finish()
    }
}

impl<'a> Simulated<'a> {
    /// Takes over the vCPUs of each of `guests`, which are of one image, to be run as `rules` say on `cpus` of `machine`, whose costs
    /// scatter as the seed says. `witness` looks at them, and may have a vCPU taken off.
    pub(crate) fn new(
        (rules, host, schedule): (Rules, Option<&Host>, Option<&Arc<Schedule>>),
        guests: &'a [GuestRun<'a>],
        mut vcpus: Vec<Vec<Vcpu>>,
        plan: Option<Plan>,
        (machine, cpus, seed): (&Arc<Machine>, &[u32], u64),
        (stop, witness): (&'a AtomicBool, Option<Watching>),
    ) -> Self {
        let shared = || guests.iter().map(|guest| guest.shared.as_ref().expect("a guest of our own"));
        let ram = Ram::new(shared().map(|shared| shared.memory));
        let partitions: Vec<_> = ram.partitions().collect();
        for (vcpus, partition) in vcpus.iter_mut().zip(&partitions) {
            let cpus = vcpus.iter_mut().filter_map(|vcpu| vcpu.simulated.as_mut());
            cpus.for_each(|cpu| cpu.set_partition(*partition));
        }
        // One queue: published figures of simulated machines rest on it, and pCPUs in virtual time do not contend for it.
        let mut core = Core::new(rules, (cpus, Queues::One), guests, vcpus, plan, NoBell);
        core.sets_aside |= witness.is_some() || schedule.is_some();
        let code = shared().take(1).flat_map(|shared| &shared.image.segments);
        let code = code.filter(|segment| segment.executable);
        let loops: Vec<_> =
            code.flat_map(|segment| WorkLoop::find_all(&segment.bytes, segment.address)).collect();
        let mut board = Board::new(Arc::clone(machine), ram, &loops);
        board.set_seed(seed);
        board.witness = witness;
        if guests[0].notes.samples.is_some() {
            board.count_time(|word| Activity::said(word).word());
        }
        let slots = cpus.iter().zip(0..).map(|(&cpu, index)| {
            let (slice, rings) = SliceTimer::simulated(core.slice_ns, false);
            let observer = Observer::simulated(guests[0].notes);
            let pcpu = Pcpu::new(cpu, None, slice, core.injector(index), observer);
            Slot { pcpu, rings, doing: Doing::Idle { since_ps: 0 }, out: None }
        });
        let slots = slots.collect::<Vec<_>>();
        let mut slot_of = vec![usize::MAX; machine.topology.cpus() as usize];
        cpus.iter().enumerate().for_each(|(index, &cpu)| slot_of[cpu as usize] = index);
        let state = State {
            board,
            due: (0..slots.len()).map(|index| Reverse((0, Due::Looks(index)))).collect(),
            slots,
            slot_of,
            hosted: host.map(|host| Hosted::new(host, guests, (machine, cpus, seed))),
            recorded: schedule.map(|schedule| Recorded::new(Arc::clone(schedule), machine)),
            now_ps: 0,
            spent: Spent::default(),
            random: SplitMix::stream(seed, SCATTER_STREAM),
            scatter_permille: machine.costs.guest.scatter_permille,
        };
        // All are idle until they have looked.
        cpus.iter().for_each(|cpu| _ = core.idle.enter(*cpu));
        Self { core, machine: Arc::clone(machine), partitions, stop, state: RefCell::new(state) }
    }

    fn set_clock(&self, state: &mut State<'a>, at_ps: u64) {
        // An exit takes time, in which something may happen elsewhere: the clock does not go back for that.
        state.now_ps = state.now_ps.max(at_ps);
        if let Clock::Simulated(clock) = self.core.clock {
            clock.set(Moment { ns: state.now_ps / PS, tsc: self.machine.ticks_at(state.now_ps) });
            clock.count(state.board.executed);
        }
    }

    /// Tells the board that the VMM has written this word for each guest: no core's cache has its line afterwards.
    fn wrote_to_all(&self, board: &mut Board<Ram<'a>>, word: fn(&Control) -> &AtomicU32) {
        for (guest, partition) in self.core.guests.iter().zip(&self.partitions) {
            if let Some(memory) = guest.shared.as_ref().map(|shared| shared.memory) {
                board.host_wrote(partition.start + memory.address_of(word(memory.control())));
            }
        }
    }

    /// The turn of the vCPU that the pCPU was on its way to begins.
    fn begins(&self, state: &mut State<'a>, index: usize, at_ps: u64) {
        let slot = &mut state.slots[index];
        let Doing::Changes { mut task, since_ps } = std::mem::replace(&mut slot.doing, Doing::Ended) else {
            return;
        };
        task.last_pcpu = Some(slot.pcpu.number);
        let began_ns = at_ps / PS;
        let Some(mut task) = self.core.admits(task, &mut slot.pcpu, began_ns) else {
            return self.changes(state, index, None, at_ps);
        };
        let since_ns = since_ps.map_or(began_ns, |since_ps| since_ps / PS);
        self.core.begin_turn(&mut task, &mut slot.pcpu, since_ns, self.core.clock.now_ns());
        let Some(mut task) = self.unless_absent(state, index, task, at_ps) else { return };
        let slot = &mut state.slots[index];
        slot.pcpu.observer.enters(|| began_ns);
        let (guest, id) = (task.guest, task.vcpu.id);
        if let Some(mut cpu) = task.vcpu.simulated.take() {
            if let Some(shared) = guest.shared.as_ref().filter(|it| it.invalidations.take_pending(id)) {
                cpu.raise_nmi();
                acknowledge(shared.area(id));
            }
            state.board.put(slot.pcpu.number, cpu, at_ps);
            if let Some(mark_at) = self.mark_at(guest, id, at_ps) {
                let open_ps = guest.window.times()[0] * PS;
                let since_ps = since_ps.unwrap_or(at_ps).max(open_ps);
                state.board.count_time_since(slot.pcpu.number, mark_at, since_ps);
            }
        }
        self.host_wrote(&mut state.board, guest, id);
        state.slots[index].doing = Doing::Runs { task, began_ns };
        Self::arm(state, index);
    }

    /// The VMM has written what it tells this vCPU, and to all guests how many are ready.
    fn host_wrote(&self, board: &mut Board<Ram<'a>>, guest: &GuestRun<'_>, vcpu: u32) {
        if let Some(shared) = &guest.shared {
            let start = self.partitions[guest.index].start;
            let (memory, area) = (shared.memory, shared.memory.area(vcpu));
            board.host_wrote(start + memory.address_of(&area.steal));
            board.host_wrote(start + memory.address_of(&area.host));
        }
        self.wrote_to_all(board, |control| &control.ready_vcpus);
    }

    /// The way into a guest: of what an exit costs, the half that follows what it does.
    fn entry_ps(&self, state: &mut State<'a>) -> u64 {
        state.scattered(self.machine.costs.guest.exit_ps / 2)
    }

    fn happens(&self, state: &mut State<'a>, happening: Happening) {
        let index = state.slot_of[happening.cpu as usize];
        let costs = &self.machine.costs.guest;
        let (exit, extra_ps) = match happening.what {
            What::Stopped(_) => (Exit::Interrupted, costs.timer_ps),
            What::Alarm => {
                // A tick takes time in addition to the exit.
                let tick_ns = state.hosted.as_ref().map_or(0, |hosted| hosted.host.costs.tick_ns);
                (Exit::Interrupted, costs.timer_ps + tick_ns * PS)
            }
            What::PauseLoop => (Exit::PauseLoop, 0),
            What::Event(event) => match Self::exit_of(state, happening.cpu, event) {
                exit @ Exit::Kick(_) => (exit, costs.kick_ps),
                exit => (exit, 0),
            },
        };
        // The exit takes effect in the order of time, half way between leaving the guest and entering it again: until then others go
        // on, and see nothing of it.
        let at_ps = happening.at_ps + state.scattered(costs.exit_ps / 2 + extra_ps);
        state.slots[index].out = Some((happening, exit));
        state.due.push(Reverse((at_ps, Due::ExitHandled(index))));
    }

    fn exit_handled(&self, state: &mut State<'a>, index: usize, at_ps: u64) {
        let Some((happening, exit)) = state.slots[index].out.take() else { return };
        state.board.drain(happening.cpu);
        let slot = &mut state.slots[index];
        let Doing::Runs { mut task, began_ns } = std::mem::replace(&mut slot.doing, Doing::Ended) else {
            return;
        };
        task.vcpu.exits.count(exit);
        if happening.what == What::Alarm && state.hosted.is_none() {
            slot.rings.rang(happening.at_ps / PS);
        }
        let turn = if task.guest.stopping() {
            Some(Turn::Stopped)
        } else if let What::Stopped(told) = happening.what {
            for_ns(told).map(Turn::Injected)
        } else if state.hosted.is_some() {
            self.exited_hosted(state, index, &mut task, exit)
        } else if exit == Exit::Interrupted {
            self.core.rang(&mut task, &mut slot.pcpu, at_ps / PS)
        } else {
            self.core.exited(&mut task, &mut slot.pcpu, exit)
        };
        let turn = turn.or_else(|| state.absent_for(&task, at_ps / PS).map(Turn::Injected));
        let pauses = state.hosted.as_mut().and_then(|hosted| hosted.pauses.as_mut());
        let at_ps = at_ps + pauses.map_or(0, |pauses| std::mem::take(&mut pauses.spent_ps));
        let told = if exit == Exit::Invalidate { self.invalidate(state, &task) } else { 0 };
        let (guest, id) = (task.guest, task.vcpu.id);
        if let Exit::Kick(woken) = exit
            && woken < guest.vcpus
        {
            // It is ready now, and says so.
            self.host_wrote(&mut state.board, guest, woken);
        }
        match turn {
            None => {
                let telling_ps = match self.machine.model.invalidation {
                    Invalidation::Free => 0,
                    Invalidation::Kicks => told * self.machine.costs.guest.kick_ps,
                };
                let inside_ps = at_ps + telling_ps + self.entry_ps(state);
                state.spent.exits_ps += inside_ps.saturating_sub(happening.at_ps);
                let slot = &mut state.slots[index];
                slot.doing = Doing::Runs { task, began_ns };
                slot.pcpu.observer.enters(|| inside_ps / PS);
                self.host_wrote(&mut state.board, guest, id);
                state.board.resume(happening.cpu, inside_ps);
                Self::arm(state, index);
            }
            Some(turn) => self.turn_ends(state, index, task, (turn, began_ns), happening, at_ps),
        }
    }

    /// The vCPU that has come out leaves the pCPU.
    fn turn_ends(
        &self,
        state: &mut State<'a>,
        index: usize,
        mut task: Box<Task<'a>>,
        (turn, began_ns): (Turn<'a>, u64),
        happening: Happening,
        at_ps: u64,
    ) {
        let (guest, id) = (task.guest, task.vcpu.id);
        state.spent.busy_ps += at_ps.saturating_sub(began_ns * PS);
        state.spent.exits_ps += at_ps.saturating_sub(happening.at_ps);
        task.vcpu.simulated = state.board.take(happening.cpu);
        if state.hosted.is_some() {
            self.turn_over_hosted(state, index, task, (turn, began_ns), at_ps);
            return self.host_wrote(&mut state.board, guest, id);
        }
        let times = (began_ns, self.core.clock.now_ns());
        state.note_turn(index, &task, &turn, times);
        let next = self.core.end_turn(task, &mut state.slots[index].pcpu, turn, times);
        self.host_wrote(&mut state.board, guest, id);
        match happening.what {
            What::Stopped(told) if told & WITH_PCPU != 0 => self.take(state, index, told, at_ps),
            _ => self.changes(state, index, next, at_ps),
        }
    }

    /// A pCPU has nothing to run, but for `next`. One that was idle gets to a vCPU after it has woken up.
    fn changes(&self, state: &mut State<'a>, index: usize, next: Option<Box<Task<'a>>>, at_ps: u64) {
        let slot = &mut state.slots[index];
        let idle_since_ps = if let Doing::Idle { since_ps } = slot.doing { Some(since_ps) } else { None };
        let next = match next {
            Some(task) => Next::Runs(task),
            None => self.core.next(slot.pcpu.number),
        };
        match next {
            Next::Runs(task) => {
                let costs = &self.machine.costs.guest;
                slot.doing = Doing::Changes { task, since_ps: idle_since_ps.is_none().then_some(at_ps) };
                let takes_ps = if let Some(since_ps) = idle_since_ps {
                    let deep_ps = self.machine.deep_wake_ps(at_ps.saturating_sub(since_ps));
                    state.scattered(costs.wake_ps + deep_ps)
                } else {
                    let switch_ps = state.scattered(costs.switch_ps) + self.entry_ps(state);
                    state.spent.switches_ps += switch_ps;
                    switch_ps
                };
                state.due.push(Reverse((at_ps + takes_ps, Due::Begins(index))));
            }
            Next::Idles(until_ns) => {
                slot.doing = Doing::Idle { since_ps: idle_since_ps.unwrap_or(at_ps) };
                if let Some(until_ns) = until_ns {
                    state.due.push(Reverse(((until_ns * PS).max(at_ps + PS), Due::Looks(index))));
                }
            }
            Next::Ends => slot.doing = Doing::Ended,
        }
    }

    /// Tells the board when the alarm of a pCPU rings, which has entered a guest: at the end of a slice.
    fn arm(state: &mut State<'a>, index: usize) {
        let slot = &state.slots[index];
        let at_ns = match &state.hosted {
            Some(hosted) => {
                hosted.limit_pauses(&mut state.board, slot);
                hosted.scheduler.alarm_ns(index, state.now_ps / PS)
            }
            None => slot.rings.next_ns().min(state.called_out_ns(index)),
        };
        state.board.set_alarm(slot.pcpu.number, at_ns.saturating_mul(PS));
    }

    /// The exit that an event of the interpreter is to the VMM.
    fn exit_of(state: &mut State<'a>, cpu: u32, event: Event) -> Exit {
        match event {
            Event::Out { port, value, .. } => Exit::from_hypercall(port, value).unwrap_or(Exit::Device),
            Event::In { .. } | Event::ReadMsr { .. } => {
                state.board.cpu_mut(cpu).into_iter().for_each(|cpu| cpu.answer(u64::MAX));
                Exit::Device
            }
            Event::WriteMsr { .. } | Event::Limit | Event::Stopped | Event::Reached => Exit::Device,
            Event::Halt => Exit::Halt,
            Event::ShutDown { .. } => Exit::Shutdown,
            Event::Hypercall => Exit::Unexpected { reason: 0, detail: 0 },
            Event::NotCovered => {
                let at = state.board.cpu(cpu).map_or(0, |cpu| cpu.rip);
                Exit::Unexpected { reason: NOT_CARRIED_OUT, detail: at }
            }
        }
    }

    /// vCPUs that have translations to drop get an NMI: those that run at once, the others before they do. Returns how many run.
    fn invalidate(&self, state: &mut State<'a>, task: &Task<'a>) -> u64 {
        let Some(shared) = &task.guest.shared else { return 0 };
        let mut told = 0;
        for index in 0..state.slots.len() {
            let slot = &state.slots[index];
            if let Doing::Runs { task: other, .. } = &slot.doing
                && other.guest.index == task.guest.index
                && shared.invalidations.take_pending(other.vcpu.id)
            {
                // The host's interrupt takes the vCPU out of its guest, unless it is out. It comes back with the NMI.
                let (cpu, is_inside) = (slot.pcpu.number, slot.out.is_none());
                let cost_ps = if is_inside { state.scattered(self.machine.costs.guest.exit_ps) } else { 0 };
                state.board.raise_nmi(cpu, cost_ps);
                told += 1;
            }
        }
        (0..task.guest.vcpus).for_each(|vcpu| self.host_wrote(&mut state.board, task.guest, vcpu));
        told
    }

    fn asleep(&self, state: &State<'a>) -> u32 {
        let sleeps = |at: Where| matches!(at, Where::Asleep);
        let off = state.hosted.iter().flat_map(Hosted::tasks);
        let off = off.filter(|task| sleeps(task.account.whereabouts().at)).count();
        (off + self.core.whereabouts().iter().filter(|found| sleeps(found.at)).count()) as u32
    }

    /// Address of the mark for the vCPU's time in a profile, while the window of its guest is open.
    fn mark_at(&self, guest: &GuestRun<'_>, vcpu: u32, now_ps: u64) -> Option<u64> {
        let memory = guest.shared.as_ref().filter(|_| guest.window.contains(now_ps / PS))?.memory;
        Some(self.partitions[guest.index].start + memory.address_of(&memory.area(vcpu).activity.state))
    }

    /// A window may have opened or closed. CPUs that have come ahead of the others by then are counted from where they are, or up to
    /// there: at most 20 us each.
    fn count_time(&self, state: &mut State<'a>) {
        for slot in &state.slots {
            if let Doing::Runs { task, .. } = &slot.doing {
                let mark_at = self.mark_at(task.guest, task.vcpu.id, state.now_ps);
                state.board.count_time_of(slot.pcpu.number, mark_at);
            }
        }
    }

    /// Hands the profile the time of all vCPUs, and that of pCPUs without one.
    fn hand_in_time(&self) {
        let state = self.state.borrow();
        let spent: Vec<_> = state.board.spent().collect();
        let spent_ps: u64 = spent.iter().map(|(_, ps)| ps).sum();
        let guest = &self.core.guests[0];
        let window_ns = if guest.window.is_closed() { guest.window.length().as_nanos() as u64 } else { 0 };
        let all_ns = window_ns * state.slots.len() as u64;
        let spent = spent.iter().map(|(on, ps)| {
            let activity = Activity::said(on.mark);
            (Sampled { rip: on.rip, activity, in_vmm: on.still }, ps / PS)
        });
        if let Some(samples) = &guest.notes.samples {
            samples.hand_in_all(spent, all_ns.saturating_sub(spent_ps / PS));
        }
    }
}
