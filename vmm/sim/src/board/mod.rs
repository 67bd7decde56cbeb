//! CPUs that share memory, in virtual time.
//!
//! A board has a slot for each CPU of its machine. Its driver puts the state of a (virtual) CPU into a slot, lets time pass with
//! [`Board::run`], and is told of happenings: an instruction that needs the driver, the end of a slice.
//!
//! ```text
//!  put() ─> executes ── its line is elsewhere ─> waits for the line ─┐
//!              ^ │ └─── a spin loop ──────────> parked ──────────────┤  until the line comes, or is written
//!              │ │                                                   │
//!              └─┼───────────────────────────────────────────────────┘
//!                └─ OUT, HLT, the alarm ──> Happening ── resume() or take()
//! ```
//!
//! *Order.* All that happens has a time, and things of one time have an order of their own; both depend on nothing but what
//! was put in. One CPU executes at a time, see `fabric` for how far ahead of the others. Stores become visible in the order
//! in which a CPU executed them, when their lines have come; loads see the CPU's own stores before (x86-TSO).
//!
//! *Spinning costs nothing.* A CPU that comes from one PAUSE to the next with the same registers, and has only read lines that
//! its core has, will do so again until one of those lines changes: it is parked (`spin`). So is one whose rounds depend on
//! the clock alone, until the first round that leaves the loop. The loop that stands for work is time (`loops`).

mod ahead;
mod alike;
mod fabric;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzed;
mod spin;
mod transfers;
mod witness;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cpu::bus::{Event, LINE};
use crate::cpu::code::{self, Code};
use crate::cpu::state::Cpu;
use crate::lines::Lines;
use crate::machine::loops::ROUND;
use crate::machine::{Machine, PauseLimits, Smt};

pub use crate::machine::loops::WorkLoop;
use alike::Alike;
use fabric::{Fabric, From, Why};
use spin::{Last, Parked};
use witness::Spent;
pub use witness::{SpentOn, Step, Watching, Witness};

/// Guest memory, as the CPUs of a board read and write it.
pub trait Memory {
    /// `bytes` (1 to 8) at a physical address, the first one lowest. Outside memory: zero.
    fn load(&self, physical: u64, bytes: usize) -> u64;

    /// Stores the lowest `bytes` of `value` at a physical address. Outside memory: nothing.
    fn store(&mut self, physical: u64, bytes: usize, value: u64);

    /// The first address behind all of it.
    fn end(&self) -> u64;
}

/// Bytes from physical address 0 on, for drivers that have no memory of their own.
impl Memory for Vec<u8> {
    #[inline]
    fn load(&self, physical: u64, bytes: usize) -> u64 {
        let mut value = [0; 8];
        if let Some(source) = self.get(physical as usize..(physical as usize).saturating_add(bytes)) {
            value[..bytes].copy_from_slice(source);
        }
        u64::from_le_bytes(value)
    }

    #[inline]
    fn store(&mut self, physical: u64, bytes: usize, value: u64) {
        if let Some(target) = self.get_mut(physical as usize..(physical as usize).saturating_add(bytes)) {
            target.copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
    }

    fn end(&self) -> u64 {
        self.len() as u64
    }
}

/// An event for the driver of the board. The CPU stands still until [`Board::resume`] or [`Board::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Happening {
    /// On which CPU of the machine.
    pub cpu: u32,
    /// When.
    pub at_ps: u64,
    /// Kind of the event.
    pub what: What,
}

/// See [`Happening`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The CPU left the interpreter with this.
    Event(Event),
    /// The time of [`Board::set_alarm`] has come.
    Alarm,
    /// The [`Witness`] stopped it, and says this.
    Stopped(u64),
    /// A pause loop was longer than [`Board::limit_pauses`] allows. The CPU stands behind the PAUSE.
    PauseLoop,
}

/// How far a CPU may come ahead of whatever is due next, at work that no other CPU has seen anything of so far. When another one
/// looks for the first time at what it does there, it may see what is this far in the future.
const MOST_AHEAD_PS: u64 = 200_000;

