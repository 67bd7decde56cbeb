//! The fabric between the CPUs of a board: memory and its lines, store buffers, and the time of accesses.
//!
//! One CPU runs at a time. It may run ahead of the others' clocks for as long as it keeps to lines that no other core has ever
//! had. Any other access takes place in the order of time: a CPU that has come beyond its horizon, the time of the next
//! thing that may happen elsewhere, stops before it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cpu::bus::{Access, Bus, Granted, LINE, Refused};
use crate::lines::{Lines, Need, State};
use crate::machine::loops::PauseFilter;
use crate::machine::{MOST_LATE_PS, Machine, Stores};

use super::Memory;
use super::witness::Step;

/// Why a CPU was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It was not.
    Nothing,
    /// Others come first.
    Turn,
    /// It needs a line, and the other one of its access, if that crosses into another line.
    Line { line: u64, need: Need, other: Option<u64> },
    /// Its stores have to become visible first.
    Drain,
    /// Its store buffer is full.
    Full,
    /// It has come to a PAUSE at the end of a quiet round.
    Pause,
    /// It has come to a PAUSE that leaves the guest.
    LongLoop,
}

/// A word that no line draws with: RDRAND has draws of its own.
const RANDOM: u64 = u64::MAX;

/// Instructions that a round may take.
const MOST_INSTRUCTIONS: u64 = 96;

/// Start of a CPU's run, and its limits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct From {
    pub(super) at_ps: u64,
    /// Completed in its life.
    pub(super) instructions: u64,
    /// Time of each instruction.
    pub(super) instruction_ps: u64,
    /// Up to then it may ask for lines: nothing happens elsewhere before.
    pub(super) horizon_ps: u64,
    /// Up to then it may use lines that it has: whatever happens elsewhere takes them away later.
    pub(super) reach_ps: u64,
    /// It stops at the first PAUSE from then on.
    pub(super) end_ps: u64,
}

/// Cost of an instruction that could not be completed. When it begins anew it meets its first accesses again, which it has paid:
/// if it paid twice, a later access would always be too late for its turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempt {
    /// Instructions completed before it.
    pub(super) instructions: u64,
    pub(super) cost_ps: u64,
}

/// A store that has been executed, and waits for its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Store {
    pub(super) physical: u64,
    pub(super) bytes: usize,
    pub(super) value: u64,
    /// When it was executed.
    pub(super) at_ps: u64,
}

impl Store {
    /// The line of its first byte.
    pub(super) fn line(&self) -> u64 {
        self.physical / LINE
    }
}

/// The store buffer of a CPU: stores in the order in which they were executed, and become visible. The CPU itself sees them at once.
type Buffer = VecDeque<Store>;

/// Value that a load of the CPU of `buffer` sees, if memory has `value`.
fn seen_over(buffer: &Buffer, physical: u64, bytes: usize, value: u64) -> u64 {
    let mut seen = value.to_le_bytes();
    let meets = |store: &&Store| {
        let behind = store.physical.wrapping_sub(physical);
        behind < bytes as u64 || behind.wrapping_neg() < store.bytes as u64
    };
    for store in buffer.iter().filter(meets) {
        for (offset, byte) in store.value.to_le_bytes().into_iter().enumerate().take(store.bytes) {
            let at = (store.physical + offset as u64).wrapping_sub(physical);
            if at < bytes as u64 {
                seen[at as usize] = byte;
            }
        }
    }
    u64::from_le_bytes(seen)
}

/// Lines that a round may read, to be taken for a spin loop's.
const MOST_READS: usize = 6;

/// A CPU's way from one PAUSE to the next. While it is quiet, no other CPU can have noticed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    /// It is not quiet.
    pub(super) loud: bool,
    /// Instructions completed when it began, and when that was.
    pub(super) instructions: u64,
    pub(super) began_ps: u64,
    /// Lines that it read, and how long after its beginning it did so first.
    pub(super) reads: Vec<(u64, u64)>,
    pub(super) clock: bool,
}

