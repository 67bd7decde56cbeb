//! Ranking of a lock's instructions by the cost of a preemption, from single attempts: each line of the lock with its worst instruction
//! in its worst situation.
//!
//! Each attempt has a control, an exit alone at the same moment, and counts by what it lost beyond that. A line costs more than the noise
//! if the mean of these differences is above 0, over all attempts at the line or over those at one of its instructions in one situation.

use std::collections::{BTreeMap, BTreeSet};

use haltkick_vmm::LOCK_SOURCES;
use haltkick_vmm::worst::{Cut, Effect, Kind, Occurrence};
use serde::Serialize;
use statrs::statistics::Statistics as _;

use crate::analysis::significance::{LEVEL, holm, p_of_mean};
use crate::analysis::statistics::{Estimate, median, sorted};

/// The situation in which a vCPU comes to an instruction.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Situation {
    /// Other vCPUs on their way to the lock; 3 stands for three or more.
    pub(crate) waiting: u32,
    /// Whether one of them has left its guest: most of them sleep.
    pub(crate) asleep: bool,
}

impl Situation {
    pub(crate) fn of(occurrence: &Occurrence) -> Self {
        Self { waiting: occurrence.waiting.min(3), asleep: occurrence.out > 0 }
    }

    pub(crate) fn words(self) -> String {
        let waiting = ["no vCPU waits", "1 waits", "2 wait", "3+ wait"][self.waiting.min(3) as usize];
        format!("{waiting}{}", if self.asleep { ", asleep" } else { "" })
    }
}

/// An instruction in a situation.
pub(crate) type Class = (u64, Situation);

/// A preemption to be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Planned {
    pub(crate) class: Class,
    /// The instruction writes to a line that more than one core has used.
    pub(crate) writes: bool,
    pub(crate) cut: Cut,
}

impl Planned {
    pub(crate) fn new(at: &Occurrence, kind: Kind) -> Self {
        let cut = Cut::new(at.vcpu, at.instructions, kind);
        Self { class: (at.rip, Situation::of(at)), writes: at.writes, cut }
    }
}

/// Preemptions in one run, in which the lock did as it should.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tried {
    pub(crate) seed: u64,
    pub(crate) members: Vec<Planned>,
    /// pCPU time that was lost, over the time that a vCPU was off.
    pub(crate) lost: Parts,
    pub(crate) effect: Effect,
    /// The lock just before, in words.
    pub(crate) state: Option<String>,
}

/// All that was tried, and what was seen of the runs without preemptions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tries {
    /// Single preemptions.
    pub(crate) preempted: Vec<Tried>,
    /// Controls by class and seed: lost time where there was an exit alone, at the same moment as an attempt.
    pub(crate) controls: BTreeMap<(Class, u64), Parts>,
    /// How often each instruction came by in each situation.
    pub(crate) seen: BTreeMap<Class, u64>,
    /// Share of all vCPU time spent at each instruction, summed over seeds.
    pub(crate) exposure: BTreeMap<u64, f64>,
    /// Instructions that were executed.
    pub(crate) reached: BTreeSet<u64>,
    pub(crate) seeds: u32,
}

/// Causes of lost time, over the time that the vCPU was off. Their sum is the lost time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Parts {
    /// pCPUs were idle.
    pub(crate) idle: f64,
    /// pCPUs were in the VMM: exits, and changes from one vCPU to another.
    pub(crate) vmm: f64,
    /// vCPUs ran and did not work: they spun, executed the lock, or waited for memory.
    pub(crate) guest: f64,
}

impl Parts {
    pub(crate) fn sum(self) -> f64 {
        self.idle + self.vmm + self.guest
    }

    /// These beyond those of `control`.
    pub(crate) fn beyond(self, control: Self) -> Self {
        let Self { idle, vmm, guest } = control;
        Self { idle: self.idle - idle, vmm: self.vmm - vmm, guest: self.guest - guest }
    }

    pub(crate) fn mean(all: impl ExactSizeIterator<Item = Self> + Clone) -> Self {
        let count = all.len().max(1) as f64;
        let mean = |part: fn(Self) -> f64| all.clone().map(part).sum::<f64>() / count;
        Self { idle: mean(|it| it.idle), vmm: mean(|it| it.vmm), guest: mean(|it| it.guest) }
    }
}