/// How far it may come ahead without touching memory at all. An alarm that is set in the meantime for a time before that is late.
const MOST_WORK_PS: u64 = 20_000_000;

/// Instructions after which a CPU's time is looked at again. Some take a hundred times as long as others; of PAUSE, with which CPUs
/// spin, each one is looked at.
const MOST_INSTRUCTIONS: u64 = 1024;

/// Due events, in the order in which those of one time take place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The transfer of a line completes.
    Line(u64),
    /// The CPU of a slot goes on, unless that has changed since.
    Cpu { slot: u32, token: u64 },
    /// Its alarm, unless it was set anew.
    Alarm { slot: u32, token: u64 },
    /// The first store of its buffer asks for its line.
    Store(u32),
}

/// Event that a slot waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotState {
    /// The driver of the board.
    #[default]
    Still,
    /// Its turn.
    Due,
    /// A line that its instruction needs.
    Line,
    /// Its stores, all of them.
    Drain,
    /// One of its stores.
    Full,
    /// A change to what it reads in its spin loop.
    Parked,
}

/// One CPU of the machine: what runs on it, and what it waits for.
#[derive(Debug, Default)]
struct Slot {
    cpu: Option<Box<Cpu>>,
    state: SlotState,
    /// The CPU's own time.
    at_ps: u64,
    /// When it was last put into its slot, or resumed.
    entered_ps: u64,
    /// Its alarm.
    alarm_ps: u64,
    /// The alarm has rung, and the CPU could not be stopped.
    alarm_rang: bool,
    /// It is due at `alarm_ps`.
    alarm_is_due: bool,
    /// Due events with another token are void.
    token: u64,
    alarm_token: u64,
    /// The first store of its buffer is on its way, if stores are late.
    storing: bool,
    /// Lines that stores of its buffer have asked for, unless stores are late.
    asked: Vec<u64>,
    /// The other line of the access that waits for one.
    other: Option<u64>,
    siblings: Box<[u32]>,
    /// The last PAUSE.
    last: Option<Last>,
    parked: Option<Box<Parked>>,
    /// Rounds that it is taken through at once.
    tries_ahead: usize,
    /// The last round that others were found to be like.
    alike: Option<Box<Alike>>,
    /// Rounds since then that no others were found to be like.
    unlike: u32,
}

impl Slot {
    /// How much it takes of what a busy sibling takes from a thread, in thousandths.
    fn takes_permille(&self, smt: Smt) -> u64 {
        /// A guess: PAUSE leaves most slots to the other thread.
        const SPINNING: u64 = 100;
        match (self.state, smt) {
            _ if self.cpu.is_none() => 0,
            (SlotState::Still, _) | (SlotState::Parked, Smt::Busy) => 0,
            (SlotState::Parked, Smt::Issue) => SPINNING,
            (SlotState::Due, _) | (SlotState::Line | SlotState::Drain | SlotState::Full, Smt::Busy) => 1000,
            (SlotState::Line | SlotState::Drain | SlotState::Full, Smt::Issue) => 0,
        }
    }

    /// Takes back what is due of its alarm.
    fn forget_alarm(&mut self) {
        self.alarm_token += 1;
        (self.alarm_rang, self.alarm_is_due) = (false, false);
    }
}