impl Round {
    /// It begins anew, at a time, when the CPU has completed `instructions`.
    pub(super) fn begin(&mut self, instructions: u64, began_ps: u64) {
        (self.loud, self.clock, self.instructions, self.began_ps) = (false, false, instructions, began_ps);
        self.reads.clear();
    }

    #[inline(always)]
    pub(super) fn reads(&mut self, line: u64, at_ps: u64) {
        if !self.loud && self.reads.iter().all(|read| read.0 != line) {
            self.reads.push((line, at_ps - self.began_ps));
            self.loud = self.reads.len() > MOST_READS;
        }
    }
}

/// The CPU that runs, and how it came to where it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Running {
    cpu: u32,
    own: State,
    from: From,
    /// Time charged in addition to instructions.
    extra_ps: u64,
    /// Extra cost of the current instruction so far, in this attempt and those before it.
    attempt: Attempt,
    /// As much of that as earlier attempts have paid.
    paid_ps: u64,
    /// Lines that have just come, for the instruction that waited for them.
    pub(super) granted: [Option<u64>; 2],
    /// Lines of the last access that crossed into another line, and instructions completed before it.
    pub(super) crossed: Option<(u64, [u64; 2])>,
    /// Instructions completed before the present access that writes, and when that began.
    now: u64,
    access_ps: u64,
    /// It has written a line that a CPU of its core is parked on, and goes no further than that instruction.
    told: Option<u64>,
    /// A part of the present instruction is complete, and since a line of `told` was written.
    in_parts: bool,
    part_told: bool,
    /// A trial, from a PAUSE on: an access that would change anything, or take more than a moment, stops it.
    pub(super) dry: bool,
    /// A trial of what is known to have been: the core had the lines then.
    pub(super) past: bool,
}

pub(super) struct Fabric<M> {
    pub(super) memory: M,
    pub(super) machine: Arc<Machine>,
    pub(super) lines: Lines,
    pub(super) buffers: Vec<Buffer>,
    pub(super) filters: Vec<PauseFilter>,
    /// Current round of each CPU.
    pub(super) rounds: Vec<Round>,
    pub(super) why: Why,
    /// The instruction of each CPU that was stopped.
    attempts: Vec<Attempt>,
    pub(super) running: Running,
    /// Lines that were stored to, and when, whose watchers have not been told.
    pub(super) written: Vec<(u64, u64)>,
    /// Number and starting time of the current instruction, if its stores wait in the buffer: all of them, if the line of one is not
    /// here, or they would become visible in another order.
    buffered: Option<(u64, u64)>,
    /// The current instruction so far, if a witness is told of it.
    pub(super) step: Option<Step>,
}

impl<M: Memory> Fabric<M> {
    pub(super) fn new(memory: M, machine: Arc<Machine>) -> Self {
        Self {
            lines: Lines::new(Arc::clone(&machine), memory.end()),
            buffers: vec![Buffer::default(); machine.topology.cpus() as usize],
            filters: vec![PauseFilter::default(); machine.topology.cpus() as usize],
            attempts: vec![Attempt::default(); machine.topology.cpus() as usize],
            rounds: vec![Round { loud: true, ..Round::default() }; machine.topology.cpus() as usize],
            memory,
            machine,
            why: Why::Nothing,
            running: Running::default(),
            written: Vec::new(),
            buffered: None,
            step: None,
        }
    }

    /// Starts `cpu` at a time, with its count of completed instructions.
    pub(super) fn begin(&mut self, cpu: u32, from: &From) {
        self.buffered = None;
        let before = std::mem::take(&mut self.attempts[cpu as usize]);
        let paid_ps = if before.instructions == from.instructions { before.cost_ps } else { 0 };
        let attempt = Attempt { instructions: from.instructions, cost_ps: 0 };
        self.running =
            Running { cpu, own: self.lines.own(cpu), from: *from, attempt, paid_ps, ..Running::default() };
        self.why = Why::Nothing;
    }