/// Source place of an instruction.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct SourcePlace {
    /// The function, without what was inlined into it.
    pub(crate) function: String,
    /// The source line, as file:line; null where the image does not tell.
    pub(crate) line: Option<String>,
    /// Lines of the lock that this one was inlined into, the innermost first.
    pub(crate) inlined_into: Vec<String>,
    /// Not the instruction itself belongs to the lock: it is the first one behind a call of the function that has taken it, which begins at
    /// the line.
    pub(crate) is_behind: bool,
    /// The instruction.
    pub(crate) instruction: String,
    /// The nearest named point in the source file of the line, with its distance in lines; null without the source.
    pub(crate) nearest_point: Option<String>,
}

/// A line without the folder of the locks' sources.
pub(crate) fn short(line: &str) -> &str {
    line.strip_prefix(LOCK_SOURCES).unwrap_or(line)
}

impl SourcePlace {
    /// The line with those that it was inlined into, without the folders that they share.
    pub(crate) fn lines(&self) -> String {
        let Some(line) = &self.line else { return "no line".into() };
        let name = |line: &String| line.rsplit('/').next().unwrap_or_default().to_owned();
        let into: String = self.inlined_into.iter().map(|line| format!(" < {}", name(line))).collect();
        format!("{}{into}{}", short(line), if self.is_behind { " (taken)" } else { "" })
    }
}

/// An instruction on the map of a lock.
#[derive(Clone, Debug)]
pub(crate) struct Heat {
    pub(crate) address: u64,
    pub(crate) place: SourcePlace,
    /// It was executed.
    pub(crate) is_reached: bool,
    /// The largest loss of all situations; `None`: it was not tried.
    pub(crate) lost: Option<f64>,
}

/// One line of a lock.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Row {
    /// 1 for the worst.
    pub(crate) rank: usize,
    /// The worst instruction of the line.
    pub(crate) address: u64,
    /// Its source place.
    #[serde(flatten)]
    pub(crate) place: SourcePlace,
    /// The situation in which it is worst; null where single situations do not stand out: all at the line together.
    pub(crate) situation: Option<Situation>,
    /// pCPU time that was lost in it beyond that of an exit alone at the same moment, over the time that the vCPU was off.
    pub(crate) lost: Estimate,
    /// The loss in seeds by which the situation was not chosen: the mean over seeds, each in the cell that is worst in the others; null
    /// with fewer than three seeds. `lost` is the largest of many figures, which chance makes larger.
    pub(crate) held_out: Option<f64>,
    /// Means of the causes.
    pub(crate) parts: Parts,
    /// The loss is no noise: the mean lies above that of the controls, by Student's test and Holm's procedure over all lines, or over all
    /// instructions and situations.
    pub(crate) beyond_noise: bool,
    /// It is noise only since many lines are looked at: more seeds may tell.
    pub(crate) in_doubt: bool,
    /// The longest that a vCPU waited for the lock, beyond the longest wait without the preemption: median, in microseconds.
    pub(crate) longest_wait_us: f64,
    /// Time of vCPUs that waited while no vCPU entered, beyond that without the preemption: median, in microseconds.
    pub(crate) blocked_us: f64,
    /// After this time no more was lost: median, in microseconds; null if half of the attempts did not heal.
    pub(crate) heals_us: Option<f64>,
    /// Share of all vCPU time that is spent on the line.
    pub(crate) exposure: f64,
    /// Part of the line in the loss by a preemption at a random moment, over the time that the vCPU is off.
    pub(crate) expected: f64,
    /// State of the lock just before the attempt that `replay` does again, as other vCPUs see it; null where it is not known.
    pub(crate) state: Option<String>,
    /// The attempt nearest to the middle: the file that does it again.
    pub(crate) replay: Option<String>,
    /// The attempt of `replay`, beyond its control.
    #[serde(skip)]
    pub(crate) example: Tried,
}