/// See the module.
pub struct Board<M> {
    fabric: Fabric<M>,
    code: Code<Fabric<M>>,
    slots: Vec<Slot>,
    due: BinaryHeap<Reverse<(u64, Due)>>,
    now_ps: u64,
    loops: BTreeMap<u64, WorkLoop>,
    /// The least time from the request of a line that another core has to its loss.
    least_transfer_ps: u64,
    /// Rounds of spin loops are skipped. What comes of it is the same if each is executed, and takes longer.
    pub parks: bool,
    /// How far a CPU may come ahead of the others, but in loops that stand for work. What comes of it is exact where a CPU looks for the
    /// first time at what another one did alone if this is 0; it takes longer.
    pub most_ahead_ps: u64,
    /// Instructions that have been executed one by one: not the rounds of parked spin loops, nor those of work.
    pub executed: u64,
    /// Instructions of spin loops' rounds that have been tried ahead of their time.
    pub tried: u64,
    /// If it is counted where time goes.
    spent: Option<Box<Spent>>,
    /// Work that all CPUs have done in loops that stand for it, as the time that it takes a core with one busy thread.
    pub worked_ps: u64,
    /// Looks at all CPUs.
    pub witness: Option<Watching>,
    /// The witness has stopped the CPU that runs.
    stopped: Option<u64>,
}

/// Most bytes that a board of `machine` takes for guests of `memory_bytes`, that memory left out.
#[must_use]
pub fn most_bytes(memory_bytes: u64, machine: &Machine) -> u64 {
    let of_code = code::most_bytes::<Fabric<Vec<u8>>>() as u64;
    let of_spinners = u64::from(machine.topology.cpus()) * ahead::MOST_BYTES as u64;
    Lines::most_bytes(memory_bytes, machine).saturating_add(of_code).saturating_add(of_spinners)
}

impl<M: Memory> Board<M> {
    /// A board of `machine` with empty slots. `loops` stand for work.
    #[must_use]
    pub fn new(machine: Arc<Machine>, memory: M, loops: &[WorkLoop]) -> Self {
        let line = &machine.costs.line;
        let far_ps = line.hops_ps.iter().map(|ps| ps * line.occupancy_far_permille / 1000);
        let socket_ps = line.socket_ps * line.occupancy_socket_permille / 1000;
        let least_ps = far_ps.fold(socket_ps, u64::min).min(line.near_visit_ps());
        Self {
            slots: (0..machine.topology.cpus())
                .map(|cpu| Slot {
                    alarm_ps: u64::MAX,
                    siblings: machine.topology.siblings(cpu).collect(),
                    ..Slot::default()
                })
                .collect(),
            due: BinaryHeap::new(),
            now_ps: 0,
            loops: loops.iter().map(|work| (work.head, *work)).collect(),
            least_transfer_ps: machine.model.least_ps(least_ps.min(line.shared_ps).min(line.near_ps)),
            parks: true,
            most_ahead_ps: MOST_AHEAD_PS,
            executed: 0,
            tried: 0,
            spent: None,
            worked_ps: 0,
            witness: None,
            stopped: None,
            code: Code::new(loops.iter().map(|work| work.head).collect()),
            fabric: Fabric::new(memory, machine),
        }
    }

    /// Draws what transfers of lines take as this seed says.
    pub fn set_seed(&mut self, seed: u64) {
        self.fabric.lines.seed = seed;
    }

    /// The time up to which everything has happened.
    #[must_use]
    pub fn now_ps(&self) -> u64 {
        self.now_ps
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &M {
        &self.fabric.memory
    }

    /// The memory, to be written by the host: [`Self::host_wrote`] has to follow.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.fabric.memory
    }

    /// The host has written the line of this address: no core has it now.
    pub fn host_wrote(&mut self, physical: u64) {
        let line = physical / LINE;
        for watcher in self.fabric.lines.write_by_host(self.now_ps, line) {
            self.wake(watcher, line, self.now_ps);
        }
    }

    /// The CPU in a slot.
    #[must_use]
    pub fn cpu(&self, slot: u32) -> Option<&Cpu> {
        self.slots[slot as usize].cpu.as_deref()
    }

    /// Mutable access to the CPU in a slot. It must stand still.
    pub fn cpu_mut(&mut self, slot: u32) -> Option<&mut Cpu> {
        self.slots[slot as usize].cpu.as_deref_mut()
    }