    pub(super) fn round(&self) -> &Round {
        &self.rounds[self.running.cpu as usize]
    }

    /// The CPU begins to run behind a PAUSE: a round begins.
    pub(super) fn begin_round(&mut self) {
        let From { instructions, at_ps, .. } = self.running.from;
        self.rounds[self.running.cpu as usize].begin(instructions, at_ps);
    }

    /// Another vCPU begins to run on `cpu`: it is not known where it is in its round, or in its instruction.
    pub(super) fn forget_round(&mut self, cpu: u32) {
        self.attempts[cpu as usize] = Attempt::default();
        self.rounds[cpu as usize].loud = true;
    }

    fn is_loud(&mut self) {
        self.rounds[self.running.cpu as usize].loud = true;
    }

    /// Time at which the CPU has completed `instructions`.
    pub(super) fn time_ps(&self, instructions: u64) -> u64 {
        let running = &self.running;
        running.from.at_ps
            + (instructions - running.from.instructions) * running.from.instruction_ps
            + running.extra_ps
    }

    /// The instruction at hand takes this much longer.
    #[inline]
    pub(super) fn charge(&mut self, now: u64, cost_ps: u64) {
        let running = &mut self.running;
        if running.attempt.instructions != now {
            (running.attempt, running.paid_ps) = (Attempt { instructions: now, cost_ps: 0 }, 0);
        }
        running.attempt.cost_ps += cost_ps;
        let paid_ps = running.paid_ps.min(cost_ps);
        running.paid_ps -= paid_ps;
        running.extra_ps += cost_ps - paid_ps;
    }

    /// The instruction at hand begins anew later.
    fn stop(&mut self, now: u64, why: Why) -> Granted {
        self.why = why;
        let Running { cpu, attempt, dry, .. } = self.running;
        if !dry && attempt.instructions == now {
            self.attempts[cpu as usize] = attempt;
        }
        Err(Refused)
    }

    /// Whether the CPU has come as far as it may, by instructions that take long.
    fn is_beyond_end(&self, now: u64, now_ps: u64) -> bool {
        let running = &self.running;
        now_ps > running.from.end_ps && (running.in_parts || now > running.from.instructions)
    }

    /// Whether others come before an access now to a line that this core has.
    fn is_ahead(&self, now: u64, line: u64) -> bool {
        // The owner of a line that leaves writes first what it may still write.
        let leaves = self.lines.is_leaving(line);
        let reach_ps = if leaves { self.running.from.horizon_ps } else { self.running.from.reach_ps };
        let now_ps = self.time_ps(now);
        now_ps > reach_ps && (!self.lines.is_quiet(now_ps, line) || self.is_beyond_end(now, now_ps))
    }

    fn asks_too_early(&self, now: u64) -> bool {
        self.time_ps(now) > self.running.from.horizon_ps
    }

    fn is_granted(&self, now: u64, line: u64) -> bool {
        now == self.running.from.instructions && self.running.granted.contains(&Some(line))
    }

    /// An access that needs a line at once.
    fn needs(&mut self, now: u64, line: u64, need: Need, extra_ps: u64) -> Granted {
        let cpu = self.running.cpu;
        let granted = self.is_granted(now, line) || self.running.past;
        if !granted && !self.lines.has(self.time_ps(now), cpu, line, need) {
            if self.is_beyond_end(now, self.time_ps(now)) {
                return self.stop(now, Why::Turn);
            }
            if !self.running.dry && self.lines.take_fresh(cpu, line) {
                self.is_loud();
                self.charge(now, self.machine.costs.line.memory_ps + extra_ps);
                return Ok(());
            }
            let early = self.asks_too_early(now);
            let other = self.other_line(now, line);
            return self.stop(now, if early { Why::Turn } else { Why::Line { line, need, other } });
        }
        if !granted && self.is_ahead(now, line) {
            return self.stop(now, Why::Turn);
        }
        let from_sibling = !self.running.dry && self.lines.hit(self.time_ps(now), cpu, line, need);
        let hit_ps =
            if from_sibling { self.machine.costs.line.sibling_ps } else { self.machine.costs.hit_ps };
        self.charge(now, hit_ps + extra_ps);
        self.rounds[cpu as usize].loud |= granted && !self.running.past || from_sibling;
        Ok(())
    }

