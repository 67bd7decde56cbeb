//! How many of the rounds that follow one are like it, although they differ in registers which count them.
//!
//! The instructions of a round are followed with all registers that differ from one round to the next. What an instruction makes of
//! such a register with constants is known for every later round, too: a sum, or flags, which a branch then reads. So it is known
//! in which round a branch decides otherwise for the first time. An addition of anything else is a count as well, if nothing more
//! depends on the register. Any other instruction that reads one makes the rounds unlike.

use std::sync::Arc;

use crate::cpu::flags::{DECIDING, Flags, mask};
use crate::cpu::op::{Effect, RflagsBits, Simple};
use crate::cpu::state::Stand;

/// Rounds that are looked ahead, where a counter decides something.
const MOST: u64 = 1024;

/// [`DECIDING`] flags, as the decoder numbers them.
const TESTED: u32 = RflagsBits::OF | RflagsBits::CF | RflagsBits::ZF | RflagsBits::SF;

/// Condition on the one flag that is not among them, without its lowest bit.
const PARITY: u8 = 5;

/// Registers that a spin loop counts its rounds in. After `n` rounds a register has grown by `n` times the step of one round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters(Vec<Counter>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counter {
    register: u8,
    /// Sum of what is added in each round.
    step: u64,
    /// Bits of the register that count; the others are zero.
    width: u32,
}

impl Counters {
    /// Most bytes on the heap for the counters of a loop.
    pub(super) const MOST_BYTES: usize = 16 * size_of::<Counter>();

    /// Stand of a CPU that is at `stand`, after `rounds` more.
    pub(super) fn after(&self, stand: &Stand, rounds: u64) -> Stand {
        let mut after = stand.clone();
        for counter in &self.0 {
            let place = &mut after.file[usize::from(counter.register)];
            *place = place.wrapping_add(counter.step.wrapping_mul(rounds)) & mask(counter.width);
        }
        after
    }

    /// Whether some number of rounds leads from `from` to `to`, but for flags: forwards or backwards.
    pub(super) fn lead(&self, from: &Stand, to: &Stand) -> bool {
        let bits = self.0.iter().fold(0, |bits, counter| bits | 1 << counter.register);
        let by = |counter: &Counter| {
            let [from, to] = [from, to].map(|stand| stand.file[usize::from(counter.register)]);
            to.wrapping_sub(from)
        };
        // All counters have one step, and have come as far. Counters of several steps are not looked into.
        let is_one = |counter: &Counter| {
            let first = &self.0[0];
            (counter.step, counter.width) == (first.step, first.width) && by(counter) == by(first)
        };
        from.differs_in(to).is_some_and(|differ| differ & !bits == 0) && self.0.iter().all(is_one)
    }
}

#[derive(Debug)]
pub(super) struct Alike {
    pub(super) counters: Arc<Counters>,
    /// Flags that the counters decide.
    decisions: Vec<Decision>,
    /// Flags after a round that differ from those after the one before. Each round sets them before it reads them.
    differing_flags: u64,
    /// The stand at which the round ended, and its instructions, if each amount that is counted is a constant.
    known: Option<(Stand, Vec<Effect>)>,
}

/// A register that another round finds changed.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// The register at the beginning of the round that it is made of, and the sum of what was added to that, if these are constants.
    is: Option<(u8, u64)>,
    /// The amount that a round adds.
    step: u64,
    width: u32,
}

impl Counted {
    fn of_width(self, width: u32) -> Self {
        Self { width: width.min(self.width), ..self }
    }

    /// Value in a round that began at `begin`.
    fn value(&self, begin: &Stand) -> Option<u64> {
        let (register, plus) = self.is?;
        Some(begin.file[usize::from(register)].wrapping_add(plus) & mask(self.width))
    }
}

/// A question about a register's lowest `width` bits.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Test(u64),
    Compare(u64),
    /// It is the second of the two.
    CompareTo(u64),
    Zero,
}

/// Flags that a branch may read.
#[derive(Clone, Copy, Debug)]
struct Decision {
    counted: Counted,
    asked: Asked,
    width: u32,
    /// They are these of [`DECIDING`].
    told: u64,
}

