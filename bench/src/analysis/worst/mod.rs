//! Ranking of a lock's instructions by the cost of a preemption, from single attempts.

mod rank;

use std::collections::{BTreeMap, BTreeSet};

use haltkick_vmm::LOCK_SOURCES;
use haltkick_vmm::worst::{Effect, Occurrence};
use serde::Serialize;

use crate::analysis::statistics::Estimate;

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
        let waiting = match self.waiting {
            0 => "no vCPU waits".to_owned(),
            1 => "1 waits".to_owned(),
            many => format!("{many}{} wait", if many == 3 { "+" } else { "" }),
        };
        if self.asleep { waiting + ", asleep" } else { waiting }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Tried {
    pub(crate) rip: u64,
    pub(crate) situation: Situation,
    pub(crate) seed: u64,
    pub(crate) vcpu: u32,
    pub(crate) instructions: u64,
    /// pCPU time that was lost, over the time that the vCPU was off.
    pub(crate) lost: f64,
    pub(crate) parts: Parts,
    pub(crate) effect: Effect,
    /// The lock just before, in words.
    pub(crate) state: Option<String>,
}

/// An instruction in a situation with a seed, which is tried once.
pub(crate) type Moment = (u64, Situation, u64);

/// All that was tried, and what was seen of the runs without preemptions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tries {
    pub(crate) preempted: Vec<Tried>,
    /// Controls: lost time and its causes where there was an exit alone, at the same moment as an attempt.
    pub(crate) controls: BTreeMap<Moment, (f64, Parts)>,
    /// How often each instruction came by in each situation.
    pub(crate) seen: BTreeMap<(u64, Situation), u64>,
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
    /// That attempt.
    #[serde(skip)]
    pub(crate) example: usize,
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