    /// Does an access, as most are, to a line that only this CPU has ever had, or that it wrote last and its core alone has, unless
    /// something stands in its way. Returns whether it is done; [`Self::touch_any`] does the same for any line, and takes longer.
    #[inline(always)]
    fn touch_own(&mut self, now: u64, line: u64, access: Access) -> bool {
        let running = &self.running;
        let cpu = running.cpu as usize;
        let need = if access.writes() { Need::Write } else { Need::Read };
        let waits =
            need == Need::Write && (running.dry || self.buffered.is_some() || !self.buffers[cpu].is_empty());
        if waits || running.told.is_some() || self.is_granted(now, line) {
            return false;
        }
        let now_ps = self.time_ps(now);
        let is_beyond = now_ps > running.from.reach_ps;
        if is_beyond && self.is_beyond_end(now, now_ps) {
            return false;
        }
        if !self.lines.hit_own(running.own, line, need) {
            // Others have had the line: a witness is told of the access, and a late store waits.
            let is_seen = self.step.is_some() || self.machine.model.stores == Stores::Late;
            if is_seen || !self.lines.hit_kept(running.own, line, is_beyond.then_some(now_ps)) {
                return false;
            }
            if access != Access::Read {
                (self.running.now, self.running.access_ps) = (now, now_ps);
            }
        }
        let costs = &self.machine.costs;
        match access {
            Access::Write => {}
            Access::Atomic => self.charge(now, costs.hit_ps + costs.rmw_ps),
            _ => self.charge(now, costs.hit_ps),
        }
        let round = &mut self.rounds[cpu];
        if need == Need::Read {
            round.reads(line, now_ps)
        } else {
            round.loud = true
        }
        true
    }

    fn read(&mut self, now: u64, line: u64) -> Granted {
        // It sees what is there when it begins.
        let now_ps = self.time_ps(now);
        self.needs(now, line, Need::Read, 0)?;
        self.rounds[self.running.cpu as usize].reads(line, now_ps);
        Ok(())
    }

    /// A plain store: if its line is not here, it waits in the buffer, and the CPU goes on.
    fn write(&mut self, now: u64, line: u64) -> Granted {
        let cpu = self.running.cpu;
        self.is_loud();
        let waits = self.buffered.is_some_and(|(instructions, _)| instructions == now);
        let in_order = self.buffers[cpu as usize].is_empty() && !waits && !self.is_late(line);
        if in_order && (self.owns(self.time_ps(now), cpu, line) || self.lines.take_fresh(cpu, line)) {
            if self.is_ahead(now, line) {
                return self.stop(now, Why::Turn);
            }
            let now_ps = self.time_ps(now);
            self.lines.hit(now_ps, cpu, line, Need::Write);
            self.buffered = None;
            return Ok(());
        }
        self.buffer(now)
    }

    /// The line has been stored to by the CPU that runs.
    fn stored(&mut self, line: u64) {
        if self.lines.is_watched(self.running.cpu, line) {
            // The cost of an access follows its effect.
            self.written.push((line, self.running.access_ps));
            self.running.told.get_or_insert(self.running.now);
        }
    }

    fn buffer(&mut self, now: u64) -> Granted {
        if self.asks_too_early(now) {
            return self.stop(now, Why::Turn);
        }
        if self.buffers[self.running.cpu as usize].len() >= self.machine.costs.store_buffer {
            return self.stop(now, Why::Full);
        }
        self.buffered = Some((now, self.time_ps(now)));
        Ok(())
    }