impl Decision {
    /// The flags with this value of the register.
    fn of(asked: Asked, width: u32, value: u64) -> u64 {
        let value = value & mask(width);
        let (first, second) = match asked {
            Asked::Test(bits) => (value & bits, 0),
            Asked::Compare(with) => (value, with),
            Asked::CompareTo(first) => (first, value),
            // No other flag of the sum is known.
            Asked::Zero => (u64::from(value != 0), 0),
        };
        // Shifted up, numbers of any width give these flags.
        let mut flags = Flags::default();
        flags.subtract::<64>(first << (64 - width), second << (64 - width), 0);
        flags.arithmetic() & DECIDING
    }

    /// Rounds after one that began at `begin` that come to the same flags for certain, as the register does not come to a value at which
    /// they may turn: at most [`MOST`], and perhaps fewer than there are.
    fn stays(&self, begin: &Stand) -> u64 {
        let top = 1_u64 << (self.width - 1);
        // Flags depend on the value up to a power of two.
        let (bits, turns) = match self.asked {
            Asked::Test(bits) if bits & bits.wrapping_add(1) != 0 => return 0,
            Asked::Test(bits) => (bits, [0, top & bits, 0, 0]),
            Asked::Compare(with) => (mask(self.width), [with, with.wrapping_add(top), 0, top]),
            Asked::CompareTo(first) => (mask(self.width), [first, first.wrapping_add(top + 1), 0, top]),
            Asked::Zero => (mask(self.width), [0; 4]),
        };
        let Some(value) = self.counted.value(begin).filter(|_| self.counted.width >= self.width) else {
            return 0;
        };
        if !self.is_as_told(begin, 0) {
            return 0;
        }
        let (up, down) = (self.counted.step & bits, self.counted.step.wrapping_neg() & bits);
        if up == 0 {
            return MOST;
        }
        let rounds_to = |turn: u64| match up <= down {
            true => (turn.wrapping_sub(value) & bits).saturating_sub(1) / up,
            false => (value.wrapping_sub(turn) & bits).saturating_sub(1) / down,
        };
        turns.into_iter().map(rounds_to).min().unwrap_or(0).min(MOST)
    }

    /// Whether a round that began `rounds` rounds after `begin` comes to the same flags.
    fn is_as_told(&self, begin: &Stand, rounds: u64) -> bool {
        let Counted { step, width, .. } = self.counted;
        self.counted.value(begin).is_some_and(|value| {
            let value = value.wrapping_add(step.wrapping_mul(rounds)) & mask(width);
            Self::of(self.asked, self.width, value) == self.told
        })
    }
}

/// A round, as far as it was followed.
#[derive(Clone, Debug)]
struct Followed<'a> {
    begin: &'a Stand,
    end: &'a Stand,
    /// Registers that have their last values of this round.
    kept: u16,
    counted: [Option<Counted>; 16],
    /// The registers in `counted`.
    bits: u16,
    /// Flags that were set by a register in `counted`, and may be others in another round.
    differing_flags: u32,
    /// Flags that were set by such a register last, and are these where its decision is.
    tested: Option<u64>,
    /// The sum that the last addition with a constant came to, until other flags are set.
    sum: Option<(Counted, u32)>,
    decisions: Vec<Decision>,
}

impl Alike {
    /// Looks for what makes rounds differ that are like one of the instructions `round`, which led from `last` to `here`. `None`: even
    /// the next may be another.
    pub(super) fn after(last: &Stand, here: &Stand, round: &[Effect]) -> Option<Self> {
        let differ = last.differs_in(here).filter(|differ| *differ != 0)?;
        let step = |register: usize| here.file[register].wrapping_sub(last.file[register]);
        let begin = |register: usize, width: u32| {
            let counted = Counted { is: Some((register as u8, 0)), step: step(register), width };
            (differ >> register & 1 != 0).then_some(counted)
        };
        let first = Followed::from((last, here), std::array::from_fn(|register| begin(register, 64)), 0)
            .through(round)?;
        // As rounds do that come after such a one.
        let width = |register: usize| first.counted[register].map_or(64, |counted| counted.width);
        let counted = std::array::from_fn(|register| begin(register, width(register)));
        let end = Followed::from((last, here), counted, first.differing_flags).through(round)?;
        let as_found = |register: usize| match end.counted[register] {
            Some(counted) => {
                counted.value(last).is_none_or(|value| value == here.file[register])
                    && (counted.step ^ step(register)) & mask(counted.width) == 0
                    && differ >> register & 1 != 0
            }
            None => differ >> register & 1 == 0,
        };
        let differing_flags = bits_of(end.differing_flags);
        if !(0..16).all(as_found) || (last.rflags ^ here.rflags) & !differing_flags != 0 {
            return None;
        }
        let counters = (0..).zip(&end.counted).filter_map(|(register, counted)| {
            counted.map(|Counted { step, width, .. }| Counter { register, step, width })
        });
        let is_known = end.counted.iter().flatten().all(|counted| counted.is.is_some());
        Some(Self {
            counters: Arc::new(Counters(counters.collect())),
            known: is_known.then(|| (here.clone(), round.to_vec())),
            decisions: end.decisions,
            differing_flags,
        })
    }