/// Effects of an exit alone at the same instructions.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Placebo {
    /// Attempts.
    pub(crate) n: usize,
    /// Middle of the lost time, over the time that a vCPU is off in the other attempts.
    pub(crate) median: f64,
    /// 95 % of the attempts lie between these two.
    pub(crate) band: [f64; 2],
}

/// How much of the lock was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Coverage {
    /// Instructions of the functions that the lock came to.
    pub(crate) instructions: usize,
    /// Instructions that were executed.
    pub(crate) executed: usize,
    /// Executed instructions before which others could notice a difference, or all that were executed if all were asked for.
    pub(crate) points: usize,
    /// Pairs of an instruction and a situation that came by.
    pub(crate) situations: usize,
    /// Pairs that were tried at least once.
    pub(crate) tried: usize,
    /// Source lines of the lock of which no instruction was executed.
    pub(crate) unreached: Vec<String>,
}

/// A preemption that broke the lock.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct BrokenLock {
    /// Source place of the vCPU.
    #[serde(flatten)]
    pub(crate) place: SourcePlace,
    /// The situation.
    pub(crate) situation: Situation,
    /// Fault in words.
    pub(crate) what: String,
    /// The guest hung; else it broke mutual exclusion, or worse.
    pub(crate) is_stuck: bool,
    /// The file that does it again.
    pub(crate) replay: String,
}

/// One preemption of a set.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Member {
    /// The vCPU.
    pub(crate) vcpu: u32,
    /// Source place of the vCPU.
    #[serde(flatten)]
    pub(crate) place: SourcePlace,
    /// The situation.
    pub(crate) situation: Situation,
    /// pCPU time that it loses by itself, over the time that a vCPU is off; null: alone it is never reached.
    pub(crate) alone: Option<f64>,
}

/// Preemptions in one run, of which each is needed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Set {
    /// pCPU time that was lost by all of them, over the time that one vCPU is off.
    pub(crate) lost: f64,
    /// The preemptions, in the order in which they were chosen.
    pub(crate) members: Vec<Member>,
    /// The file that does it again.
    pub(crate) replay: String,
}

/// The answer of `haltkick worst`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Worst {
    /// "haltkick.worst".
    pub(crate) schema: String,
    /// 1.
    pub(crate) schema_version: u32,
    /// The lock.
    pub(crate) lock: String,
    /// Its paravirtual form.
    pub(crate) pv: bool,
    /// The machine's name or file, as it was given.
    pub(crate) machine: String,
    /// pCPUs.
    pub(crate) pcpus: usize,
    /// vCPUs.
    pub(crate) vcpus: u32,
    /// How long a vCPU is off.
    pub(crate) for_us: f64,
    /// Its pCPU is gone with it, whose time does not count as lost.
    pub(crate) takes_pcpu: bool,
    /// How long each attempt is followed.
    pub(crate) horizon_us: f64,
    /// Seeds that were begun, of those asked for.
    pub(crate) seeds: u32,
    /// Seeds that were asked for.
    pub(crate) seeds_asked: u32,
    /// Whether all was tried that was asked for.
    pub(crate) is_complete: bool,
    /// Preemptions that were tried.
    pub(crate) attempts: usize,
    /// Effects of an exit alone; null if none was tried.
    pub(crate) placebo: Option<Placebo>,
    /// Loss by a preemption at a random moment, as far as it hits the lock, over the time that the vCPU is off.
    pub(crate) expected: f64,
    /// How much of the lock was tried.
    pub(crate) coverage: Coverage,
    /// Preemptions that broke the lock.
    pub(crate) broken: Vec<BrokenLock>,
    /// The worst sets found of two and more preemptions, the smallest sets first.
    pub(crate) sets: Vec<Set>,
    /// Lines of the lock, the worst first.
    pub(crate) rows: Vec<Row>,
}

impl Row {
    pub(crate) fn situation(&self) -> String {
        self.situation.map_or_else(|| "in all situations".into(), Situation::words)
    }
}

impl Set {
    /// Loss by all of its preemptions, each in a run of its own; `None`: one is reached only after others.
    pub(crate) fn apart(&self) -> Option<f64> {
        self.members.iter().map(|member| member.alone).sum()
    }
}