    /// A load and a store by one instruction, without LOCK.
    fn modify(&mut self, now: u64, line: u64) -> Granted {
        self.is_loud();
        if self.buffers[self.running.cpu as usize].is_empty() && !self.is_late(line) {
            self.buffered = None;
            return self.needs(now, line, Need::Write, 0);
        }
        self.needs(now, line, Need::Read, 0)?;
        self.buffer(now)
    }

    /// Whether a plain store to the line becomes visible at once: one that the core's other thread wrote last takes `sibling-ns`.
    pub(super) fn owns(&self, now_ps: u64, cpu: u32, line: u64) -> bool {
        self.lines.is_as_read(cpu, line) && self.lines.has(now_ps, cpu, line, Need::Write)
    }

    /// Whether stores to the line wait in the buffer even if it is here.
    pub(super) fn is_late(&self, line: u64) -> bool {
        self.machine.model.stores == Stores::Late && !self.lines.is_private(line)
    }

    /// How long the first store of a buffer waits before its line is asked for.
    pub(super) fn late_ps(&self, cpu: u32, store: &Store) -> u64 {
        if !self.is_late(store.line()) {
            return 0;
        }
        self.lines.draw([u64::from(cpu), store.at_ps, store.physical]) % (MOST_LATE_PS + 1)
    }

    /// The other line of the access at hand to `line`, if it has one.
    fn other_line(&self, now: u64, line: u64) -> Option<u64> {
        let (_, lines) = self.running.crossed.filter(|(instructions, _)| *instructions == now)?;
        lines.contains(&line).then(|| if lines[0] == line { lines[1] } else { lines[0] })
    }

    /// A part in each, so that each becomes visible with its own line.
    #[cold]
    fn store_to_two_lines(&mut self, physical: u64, bytes: usize, value: u64) {
        let first = (LINE - physical % LINE) as usize;
        self.store(physical, first, value);
        self.store(physical + first as u64, bytes - first, value >> (8 * first));
    }
    /// No memory is there, and no core has a line of it: loads see zero, stores are lost.
    #[cold]
    fn outside(&mut self, now: u64) -> Granted {
        self.is_loud();
        self.charge(now, self.machine.costs.line.memory_ps);
        Ok(())
    }

    fn atomic(&mut self, now: u64, line: u64) -> Granted {
        if !self.buffers[self.running.cpu as usize].is_empty() {
            return self.stop(now, Why::Drain);
        }
        self.is_loud();
        self.buffered = None;
        self.needs(now, line, Need::Write, self.machine.costs.rmw_ps)
    }

    fn touch_any(&mut self, now: u64, line: u64, access: Access) -> Granted {
        if let Some(step) = &mut self.step
            && !self.lines.is_private(line)
        {
            step.note(line * LINE, access);
        }
        if access != Access::Read {
            (self.running.now, self.running.access_ps) = (now, self.time_ps(now));
        }
        // CPUs that this one has woken come first.
        let has_told = self.running.part_told || self.running.told.is_some_and(|told| told < now);
        match access {
            _ if has_told => self.stop(now, Why::Turn),
            // A trial only reads.
            _ if self.running.dry && (access.writes() || !self.lines.exists(line)) => {
                self.stop(now, Why::Turn)
            }
            _ if !self.lines.exists(line) => self.outside(now),
            Access::Walk | Access::Read => self.read(now, line),
            Access::Write => self.write(now, line),
            Access::Modify => self.modify(now, line),
            Access::Atomic => self.atomic(now, line),
        }
    }
}

impl<M: Memory> Bus for Fabric<M> {
    #[inline]
    fn touch(&mut self, now: u64, line: u64, access: Access) -> Granted {
        let line = line / LINE;
        if self.touch_own(now, line, access) { Ok(()) } else { self.touch_any(now, line, access) }
    }