    /// The counters never decide anything, and all flags after a round are those after the one before.
    pub(super) fn decides_nothing(&self) -> bool {
        self.decisions.is_empty() && self.differing_flags == 0
    }

    /// Rounds after one that began at `last`, whose instructions were followed, until a decision comes out otherwise.
    pub(super) fn rounds_after(&self, last: &Stand) -> u64 {
        let is_as_told = |round: &u64| self.decisions.iter().all(|it| it.is_as_told(last, *round));
        let certain = self.decisions.iter().map(|it| it.stays(last)).min().unwrap_or(MOST);
        certain + (certain + 1..=MOST).take_while(is_as_told).count() as u64
    }

    /// Whether a round of the instructions `round` is such a one, which led from `last` to `here`: all that it found is the same, but
    /// for counters. So are the rounds after it, as long as memory is.
    pub(super) fn is_again(&self, last: &Stand, here: &Stand, round: &[Effect]) -> bool {
        let Some((then, effects)) = &self.known else { return false };
        self.counters.lead(then, here)
            && (then.rflags ^ here.rflags) & !self.differing_flags == 0
            && self.decisions.iter().all(|it| it.is_as_told(last, 0))
            && effects == round
    }
}

impl<'a> Followed<'a> {
    fn from(
        (begin, end): (&'a Stand, &'a Stand),
        counted: [Option<Counted>; 16],
        differing_flags: u32,
    ) -> Self {
        let registers = (0..16).filter(|register: &usize| counted[*register].is_some());
        let bits = registers.fold(0, |bits, register| bits | 1 << register);
        let (tested, sum) = (None, None);
        Self { begin, end, kept: 0, counted, bits, differing_flags, tested, sum, decisions: Vec::new() }
    }

    fn through(mut self, round: &[Effect]) -> Option<Self> {
        for effect in round {
            self.reads_flags(effect)?;
            self.goes_on(effect)?;
        }
        Some(self)
    }

    fn at(&self, register: u8) -> Option<Counted> {
        self.counted[usize::from(register)]
    }

    fn set(&mut self, register: u8, counted: Option<Counted>) {
        self.bits = self.bits & !(1 << register) | u16::from(counted.is_some()) << register;
        self.counted[usize::from(register)] = counted;
    }

    /// Notes a question about a register, which has the same answer in other rounds until the counter turns it; returns the answer.
    fn decides(&mut self, counted: Counted, asked: Asked, width: u32) -> Option<u64> {
        let told = Decision::of(asked, width, counted.value(self.begin)?);
        self.decisions.push(Decision { counted, asked, width, told });
        Some(told)
    }

    /// An instruction may read flags that are the same in other rounds, or whether a sum is zero.
    fn reads_flags(&mut self, effect: &Effect) -> Option<()> {
        let differing = effect.flags_read & self.differing_flags;
        if differing == 0 {
            return Some(());
        }
        let (sum, width) = self.sum.filter(|_| differing == RflagsBits::ZF)?;
        self.decides(sum, Asked::Zero, width)?;
        self.differing_flags &= !RflagsBits::ZF;
        Some(())
    }

    fn goes_on(&mut self, effect: &Effect) -> Option<()> {
        if effect.writes & self.kept != 0 {
            return None;
        }
        if effect.reads & self.bits != 0 {
            return self.computes(effect);
        }
        if effect.writes & self.bits != 0 {
            (0..16)
                .filter(|register| effect.writes >> register & 1 != 0)
                .for_each(|register| self.set(register, None));
        }
        self.differing_flags &= !effect.flags_settled;
        if effect.flags_changed != 0 {
            (self.tested, self.sum) = (None, None);
        }
        Some(())
    }