    /// The CPU of the slot gets a non-maskable interrupt, which costs it `cost_ps` in addition to its handler.
    pub fn raise_nmi(&mut self, slot: u32, cost_ps: u64) {
        self.unpark_before(slot, self.now_ps);
        let now_ps = self.now_ps;
        let place = &mut self.slots[slot as usize];
        let Some(cpu) = &mut place.cpu else { return };
        cpu.raise_nmi();
        let began_ps = place.at_ps.max(now_ps);
        let at_ps = began_ps + cost_ps;
        place.at_ps = at_ps;
        if matches!(place.state, SlotState::Parked | SlotState::Due) {
            self.schedule(slot, at_ps);
        }
        self.spend_here(slot, false, began_ps);
        self.spend_here(slot, true, at_ps);
    }

    /// Puts a CPU into an empty slot, where it executes from `at_ps` on.
    ///
    /// # Panics
    /// If there is one already.
    pub fn put(&mut self, slot: u32, mut cpu: Box<Cpu>, at_ps: u64) {
        cpu.id = slot;
        let place = &mut self.slots[slot as usize];
        assert!(place.cpu.is_none(), "slot {slot} is taken");
        place.cpu = Some(cpu);
        self.fabric.forget_round(slot);
        self.resume(slot, at_ps);
    }

    /// The CPU of the slot, which stood still, goes on at `at_ps`.
    pub fn resume(&mut self, slot: u32, at_ps: u64) {
        // The present round has left the guest, which its driver has noticed.
        self.fabric.rounds[slot as usize].loud = true;
        self.fabric.filters[slot as usize].enter();
        let place = &mut self.slots[slot as usize];
        place.last = None;
        (place.at_ps, place.entered_ps) = (at_ps, at_ps);
        self.spend_here(slot, true, at_ps);
        let place = &mut self.slots[slot as usize];
        let missed = std::mem::take(&mut place.alarm_rang).then_some(place.alarm_token);
        self.schedule(slot, at_ps);
        if let Some(token) = missed {
            self.enter(at_ps, Due::Alarm { slot, token });
        }
    }

    /// Takes the CPU out of its slot, wherever it is, with none of its stores left behind ([`Self::drain`]).
    pub fn take(&mut self, slot: u32) -> Option<Box<Cpu>> {
        self.unpark_before(slot, self.now_ps);
        self.drain(slot);
        // Its time does not count on.
        self.count_time_of(slot, None);
        let place = &mut self.slots[slot as usize];
        place.state = SlotState::Still;
        place.token += 1;
        place.forget_alarm();
        place.cpu.take()
    }

    /// Lets time pass until something happens, at most until `until_ps`; `None`: nothing did.
    pub fn run(&mut self, until_ps: u64) -> Option<Happening> {
        static NEVER: AtomicBool = AtomicBool::new(false);
        self.run_unless(&NEVER, until_ps)
    }

    /// Lets time pass in that way, but stops wherever it is once `stop` is set.
    pub fn run_unless(&mut self, stop: &AtomicBool, until_ps: u64) -> Option<Happening> {
        while let Some(&Reverse((at_ps, due))) = self.due.peek()
            && at_ps <= until_ps
        {
            // Relaxed: a request; nothing is read on the strength of it.
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            self.due.pop();
            self.now_ps = self.now_ps.max(at_ps);
            let happening = match due {
                Due::Line(line) => self.line_comes(line, at_ps, until_ps, stop),
                Due::Cpu { slot, token } if self.slots[slot as usize].token == token => {
                    // It is parked, and comes to a PAUSE that leaves the guest.
                    let parked = self.slots[slot as usize].parked.as_ref();
                    let exits = parked.is_some_and(|parked| parked.exits_ps == Some(at_ps));
                    self.unpark_before(slot, at_ps);
                    if exits { self.pause_loop(slot) } else { self.execute(slot, [None; 2], until_ps, stop) }
                }
                Due::Alarm { slot, token } if self.slots[slot as usize].alarm_token == token => {
                    self.alarm(slot, at_ps)
                }
                Due::Store(slot) => {
                    self.send_store(slot, at_ps);
                    None
                }
                Due::Cpu { .. } | Due::Alarm { .. } => None,
            };
            if happening.is_some() {
                return happening;
            }
        }
        self.now_ps = self.now_ps.max(until_ps);
        None
    }