impl Worst {
    /// The largest loss found, beyond the noise.
    pub(crate) fn most(&self) -> f64 {
        let rows = self.rows.iter().filter(|row| row.beyond_noise).map(|row| row.lost.hodges_lehmann);
        rows.chain(self.sets.iter().map(|set| set.lost)).fold(0.0, f64::max)
    }
}

/// Chance of a false alarm among all lines, and among all instructions in their situations.
const LEVEL_OF_EACH: f64 = LEVEL / 2.0;

impl Tries {
    pub(crate) fn placebo(&self) -> Option<Placebo> {
        let sorted = self.of_controls();
        let last = sorted.len().checked_sub(1)?;
        let at = |share: f64| sorted[(share * last as f64).round() as usize];
        Some(Placebo { n: sorted.len(), median: at(0.5), band: [at(0.025), at(0.975)] })
    }

    /// Losses of the controls, ascending.
    fn of_controls(&self) -> Vec<f64> {
        sorted(self.controls.values().map(|lost| lost.sum()))
    }

    /// Standard deviation of the difference between two exits; none of fewer than two.
    fn noise(&self) -> Option<f64> {
        let losses = self.of_controls();
        (losses.len() > 1).then(|| (2.0 * losses.iter().variance()).sqrt())
    }

    /// Lines of the lock, the worst first, where `place` says where an instruction stands.
    pub(crate) fn rows(&self, place: &mut impl FnMut(u64) -> SourcePlace) -> Vec<Row> {
        let mut cells = self.cells();
        let (noise, is_compared) = (self.noise(), !self.controls.is_empty());
        let p_of = |cells: &[&Cell]| p_of_mean(&losses(cells), noise).filter(|_| is_compared);
        let p_of_cells: Vec<_> = cells.iter().map(|cell| p_of(&[cell])).collect();
        holm(&p_of_cells, LEVEL_OF_EACH).into_iter().for_each(|cell| cells[cell].stands_out = true);
        let mut lines: BTreeMap<String, Vec<&Cell>> = BTreeMap::new();
        for cell in &cells {
            let place = place(cell.class.0);
            let name = if place.line.is_some() { place.lines() } else { format!("{:#x}", cell.class.0) };
            lines.entry(name).or_default().push(cell);
        }
        let p_of_lines: Vec<_> = lines.values().map(|line| p_of(line)).collect();
        let beyond = holm(&p_of_lines, LEVEL_OF_EACH);
        let each = lines.values().zip(p_of_lines).enumerate();
        let row = |(index, (line, p)): (usize, (&Vec<&Cell>, Option<f64>))| {
            let mut row = self.row(line, beyond.contains(&index), place)?;
            row.in_doubt = !row.beyond_noise && p.is_some_and(|p| p <= LEVEL);
            Some(row)
        };
        let mut rows: Vec<Row> = each.filter_map(row).collect();
        let by_loss = |a: &Row, b: &Row| b.lost.hodges_lehmann.total_cmp(&a.lost.hodges_lehmann);
        // Two attempts that differ by much have a large mean, and show nothing.
        rows.sort_by(|a, b| b.beyond_noise.cmp(&a.beyond_noise).then(by_loss(a, b)));
        rows.iter_mut().zip(1..).for_each(|(row, rank)| row.rank = rank);
        rows
    }

    /// Notes the largest loss at each instruction of `map`.
    pub(crate) fn heat(&self, map: &mut [Heat]) {
        let cells = self.cells();
        for heat in map {
            let of_it = cells.iter().filter(|cell| cell.class.0 == heat.address);
            let losses = of_it.filter_map(|cell| Estimate::of(&losses(&[cell])));
            heat.lost = losses.map(|lost| lost.hodges_lehmann).max_by(f64::total_cmp);
        }
    }

    /// Attempts by class, beyond their controls. One whose control is missing is left out, unless there is none at all.
    fn cells(&self) -> Vec<Cell> {
        let mut cells: BTreeMap<Class, Vec<Tried>> = BTreeMap::new();
        let none = self.controls.is_empty().then(Parts::default);
        for tried in &self.preempted {
            let class = tried.members[0].class;
            if let Some(control) = self.controls.get(&(class, tried.seed)).copied().or(none) {
                let beyond = Tried { lost: tried.lost.beyond(control), ..tried.clone() };
                cells.entry(class).or_default().push(beyond);
            }
        }
        cells.into_iter().map(|(class, tried)| Cell { class, tried, stands_out: false }).collect()
    }