    /// An instruction that reads one of the registers.
    fn computes(&mut self, effect: &Effect) -> Option<()> {
        match effect.simple {
            Some(Simple::Add { to, from, plus, width }) => {
                let counted = self.at(from)?;
                if plus != 0 && width > counted.width {
                    // The sum goes beyond where the register begins anew.
                    return None;
                }
                let is = counted.is.map(|(register, sum)| (register, sum.wrapping_add(plus)));
                let sum = Counted { is, ..counted }.of_width(width);
                self.set(to, Some(sum));
                if effect.flags_changed != 0 {
                    self.differing_flags |= effect.flags_changed;
                    (self.tested, self.sum) = (None, Some((sum, width)));
                }
            }
            Some(Simple::Test { register, mask, width }) => {
                self.tests(register, Asked::Test(mask), width, effect)?;
            }
            Some(Simple::Compare { register, with, width }) => {
                self.tests(register, Asked::Compare(with), width, effect)?;
            }
            Some(Simple::CompareBoth { first, second, width }) => {
                let (counts, other) =
                    if self.at(first).is_some() { (first, second) } else { (second, first) };
                if self.at(other).is_some() {
                    return None;
                }
                // The other register is the same in each round. Its value is that at the end, unless it is written until then.
                self.kept |= 1 << other;
                let value = self.end.file[usize::from(other)] & mask(width);
                let asked = if counts == first { Asked::Compare(value) } else { Asked::CompareTo(value) };
                self.tests(counts, asked, width, effect)?;
            }
            Some(Simple::Select { to, from, condition, width }) => {
                let mut flags = Flags::default();
                flags.set_arithmetic(self.tested?);
                if condition >> 1 == PARITY {
                    return None;
                }
                let chosen = if flags.holds(condition) { self.at(from) } else { self.at(to) };
                self.set(to, chosen.map(|chosen| chosen.of_width(width)));
            }
            Some(Simple::Count { register, width }) if effect.reads & self.bits == 1 << register => {
                let counted = Counted { is: None, ..self.at(register)? };
                self.set(register, Some(counted.of_width(width)));
                self.differing_flags |= effect.flags_changed;
                (self.tested, self.sum) = (None, None);
            }
            _ => return None,
        }
        Some(())
    }

    fn tests(&mut self, register: u8, asked: Asked, width: u32, effect: &Effect) -> Option<()> {
        let tested = self.decides(self.at(register)?, asked, width)?;
        (self.tested, self.sum) = (Some(tested), None);
        let changed = effect.flags_changed;
        self.differing_flags = self.differing_flags & !changed | changed & !TESTED;
        Some(())
    }
}