    fn enter(&mut self, at_ps: u64, due: Due) {
        self.due.push(Reverse((at_ps, due)));
    }

    fn schedule(&mut self, slot: u32, at_ps: u64) {
        let place = &mut self.slots[slot as usize];
        place.token += 1;
        place.state = SlotState::Due;
        let due = Due::Cpu { slot, token: place.token };
        self.enter(at_ps, due);
    }

    /// Present time of an instruction in a slot: longer, while its sibling is busy.
    fn instruction_ps(&self, slot: u32) -> u64 {
        let Machine { costs, model, .. } = &*self.fabric.machine;
        let siblings = self.slots[slot as usize].siblings.iter();
        let takes = siblings.map(|sibling| self.slots[*sibling as usize].takes_permille(model.smt));
        match takes.max().unwrap_or(0) {
            0 => costs.instruction_ps,
            takes => {
                costs.instruction_ps * 1000 / (1000 - (1000 - costs.busy_sibling_permille) * takes / 1000)
            }
        }
    }

    /// Executes the CPU of a slot until it has to wait for something. `granted`: the lines that it waited for.
    #[expect(clippy::too_many_lines, reason = "its loop is the list of all that stops a CPU")]
    fn execute(
        &mut self,
        slot: u32,
        mut granted: [Option<u64>; 2],
        until_ps: u64,
        stop: &AtomicBool,
    ) -> Option<Happening> {
        let instruction_ps = self.instruction_ps(slot);
        let horizon_ps = self.due.peek().map_or(until_ps, |next| next.0.0.min(until_ps));
        let place = &mut self.slots[slot as usize];
        // Private work may go beyond the horizon, but not beyond what the driver waits for.
        let driver_ps = until_ps.min(place.alarm_ps);
        let end_ps = driver_ps.min(horizon_ps.saturating_add(self.most_ahead_ps));
        let mut cpu = place.cpu.take().expect("only slots with a CPU are due");
        // A CPU of its core needs no transfer.
        let mut siblings = self.slots[slot as usize].siblings.iter();
        let is_alone = siblings.all(|sibling| self.slots[*sibling as usize].cpu.is_none());
        let reach_ps = if is_alone { self.least_transfer_ps } else { 0 };
        let happening = loop {
            let at_ps = self.slots[slot as usize].at_ps;
            let from = From {
                at_ps,
                instructions: cpu.instructions,
                instruction_ps,
                horizon_ps,
                reach_ps: horizon_ps + reach_ps,
                end_ps,
            };
            self.fabric.begin(slot, &from);
            self.fabric.running.granted = std::mem::take(&mut granted);
            let most = (end_ps.saturating_sub(at_ps) / instruction_ps).clamp(1, MOST_INSTRUCTIONS);
            let limit = from.instructions + most;
            let event = if self.spent.is_none() && self.witness.is_none() {
                cpu.run(&mut self.code, &mut self.fabric, limit)
            } else {
                self.run_watched(slot, &mut cpu, limit)
            };
            let now_ps = self.fabric.time_ps(cpu.instructions);
            self.executed += cpu.instructions - from.instructions;
            self.slots[slot as usize].at_ps = now_ps;
            let told = self.tell_watchers(slot);
            if let Some(said) = self.stopped.take() {
                self.slots[slot as usize].state = SlotState::Still;
                break Some(Happening { cpu: slot, at_ps: now_ps, what: What::Stopped(said) });
            }
            match (event, self.fabric.why) {
                (Event::Stopped, Why::Pause) => {
                    if self.parks && self.park(slot, &mut cpu, &from, driver_ps) {
                        break None;
                    }
                    self.fabric.begin(slot, &From { at_ps: now_ps, instructions: cpu.instructions, ..from });
                    self.fabric.begin_round();
                }
                (Event::Stopped, Why::LongLoop) => break self.pause_loop(slot),
                (Event::Stopped, why) => {
                    self.wait_for(slot, why, now_ps);
                    break None;
                }
                // The end of the loop says whether that was all.
                (Event::Limit, _) => {}
                (Event::Reached, _) if told && self.loops.contains_key(&cpu.rip) => {}
                (Event::Reached, _) if self.loops.contains_key(&cpu.rip) => {
                    let end_ps = driver_ps.min(horizon_ps.saturating_add(MOST_WORK_PS));
                    self.work(slot, &mut cpu, end_ps);
                }
                (event, _) => {
                    self.slots[slot as usize].state = SlotState::Still;
                    break Some(Happening { cpu: slot, at_ps: now_ps, what: What::Event(event) });
                }
            }
            // Relaxed: as above. A CPU that is alone may execute for as long as its driver waits; those that it has woken come first.
            if told || self.slots[slot as usize].at_ps >= end_ps || stop.load(Ordering::Relaxed) {
                self.schedule(slot, self.slots[slot as usize].at_ps);
                break None;
            }
        };
        let place = &mut self.slots[slot as usize];
        place.cpu = Some(cpu);
        let rings = place.state == SlotState::Due && std::mem::take(&mut place.alarm_rang);
        self.start_store(slot);
        if rings { self.alarm(slot, self.now_ps) } else { happening }
    }