    /// The row of a line, which as a whole is beyond the noise or not.
    fn row(
        &self,
        line: &[&Cell],
        is_beyond: bool,
        place: &mut impl FnMut(u64) -> SourcePlace,
    ) -> Option<Row> {
        let each = line.iter().filter_map(|cell| Some((*cell, Estimate::of(&losses(&[*cell]))?)));
        // One attempt may be chance: those with more come first.
        let (worst, _) = each.max_by(|a, b| {
            let rank = |cell: &Cell, it: &Estimate| (cell.stands_out, it.n >= self.seeds.min(3) as usize);
            let by_rank = rank(a.0, &a.1).cmp(&rank(b.0, &b.1));
            by_rank.then(a.1.hodges_lehmann.total_cmp(&b.1.hodges_lehmann))
        })?;
        let as_a_whole = is_beyond && !worst.stands_out;
        let chosen = if as_a_whole { line } else { std::slice::from_ref(&worst) };
        let (tried, lost) = (all(chosen), Estimate::of(&losses(chosen))?);
        // Without controls nothing is known of the noise.
        let is_above = lost.interval.map_or(lost.hodges_lehmann, |interval| interval.low) > 0.0;
        let is_beyond_nothing = self.controls.is_empty() && is_above;
        let middle =
            |figure: fn(&Tried) -> f64| median(&tried.iter().map(|it| figure(it)).collect::<Vec<_>>());
        let heals = middle(|tried| tried.effect.heals_ns.map_or(f64::INFINITY, |ns| ns as f64 / 1e3));
        let example = *tried.iter().min_by(|a, b| {
            let off = |it: &Tried| (it.lost.sum() - lost.median).abs();
            off(a).total_cmp(&off(b))
        })?;
        let (address, _) = example.members[0].class;
        let addresses: BTreeSet<u64> = line.iter().map(|cell| cell.class.0).collect();
        Some(Row {
            rank: 0,
            address,
            expected: addresses.iter().map(|rip| self.expected(line, *rip)).sum(),
            exposure: addresses.iter().map(|rip| self.exposure_of(*rip)).sum(),
            place: place(address),
            situation: (!as_a_whole).then_some(worst.class.1),
            beyond_noise: is_beyond || worst.stands_out || is_beyond_nothing,
            in_doubt: false,
            lost,
            held_out: held_out(line),
            parts: Parts::mean(tried.iter().map(|it| it.lost)),
            longest_wait_us: middle(|tried| beyond_us(tried.effect.longest_wait_ns)),
            blocked_us: middle(|tried| beyond_us(tried.effect.blocked_ns)),
            heals_us: heals.is_finite().then_some(heals),
            state: example.state.clone(),
            replay: None,
            example: example.clone(),
        })
    }

    fn exposure_of(&self, rip: u64) -> f64 {
        self.exposure.get(&rip).map_or(0.0, |sum| sum / f64::from(self.seeds.max(1)))
    }

    /// Expected loss that an instruction adds, by a preemption at a random moment: its situations count as often as they came by.
    fn expected(&self, cells: &[&Cell], rip: u64) -> f64 {
        let (mut sum, mut weight) = (0.0, 0.0);
        for cell in cells.iter().filter(|cell| cell.class.0 == rip) {
            let seen = self.seen.get(&cell.class).map_or(0.0, |seen| *seen as f64);
            sum += seen * losses(&[*cell]).iter().mean();
            weight += seen;
        }
        if weight > 0.0 { self.exposure_of(rip) * sum / weight } else { 0.0 }
    }
}

/// A class with the attempts there, each by what it lost beyond its control.
struct Cell {
    class: Class,
    tried: Vec<Tried>,
    /// Whether they are beyond the noise by themselves.
    stands_out: bool,
}

fn all<'a>(cells: &[&'a Cell]) -> Vec<&'a Tried> {
    cells.iter().flat_map(|cell| &cell.tried).collect()
}