/// Flags of the decoder as bits of RFLAGS.
fn bits_of(flags: u32) -> u64 {
    const PLACES: [(u32, u32); 6] = [
        (RflagsBits::CF, 0),
        (RflagsBits::PF, 2),
        (RflagsBits::AF, 4),
        (RflagsBits::ZF, 6),
        (RflagsBits::SF, 7),
        (RflagsBits::OF, 11),
    ];
    PLACES.iter().filter(|(flag, _)| flags & flag != 0).fold(0, |bits, (_, place)| bits | 1 << place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::state::{Cpu, Registers};

    const ALL: u32 = TESTED | RflagsBits::AF | RflagsBits::PF;
    const RAX: u8 = 0;
    const RCX: u8 = 1;

    fn stand(rax: u64, rcx: u64) -> Stand {
        let mut stand = Cpu::new(0, &Registers::default()).stand();
        stand.file[..2].copy_from_slice(&[rax, rcx]);
        stand
    }

    fn add(to: u8, from: u8, width: u32) -> Effect {
        Effect {
            reads: 1 << from,
            writes: 1 << to,
            simple: Some(Simple::Add { to, from, plus: 1, width }),
            ..Effect::default()
        }
    }

    fn test(mask: u64) -> Effect {
        Effect {
            reads: 1 << RCX,
            flags_changed: ALL,
            flags_settled: ALL,
            simple: Some(Simple::Test { register: RCX, mask, width: 8 }),
            ..Effect::default()
        }
    }

    const SETTLES: Effect =
        Effect { reads: 0, writes: 0, flags_read: 0, flags_changed: ALL, flags_settled: ALL, simple: None };

    #[test]
    fn rounds_that_are_not_looked_at_would_be_as_told() {
        let values = [0, 1, 2, 7, 100, 126, 127, 128, 129, 200, 254, 255];
        let asked = values
            .into_iter()
            .flat_map(|it| [Asked::Test(it), Asked::Compare(it), Asked::CompareTo(it), Asked::Zero]);
        let mut certain = 0;
        for (asked, value, step) in asked.flat_map(|asked| {
            (0..256)
                .flat_map(move |value| [1, 2, 3, 200, 255, 256, u64::MAX].map(|step| (asked, value, step)))
        }) {
            let begin = stand(0, value);
            for (width, told_at) in [(8, value), (32, value), (64, value), (8, value + 1)] {
                let counted = Counted { is: Some((RCX, 0)), step, width };
                let told = Decision::of(asked, 8, told_at);
                let decision = Decision { counted, asked, width: 8, told };
                let stays = decision.stays(&begin);
                let all = (1..=stays).all(|rounds| decision.is_as_told(&begin, rounds));
                assert!(all, "{asked:?}, {value}, {step}: {stays}");
                certain += stays;
            }
        }
        assert!(certain > 100_000, "{certain}");
    }

    #[test]
    fn a_bound_in_a_register_counts_if_it_stays_there() {
        let compare = |first, second| Effect {
            reads: 1 << RAX | 1 << RCX,
            flags_changed: ALL,
            flags_settled: ALL,
            simple: Some(Simple::CompareBoth { first, second, width: 32 }),
            ..Effect::default()
        };
        let load = Effect { writes: 1 << RAX, ..Effect::default() };
        let rounds = |round: &[Effect]| {
            Alike::after(&stand(9, 4), &stand(9, 5), round).map(|alike| alike.rounds_after(&stand(9, 4)))
        };
        let count = add(RCX, RCX, 32);
        assert_eq!(rounds(&[load, count, compare(RCX, RAX), SETTLES]), Some(3), "the fourth compares 9");
        assert_eq!(rounds(&[load, count, compare(RAX, RCX), SETTLES]), Some(3));
        assert_eq!(rounds(&[count, compare(RCX, RAX), load, SETTLES]), None, "which bound is not known");
    }

    #[test]
    fn a_count_of_unknown_amounts_is_never_taken_for_the_same_again() {
        let simple = Some(Simple::Count { register: RCX, width: 64 });
        let counts = Effect { simple, ..add(RCX, RCX, 64) };
        let alike = Alike::after(&stand(0, 4), &stand(0, 9), &[counts, SETTLES]).expect("it counts");
        assert!(alike.decides_nothing() && !alike.is_again(&stand(0, 9), &stand(0, 14), &[counts, SETTLES]));
        assert!(Alike::after(&stand(0, 4), &stand(0, 9), &[counts, test(15), SETTLES]).is_none());
    }

    #[test]
    fn a_round_that_decides_otherwise_is_no_such_one_again() {
        let round = [add(RCX, RCX, 64), test(8), SETTLES];
        let alike = Alike::after(&stand(0, 4), &stand(0, 5), &round).expect("it counts");
        let is_again = |last| alike.is_again(&stand(0, last), &stand(0, last + 1), &round);
        assert_eq!([5, 6, 7, 14, 15].map(is_again), [true, true, false, false, true]);
        let [last, here] = [stand(0, 5), stand(0, 6)];
        assert!(!alike.is_again(&last, &here, &[add(RCX, RCX, 64), SETTLES]), "another way");
        assert!(!alike.is_again(&last, &stand(7, 6), &round), "another register");
    }

    #[test]
    fn a_sum_wider_than_its_counter_makes_rounds_unlike() {
        let after = |width| {
            let round = [add(RCX, RCX, 32), add(RAX, RCX, width), SETTLES];
            Alike::after(&stand(6, 5), &stand(7, 6), &round)
        };
        assert!(after(32).is_some() && after(64).is_none());
    }
}