    #[cold]
    fn crosses(&mut self, now: u64, lines: [u64; 2], access: Access) {
        self.running.crossed = Some((now, lines.map(|line| line / LINE)));
        if access == Access::Atomic && !self.running.dry {
            // No cache can hold both parts: they go to memory.
            self.charge(now, self.machine.costs.line.memory_ps);
        }
    }

    #[inline]
    fn load(&mut self, physical: u64, bytes: usize) -> u64 {
        let value = self.memory.load(physical, bytes);
        let buffer = &self.buffers[self.running.cpu as usize];
        if buffer.is_empty() { value } else { seen_over(buffer, physical, bytes, value) }
    }

    #[inline]
    fn store(&mut self, physical: u64, bytes: usize, value: u64) {
        if physical % LINE + bytes as u64 > LINE {
            return self.store_to_two_lines(physical, bytes, value);
        }
        match self.buffered {
            // A store across two pages may have no memory below one of them, whose line never comes.
            Some((_, at_ps)) if self.lines.exists(physical / LINE) => {
                self.buffers[self.running.cpu as usize].push_back(Store { physical, bytes, value, at_ps });
            }
            _ => {
                self.memory.store(physical, bytes, value);
                self.stored(physical / LINE);
            }
        }
    }

    fn clock(&mut self, now: u64) -> u64 {
        self.charge(now, self.machine.costs.rdtsc_ps);
        self.rounds[self.running.cpu as usize].clock = true;
        self.step.iter_mut().for_each(|step| step.clock = true);
        self.machine.ticks_at(self.time_ps(now))
    }

    fn random(&mut self, now: u64) -> Result<u64, Refused> {
        if self.running.dry {
            return self.stop(now, Why::Turn).map(|()| 0);
        }
        self.is_loud();
        // One generator serves all cores: it is about as far as memory.
        self.charge(now, self.machine.costs.line.memory_ps);
        Ok(self.lines.draw([RANDOM, self.running.cpu.into(), now]))
    }

    #[inline]
    fn pause(&mut self, now: u64) -> Granted {
        let begins_ps = self.time_ps(now);
        self.charge(now, self.machine.costs.pause_ps);
        if !self.running.dry && self.filters[self.running.cpu as usize].pause(begins_ps) {
            return self.stop(now, Why::LongLoop);
        }
        let round = self.round();
        if !round.loud && now - round.instructions <= MOST_INSTRUCTIONS {
            return self.stop(now, Why::Pause);
        }
        let behind_ps = self.time_ps(now + 1);
        self.rounds[self.running.cpu as usize].begin(now + 1, behind_ps);
        // A stop here is one behind the instruction.
        if behind_ps >= self.running.from.end_ps { self.stop(now, Why::Turn) } else { Ok(()) }
    }

    #[inline]
    fn element_done(&mut self) {
        (self.running.attempt.cost_ps, self.running.paid_ps) = (0, 0);
        (self.running.in_parts, self.running.part_told) = (true, self.running.told.is_some());
    }

    fn fence(&mut self, now: u64, drains: bool) -> Granted {
        if drains && !self.buffers[self.running.cpu as usize].is_empty() {
            return self.stop(now, if self.running.dry { Why::Turn } else { Why::Drain });
        }
        self.charge(now, self.machine.costs.fence_ps);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_sees_the_youngest_store_to_each_of_its_bytes() {
        let mut buffer = Buffer::default();
        assert_eq!(seen_over(&buffer, 0x100, 4, 0x1111_1111), 0x1111_1111);
        buffer.push_back(Store { physical: 0x102, bytes: 4, value: 0x2222_2222, at_ps: 0 });
        buffer.push_back(Store { physical: 0x103, bytes: 1, value: 0x33, at_ps: 0 });
        assert_eq!(seen_over(&buffer, 0x100, 4, 0x1111_1111), 0x3322_1111);
        assert_eq!(seen_over(&buffer, 0x104, 2, 0), 0x2222);
        assert_eq!(seen_over(&buffer, 0x106, 8, 5), 5);
    }
}
