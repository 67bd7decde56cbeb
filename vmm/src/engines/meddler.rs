//! Absences, interrupts and changed registers and flags at each instruction of a lock in turn, on a simulated machine: every run meets a window of
//! a few instructions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use haltkick_sim::board::{Step, Watching, Witness};
use haltkick_sim::{Cpu, General};

use crate::engines::lock_code::{LockCode, Part};
use crate::host::error::RunError;
use crate::host::random::SplitMix;
use crate::image::file::Image;
use crate::image::symbols::Symbol;
use crate::run::asked::OurGuest;

/// Interrupts and absences before an instruction, over all vCPUs: some of them meet it with others in the lock.
const MOST_EACH: u32 = 24;
/// A vCPU is met at one instruction in this many, by chance: the first to come to an instruction is not always the one.
const ONE_IN: u64 = 16;
/// Handlers at the same time that contend for their lock.
const CROWD: usize = 2;
const OFF_NS: u64 = 3_000;
/// Instructions of all vCPUs in a row without one that counts, after which there is none left to meet: a round of sections is shorter.
const ENOUGH: u32 = 1_000_000;
/// Instructions in a row without one that counts, after which calls that have not returned never will.
const TOO_MANY: u32 = 50 * ENOUGH;

/// Registers that a call may change; the argument, and what may be a token, aside.
const FREE: [General; 6] = [General::Rax, General::Rcx, General::R8, General::R9, General::R10, General::R11];
/// Registers of arguments, all of which a call may change, too.
const ARGUMENTS: [General; 3] = [General::Rdi, General::Rsi, General::Rdx];
/// Registers that a function keeps for its caller.
const KEPT: [General; 6] =
    [General::Rbx, General::Rbp, General::R12, General::R13, General::R14, General::R15];

/// Values of registers that are remembered: of the last few calls.
const SEEN: usize = 4 * (FREE.len() + ARGUMENTS.len());

/// Functions of the header that return nothing.
const VOID: [&str; 8] = [
    "hk_waits",
    "hk_wait",
    "hk_wait_u32",
    "hk_kick",
    "hk_yield_to",
    "hk_announce",
    "hk_count_event",
    "hk_at_point",
];

/// A call of one of the lock's functions that has not returned.
struct Call {
    /// The stack pointer at its first instruction.
    rsp: u64,
    /// Values of the registers [`KEPT`]: the caller's, and the ones that stand there instead.
    kept: [u64; KEPT.len()],
    filled: [u64; KEPT.len()],
    /// The stack pointer in a function of the lab's that the lock has called, and whether that returns nothing.
    called_from: Option<(u64, bool)>,
}

#[derive(Default)]
struct Victim {
    calls: Vec<Call>,
    /// It handles an interrupt: the instruction and the stack pointer with which it goes on afterwards.
    handles: Option<(u64, u64)>,
}

pub(super) struct Meddler {
    code: LockCode,
    /// The lock's own code, where it is an object.
    object: Option<Range<u64>>,
    /// It interrupts. Otherwise it takes vCPUs off.
    interrupts: bool,
    /// How often each instruction was met: by an interrupt, while [`CROWD`] other vCPUs handled one.
    met: BTreeMap<u64, u32>,
    victims: Vec<Victim>,
    random: SplitMix,
    /// Draws the contents of every other vCPU's registers: always the same at one place, so that a loop that waits for the right rubbish
    /// waits forever.
    constant: u64,
    /// Contents of registers when the lock's functions returned last: numbers and addresses that it works with.
    seen: [u64; SEEN],
    void: BTreeSet<u64>,
    /// vCPU 0 has let others start: they, and soon it, are in the workload.
    has_begun: bool,
    /// Instructions since the last one that counts.
    since: u32,
    /// Another witness, which changes nothing.
    other: Option<Watching>,
}