    /// The CPU of a slot, which stopped at `now_ps`, has to wait.
    fn wait_for(&mut self, slot: u32, why: Why, now_ps: u64) {
        match why {
            Why::Line { line, need, other } => {
                self.request(slot, now_ps, (line, need), false);
                let place = &mut self.slots[slot as usize];
                (place.state, place.other) = (SlotState::Line, other);
            }
            Why::Drain => self.slots[slot as usize].state = SlotState::Drain,
            Why::Full => self.slots[slot as usize].state = SlotState::Full,
            Why::Turn | Why::Pause | Why::LongLoop | Why::Nothing => self.schedule(slot, now_ps),
        }
    }

    /// [`What::Alarm`] happens to the CPU of the slot at `at_ps`, or as soon as it can after that. The last call counts.
    pub fn set_alarm(&mut self, slot: u32, at_ps: u64) {
        let place = &mut self.slots[slot as usize];
        // A driver sets it again after each exit: there may be any number of them before it rings.
        if place.alarm_is_due && place.alarm_ps == at_ps {
            return;
        }
        place.forget_alarm();
        (place.alarm_ps, place.alarm_is_due) = (at_ps, true);
        let due = Due::Alarm { slot, token: place.alarm_token };
        self.enter(at_ps.max(self.now_ps), due);
    }

    /// [`Self::set_alarm`], unless it rings before that.
    pub fn set_alarm_by(&mut self, slot: u32, at_ps: u64) {
        let place = &self.slots[slot as usize];
        let is_soon = place.alarm_rang || place.alarm_is_due && place.alarm_ps <= at_ps;
        if !is_soon {
            self.set_alarm(slot, at_ps);
        }
    }

    fn alarm(&mut self, slot: u32, at_ps: u64) -> Option<Happening> {
        let place = &mut self.slots[slot as usize];
        place.alarm_is_due = false;
        match place.state {
            // It rings as soon as the CPU comes to an end of what it waits for.
            SlotState::Still | SlotState::Line | SlotState::Drain | SlotState::Full => {
                place.alarm_rang = place.cpu.is_some();
                return None;
            }
            SlotState::Parked => {
                self.unpark_before(slot, at_ps);
                self.slots[slot as usize].at_ps = at_ps;
            }
            SlotState::Due => {}
        }
        let place = &mut self.slots[slot as usize];
        (place.state, place.token, place.alarm_ps) = (SlotState::Still, place.token + 1, u64::MAX);
        let at_ps = place.at_ps.max(at_ps);
        self.spend_here(slot, false, at_ps);
        Some(Happening { cpu: slot, at_ps, what: What::Alarm })
    }