fn losses(cells: &[&Cell]) -> Vec<f64> {
    all(cells).iter().map(|it| it.lost.sum()).collect()
}

/// Fewest seeds that a loss is held out of.
const FEWEST_HELD_OUT: usize = 3;

/// The loss of a line in seeds that have not chosen its worst cell: each seed's loss in the cell that is worst by the others' mean, if
/// it was tried in that cell; the mean over seeds.
fn held_out(cells: &[&Cell]) -> Option<f64> {
    let seeds: BTreeSet<u64> = all(cells).iter().map(|it| it.seed).collect();
    let of_seed = |seed: &u64| {
        let parted = cells.iter().filter_map(|cell| {
            let (own, others): (Vec<&Tried>, Vec<&Tried>) =
                cell.tried.iter().partition(|it| it.seed == *seed);
            (own.len() == 1 && others.len() + 1 >= FEWEST_HELD_OUT.min(seeds.len()))
                .then(|| (Parts::mean(others.iter().map(|it| it.lost)).sum(), own[0].lost.sum()))
        });
        parted.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, own)| own)
    };
    let held: Vec<f64> = seeds.iter().filter_map(of_seed).collect();
    (held.len() >= FEWEST_HELD_OUT).then(|| held.iter().mean())
}

/// Microseconds of a figure that go beyond the one without the preemption.
fn beyond_us([with, without]: [u64; 2]) -> f64 {
    (with as f64 - without as f64) / 1e3
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _, rngs::ChaCha8Rng};

    use super::*;

    fn idle(idle: f64) -> Parts {
        Parts { idle, ..Parts::default() }
    }

    fn tried(seed: u64, (rip, waiting): (u64, u32), lost: f64) -> Tried {
        let class = (rip, Situation { waiting, asleep: false });
        let members = vec![Planned { class, writes: false, cut: Cut::new(0, 1, Kind::Exit) }];
        Tried { seed, members, lost: idle(lost), effect: Effect::default(), state: None }
    }

    fn place(rip: u64) -> SourcePlace {
        SourcePlace { line: Some(format!("lock.rs:{}", rip / 10)), ..SourcePlace::default() }
    }

    impl Tries {
        fn add(&mut self, seed: u64, at: (u64, u32), (lost, control): (f64, f64)) {
            let tried = tried(seed, at, lost);
            self.seeds = self.seeds.max(seed as u32 + 1);
            self.controls.insert((tried.members[0].class, seed), idle(control));
            self.preempted.push(tried);
        }
    }

    #[test]
    fn all_attempts_at_a_line_count_where_no_situation_stands_out() {
        let mut tries = Tries::default();
        for (seed, waiting) in (0..2).flat_map(|seed| (0..4).map(move |waiting| (seed, waiting))) {
            let sign = if (seed + waiting) % 2 == 0 { 1.0 } else { -1.0 };
            // By hand: t = 2.3 in each situation, with five degrees, and 4.4 in all, with eleven.
            tries.add(seed.into(), (10, waiting), (3.0 + 3.0 * sign, sign));
        }
        let rows = tries.rows(&mut place);
        assert!(rows[0].beyond_noise && rows[0].situation.is_none() && rows[0].lost.n == 8, "{rows:?}");
        // In one situation it would be chance.
        tries.preempted.retain(|tried| tried.members[0].class.1.waiting == 0);
        assert!(!tries.rows(&mut place)[0].beyond_noise);
    }

    #[test]
    fn a_lock_whose_preemptions_cost_nothing_raises_no_alarm() {
        // The level is 2.5 % of all locks together: of 200, ten and more have a chance of one in fifty at most.
        let alarms = (0..200).filter(|draws| {
            let mut rng = ChaCha8Rng::seed_from_u64(*draws);
            let mut uniform = move || (rng.random::<f64>() - 0.5) * 10.0;
            let mut tries = Tries::default();
            for seed in 0..[2, 3, 8, 20][*draws as usize % 4] {
                for class in 0..80 {
                    tries.add(seed, (class / 4 * 10, class as u32 % 4), (uniform(), uniform()));
                }
            }
            tries.rows(&mut place)[0].beyond_noise
        });
        let alarms = alarms.count();
        assert!(alarms < 10, "{alarms} false alarms of 200");
    }

    #[test]
    fn what_an_exit_costs_as_well_is_no_loss() {
        let mut tries = Tries::default();
        for seed in 0..12 {
            let noise = f64::from(seed as u32 % 5) / 10.0;
            tries.add(seed, (10, 0), (5.0 + noise, 5.1 - noise));
            tries.add(seed, (20, 0), (5.0 + noise, 0.1 - noise));
        }
        // One more attempt, whose control was not made.
        tries.preempted.push(tried(99, (10, 0), 1000.0));
        let rows = tries.rows(&mut place);
        let found: Vec<_> = rows.iter().map(|row| (row.address, row.beyond_noise, row.lost.n)).collect();
        assert_eq!(found, [(20, true, 12), (10, false, 12)]);
        assert!((rows[0].lost.hodges_lehmann - 5.2).abs() < 0.3, "{:?}", rows[0]);
    }

    #[test]
    fn a_line_ranks_by_its_worst_instruction_in_its_worst_situation() {
        let mut tries = Tries::default();
        for (seed, attempt, noisy) in [(0, 0.0, 4.0), (1, 0.1, 24.0), (2, 0.2, -10.0)] {
            tries.add(seed, (10, 0), (0.1 + attempt, 0.0));
            tries.add(seed, (11, 0), (0.2 + attempt, 0.0));
            tries.add(seed, (11, 2), (3.0 + attempt, 0.1));
            // The larger loss is within the noise, and ranks behind.
            tries.add(seed, (20, 1), (noisy, 0.0));
        }
        // A single attempt does not beat three.
        tries.add(3, (10, 3), (9.0, 0.0));
        tries.seeds = 3;
        tries.seen = [
            ((11, Situation { waiting: 0, asleep: false }), 3),
            ((11, Situation { waiting: 2, asleep: false }), 1),
        ]
        .into();
        tries.exposure = [(11, 0.3)].into();
        let rows = tries.rows(&mut place);
        let situation = |row: &Row| row.situation.map(|situation| situation.waiting);
        let ranked: Vec<_> = rows.iter().map(|row| (row.rank, row.address, situation(row))).collect();
        assert_eq!(ranked, [(1, 11, Some(2)), (2, 20, Some(1))]);
        assert!((rows[0].lost.hodges_lehmann - 3.0).abs() < 1e-9, "{rows:?}");
        assert_eq!([rows[0].beyond_noise, rows[1].beyond_noise], [true, false]);
        // A tenth of the time at the instruction, times the mean of both situations by how often they came by.
        assert!((rows[0].exposure - 0.1).abs() < 1e-9);
        assert!((rows[0].expected - 0.1 * (3.0 * 0.3 + 3.0) / 4.0).abs() < 1e-9, "{}", rows[0].expected);
        assert_eq!(rows[0].example.seed, 1);
        assert!((rows[0].parts.idle - 3.0).abs() < 1e-9 && rows[0].held_out == Some(3.0), "{rows:?}");
    }

    #[test]
    fn the_largest_of_equal_cells_is_no_larger_in_other_seeds() {
        // Ten cells of one line, each large in one seed of ten by chance alone.
        let mut tries = Tries { seeds: 10, ..Tries::default() };
        for seed in 0..10_u64 {
            for cell in 0..10 {
                let lost = if u64::from(cell) == seed { 10.0 } else { 1.0 };
                tries.preempted.push(tried(seed, (10, cell), lost));
            }
        }
        let rows = tries.rows(&mut place);
        // In the nine seeds that choose, the cells that were large there are the worst: never the held-out seed's own.
        assert_eq!(rows[0].held_out, Some(1.0), "{rows:?}");
        // A cell that is worse in all seeds stays so.
        let worse = tries.preempted.iter_mut().filter(|tried| tried.members[0].class.1.waiting == 3);
        worse.for_each(|tried| tried.lost = idle(7.0));
        assert_eq!(tries.rows(&mut place)[0].held_out, Some(7.0));
    }
}