impl Meddler {
    pub(super) fn new(
        (asked, image): (OurGuest<'_>, &Image),
        interrupts: bool,
        other: Option<Watching>,
    ) -> Result<Self, RunError> {
        let is_void = |symbol: &&Symbol| VOID.contains(&symbol.name.rsplit("::").next().unwrap_or_default());
        let void = image.symbols().iter().filter(is_void).map(|symbol| symbol.address);
        // Trials with one seed draw different things.
        let mut random = SplitMix::new(asked.guest.seed ^ u64::from(asked.guest.vcpus) << 32);
        let constant = random.next();
        Ok(Self {
            code: LockCode::new(asked, image, true)?,
            object: image.object_addresses(&asked.ours.lock),
            interrupts,
            met: BTreeMap::new(),
            victims: (0..asked.guest.vcpus).map(|_| Victim::default()).collect(),
            random,
            constant,
            seen: [0; SEEN],
            void: void.collect(),
            has_begun: false,
            since: 0,
            other,
        })
    }

    /// Whether the vCPU that stands at this instruction of the lock is to be met there.
    fn meets(&mut self, number: usize, (rip, rsp): (u64, u64)) -> bool {
        let others = self.victims.iter().filter(|victim| victim.handles.is_some()).count();
        // Alone, a handler finds its lock free. One with a holder and another waiter before it uses all that the code behind it uses.
        let counts = !self.interrupts || others >= CROWD;
        let met = self.met.entry(rip).or_default();
        if !self.random.next().is_multiple_of(ONE_IN) || *met >= MOST_EACH && counts {
            return false;
        }
        if self.interrupts {
            self.victims[number].handles = Some((rip, rsp));
        }
        if counts {
            (*met, self.since) = (*met + 1, 0);
        }
        true
    }

    /// Whether the vCPU's registers are filled with the same at one place.
    fn is_constant(&self, number: usize) -> bool {
        (self.constant ^ number as u64) & 1 == 0
    }

    /// Fills registers, and flags, in which the lock can rely on nothing: at its first instruction, and when a function of the lab's returns to it.
    /// Gives the caller back its own.
    fn fill(&mut self, cpu: &mut Cpu, (rip, rsp): (u64, u64)) {
        let number = cpu.number as usize;
        let is_constant = self.is_constant(number);
        let victim = &mut self.victims[number];
        // The return has taken its address off the stack.
        while let Some(call) = victim.calls.pop_if(|call| rsp == call.rsp + 8) {
            let changed = FREE.into_iter().chain(ARGUMENTS).map(|register| cpu.general(register));
            self.seen.rotate_right(FREE.len() + ARGUMENTS.len());
            self.seen.iter_mut().zip(changed).for_each(|(seen, value)| *seen = value);
            for ((register, kept), filled) in KEPT.into_iter().zip(call.kept).zip(call.filled) {
                // One that the lock has changed stays changed.
                if cpu.general(register) == filled {
                    cpu.set_general(register, kept);
                }
            }
        }
        if self.since > ENOUGH && !is_constant {
            return;
        }
        let (void, seen, random) = (&self.void, &self.seen, &mut self.random);
        let mut fixed = is_constant.then(|| SplitMix::new(self.constant ^ rip));
        // Most loops look for zero or for a negative number, perhaps at several places: some vCPUs see one number at all places.
        let kind = (number as u64 / 2 + (self.constant >> 1) % 3) % 3;
        let constant = [Some(0), Some(u64::MAX), None][kind as usize].filter(|_| is_constant);
        let flags = fixed.as_mut().unwrap_or(random).next();
        let flags = constant.unwrap_or(flags);
        let mut set = |cpu: &mut Cpu, register: General| {
            let drawn = fixed.as_mut().unwrap_or(random).next();
            let filled = match drawn & 7 {
                _ if fixed.is_some() => constant.unwrap_or(drawn),
                0..4 => drawn >> 3 & 3,
                4 => u64::MAX,
                5 => drawn >> 3,
                _ => seen[(drawn >> 5) as usize % seen.len()].wrapping_add(drawn >> 3 & 3),
            };
            cpu.set_general(register, filled);
            filled
        };
        if let Some(gives) = self.code.entry(rip).map(|takes| !takes) {
            FREE.into_iter().for_each(|register| _ = set(cpu, register));
            let tokens = if gives { 3 } else { 1 };
            ARGUMENTS[tokens..].iter().for_each(|register| _ = set(cpu, *register));
            let kept = KEPT.map(|register| cpu.general(register));
            let filled = KEPT.map(|register| set(cpu, register));
            cpu.set_arithmetic_flags(flags);
            victim.calls.push(Call { rsp, kept, filled, called_from: None });
        }
        let (Some(object), Some(call)) = (&self.object, victim.calls.last_mut()) else { return };
        match call.called_from {
            None if !object.contains(&rip) && victim.handles.is_none() => {
                call.called_from = Some((rsp, void.contains(&rip)));
            }
            Some((called_from, returns_nothing)) if object.contains(&rip) && rsp == called_from + 8 => {
                call.called_from = None;
                // A result is in the first.
                let free = FREE[usize::from(!returns_nothing)..].iter().chain(&ARGUMENTS);
                free.for_each(|register| _ = set(cpu, *register));
                cpu.set_arithmetic_flags(flags);
            }
            _ => {}
        }
    }
}

impl Witness for Meddler {
    fn wants_steps(&self, at_ps: u64) -> bool {
        self.other.as_ref().is_some_and(|other| other.borrow().wants_steps(at_ps))
    }

    fn step(&mut self, step: &Step) {
        self.other.iter().for_each(|other| other.borrow_mut().step(step));
    }

    fn stands(&mut self, cpu: &mut Cpu, _: u64) -> Option<u64> {
        let (number, place) = (cpu.number as usize, (cpu.rip, cpu.general(General::Rsp)));
        cpu.asked_at = cpu.instructions + 1;
        self.has_begun |= number > 0;
        let is_of_lock = self.code.part(cpu.number, place.0, place.1) == Some(Part::Code);
        let victim = self.victims.get_mut(number).filter(|_| self.has_begun)?;
        self.since = self.since.saturating_add(1);
        // One that comes while another is handled is put off to its end: not here.
        if victim.handles.take_if(|back| *back == place).is_some() {
            return None;
        }
        let handles = victim.handles.is_some();
        self.fill(cpu, place);
        if handles || !is_of_lock || self.since > ENOUGH || !self.meets(number, place) {
            return None;
        }
        if self.interrupts {
            cpu.raise_nmi();
            return None;
        }
        Some(OFF_NS)
    }

    fn is_done(&self) -> bool {
        let calls = |victim: &Victim| !victim.calls.is_empty();
        let waits_for_rubbish =
            || (0..).zip(&self.victims).any(|(number, victim)| self.is_constant(number) && calls(victim));
        // The other witness looks to the end.
        self.other.is_none()
            && (self.since > TOO_MANY && !waits_for_rubbish()
                || self.since > ENOUGH && !self.victims.iter().any(calls))
    }
}