    /// Limits pause loops in the slot, from the next [`Self::put`] or [`Self::resume`] on.
    pub fn limit_pauses(&mut self, slot: u32, limits: Option<PauseLimits>) {
        self.fabric.filters[slot as usize].limits = limits;
    }

    /// The CPU of the slot stands behind a PAUSE that has left the guest.
    fn pause_loop(&mut self, slot: u32) -> Option<Happening> {
        let place = &mut self.slots[slot as usize];
        (place.state, place.token) = (SlotState::Still, place.token + 1);
        Some(Happening { cpu: slot, at_ps: place.at_ps, what: What::PauseLoop })
    }
    /// Work is time: the loop that the CPU has come to is over, or as much of it as fits. It waits for its own results and leaves the
    /// core's units to the sibling, which does not slow it down.
    fn work(&mut self, slot: u32, cpu: &mut Cpu, end_ps: u64) {
        let head = cpu.rip;
        let work = self.loops[&head];
        let place = &mut self.slots[slot as usize];
        let round_ps = ROUND * self.fabric.machine.costs.instruction_ps;
        let fit = (end_ps.saturating_sub(place.at_ps) / round_ps).max(1);
        // A counter of zero goes round once, and on from below.
        let left = cpu.get::<64>(work.left);
        let rounds = if left == 0 { 1 } else { left.min(fit) };
        let left = left.wrapping_sub(rounds);
        cpu.put::<64>(work.product, WorkLoop::after(cpu.get::<64>(work.product), rounds));
        cpu.put::<64>(work.left, left);
        cpu.instructions += rounds * ROUND;
        place.at_ps += rounds * round_ps;
        let at_ps = place.at_ps;
        self.worked_ps += rounds * round_ps;
        if left == 0 {
            cpu.rip = work.end;
        }
        self.spend(slot, head, false, at_ps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::presets;

    #[test]
    fn no_cpu_runs_further_ahead_than_the_shortest_transfer_allows() {
        let mut machine = presets().iter().find(|preset| preset.name == "genoa-2s").unwrap().machine();
        machine.model.jitter = 0.1;
        let line = &mut machine.costs.line;
        (line.near_ps, line.shared_ps, line.occupancy_near_permille) = (20_000, 15_000, 300);
        let least_ps = |change: &dyn Fn(&mut Machine)| {
            let mut machine = machine.clone();
            change(&mut machine);
            Board::new(Arc::new(machine), vec![0_u8; 1 << 12], &[]).least_transfer_ps
        };
        assert_eq!(
            least_ps(&|_| ()),
            20_000 * 3 / 10 * 9 / 10,
            "the next of a queue, as short as jitter makes it"
        );
        assert_eq!(least_ps(&|machine| machine.costs.line.shared_ps = 5_000), 4_500, "a copy of the cluster");
        assert_eq!(least_ps(&|machine| machine.costs.line.occupancy_near_permille = 2_000), 13_500);
        assert_eq!(least_ps(&|machine| machine.costs.line.occupancy_far_permille = 10), 1_728);
        assert_eq!(least_ps(&|machine| machine.costs.line.occupancy_socket_permille = 10), 891);
    }

    #[test]
    fn the_last_call_for_an_alarm_counts_unless_one_rings_before() {
        let machine = Arc::new(presets()[0].machine());
        let mut board = Board::new(machine, vec![0_u8; 1 << 12], &[]);
        (0..10_000).for_each(|_| board.set_alarm(0, 1_000_000));
        assert_eq!(board.due.len(), 1);
        board.set_alarm(0, 2_000_000);
        board.set_alarm(0, 1_000_000);
        assert_eq!(board.due.len(), 3, "only calls for another time take memory");
        board.set_alarm_by(0, 2_000_000);
        assert_eq!(board.slots[0].alarm_ps, 1_000_000);
        board.set_alarm_by(0, 500_000);
        assert_eq!(board.slots[0].alarm_ps, 500_000);
    }
}
