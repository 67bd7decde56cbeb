//! Published figures next to ours.
//!
//! An interval that contains the published value agrees with it by vagueness as well as by being right: one of 1.05 to 8
//! contains nearly everything. So agreement is equivalence: the whole interval must lie within a margin around the
//! published value. Where it lies partly inside and partly outside, more blocks would tell, and about how many is said.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::compared::{Pair, Placed};
use super::{Comparison, Row, Setting, Summary};
use crate::analysis::rate;
use crate::analysis::statistics::{Estimate, Interval};
use crate::experiment::measure::Measure;
use crate::experiment::published::{At, Ours, Published};
use crate::record::Record;
use crate::record::figures::{ACQUISITIONS, LOCK_CPU_SHARE, WINDOW};
use crate::record::place::{BESIDE, Role};

/// A published figure and ours.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Reproduced {
    /// The row of the experiment's file.
    pub(crate) published: Published,
    /// Our figure; null if there is none.
    pub(crate) ours: Option<Estimate>,
    /// Settings at which ours was measured.
    pub(crate) setting: BTreeMap<String, String>,
    /// pCPUs here; null without runs.
    pub(crate) pcpus: Option<usize>,
    /// vCPUs for each pCPU here, those of all guests; null without a figure.
    pub(crate) ratio: Option<f64>,
    /// Our control, which must show no difference.
    pub(crate) control: Option<Estimate>,
    /// A letter for each aspect that is as it was there: L lock, R ratio, A arrangement, W work; - if not, ? if not published.
    pub(crate) like: String,
    /// Whether ours agrees.
    pub(crate) agreement: Agreement,
}

/// The experiment's rows. `placed` are the records that `summary` was made of.
pub(super) fn published(summary: &Summary, placed: &Placed<'_>) -> Vec<Reproduced> {
    let rows = summary.outline.published.iter();
    rows.map(|row| Results { summary, placed }.reproduced(row)).collect()
}

struct Results<'a> {
    summary: &'a Summary,
    placed: &'a Placed<'a>,
}

impl Results<'_> {
    fn reproduced(&self, row: &Published) -> Reproduced {
        let found = self.figure(&row.ours);
        // Machines of a grid differ in their pCPUs.
        let is_of_ours = |it: &&Row| found.as_ref().is_none_or(|(_, setting, _)| it.setting == **setting);
        let pcpus = self.summary.rows.iter().find(is_of_ours).map(|it| it.pcpus);
        let is_beyond = pcpus.is_some_and(|here| here < row.needs_pcpus as usize);
        let found = found.filter(|_| !is_beyond);
        let ratio = found.as_ref().and_then(|(_, setting, arm)| self.vcpus_per_pcpu(setting, arm));
        let control = match &row.control {
            Some(control) => self.comparison(&control.compare, &control.at),
            None => self.summary.control.as_ref(),
        };
        let setting = found.as_ref().map_or_else(Setting::new, |(_, setting, _)| (*setting).clone());
        let ours = found.and_then(|(ours, ..)| ours);
        let is_share = matches!(row.ours, Ours::Share { .. });
        let agreement = match is_beyond {
            true => Agreement::NeedsPcpus { pcpus: row.needs_pcpus },
            false => Agreement::of(&row.value, row.within, ours.as_ref(), is_share),
        };
        Reproduced {
            published: row.clone(),
            setting,
            pcpus,
            control: control.filter(|_| !is_beyond).and_then(|control| control.ratio.clone()),
            like: like(row, ratio),
            agreement,
            ratio,
            ours,
        }
    }

    /// A figure with the setting and the arm that it is of.
    fn figure<'r>(&'r self, ours: &'r Ours) -> Option<(Option<Estimate>, &'r Setting, &'r str)> {
        match ours {
            Ours::Ratio { compare, at } => {
                let it = self.comparison(compare, at)?;
                Some((it.ratio.clone(), &it.setting, &it.arm))
            }
            Ours::Slowdown { arm, at, over } => {
                let slow = self.setting(arm, at)?;
                let fast = self.setting(arm, over);
                let estimate = fast.and_then(|fast| {
                    let cells = [fast, slow].map(|setting| (setting, arm.as_str(), false));
                    let pairs = self.placed.pairs(&Measure::Throughput, cells);
                    rate::estimate(&pairs.iter().filter_map(Pair::ratio).collect::<Vec<_>>())
                });
                Some((estimate, slow, arm))
            }
            Ours::Share { share, among, arm, at } => {
                let setting = self.setting(arm, at)?;
                Some((self.share(share, among.as_deref(), arm, setting), setting, arm))
            }
        }
    }

    fn comparison(&self, name: &str, at: &At) -> Option<&Comparison> {
        self.summary.comparisons.iter().find(|it| it.name == name && has(&it.setting, at))
    }

    /// The setting of an arm at this point of the grid.
    fn setting(&self, arm: &str, at: &At) -> Option<&Setting> {
        let mut rows = self.summary.rows.iter().filter(|row| row.role == Role::Arm && row.arm == arm);
        rows.find(|row| has(&row.setting, at)).map(|row| &row.setting)
    }

    fn share(&self, share: &str, among: Option<&str>, arm: &str, setting: &Setting) -> Option<Estimate> {
        let runs: Vec<&Record> = self.placed.of(setting, arm, false).map(|(_, record)| record).collect();
        let in_run = |record: &&Record| match share {
            "lock-cpu" => record.figure(LOCK_CPU_SHARE),
            _ => {
                let waited_ns = record.figure("wait_mean_ns")? * record.figure(ACQUISITIONS)?;
                Some(waited_ns / (f64::from(record.settings.vcpus()) * record.figure(WINDOW)?))
            }
        };
        let Some(among) = among else {
            let shares: Option<Vec<f64>> = runs.iter().map(in_run).collect();
            return Estimate::of_positive(&shares?);
        };
        // A single run has few events: those of all runs are taken together.
        let count = |name: &str| -> u64 {
            let all: Option<f64> = runs.iter().map(|record| record.lock_events.get(name)).sum();
            all.unwrap_or_default() as u64
        };
        Estimate::of_count(count(share), count(among), runs.len())
    }

    fn vcpus_per_pcpu(&self, setting: &Setting, arm: &str) -> Option<f64> {
        let is_of_run = |row: &&Row| {
            let is_arm = matches!(row.role, Role::Arm | Role::Beside) && row.setting == *setting;
            is_arm && row.arm.split(BESIDE).next() == arm.split(BESIDE).next()
        };
        let rows: Vec<&Row> = self.summary.rows.iter().filter(is_of_run).collect();
        Some(f64::from(rows.iter().map(|row| row.vcpus).sum::<u32>()) / rows.first()?.pcpus as f64)
    }
}

fn has(setting: &Setting, at: &At) -> bool {
    at.iter().all(|(key, value)| setting.get(key).is_some_and(|is| is == value))
}

/// The row's letters, with that of the ratio, which runs tell.
fn like(row: &Published, ratio: Option<f64>) -> String {
    /// 60 vCPUs on 32 CPUs and 4 on 2 are alike.
    const NEARLY: f64 = 1.1;
    let near = |(there, here): (f64, f64)| (1.0 / NEARLY..=NEARLY).contains(&(here / there));
    let letter = match row.ratio.zip(ratio).map(near) {
        Some(true) => 'R',
        Some(false) => '-',
        None => '?',
    };
    let mut letters: Vec<char> = row.like.chars().collect();
    letters.insert(1.min(letters.len()), letter);
    letters.into_iter().collect()
}

/// How our ratio stands to a published one.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Agreement {
    /// Our whole interval lies within the margin around the published ratio.
    Agrees,
    /// Same direction as published, further from 1 by more than the margin.
    Larger,
    /// Same direction as published, closer to 1 by more than the margin.
    Smaller,
    /// Our interval contains 1 and lies outside the margin. The number of blocks is about that which would show a
    /// difference, if there is the one that our estimate has and any number that can be run would.
    NoDifferenceShown {
        /// Blocks in all.
        blocks: Option<u32>,
    },
    /// The other direction.
    Opposite,
    /// A share: our whole interval lies above the margin.
    LargerShare,
    /// A share: our whole interval lies below the margin.
    SmallerShare,
    /// Not to be had on so few pCPUs as there are: it takes as many as this.
    NeedsPcpus {
        /// pCPUs.
        pcpus: u32,
    },
    /// Our interval lies partly within the margin and partly outside. The number of blocks is about that which would
    /// tell, if any number that can be run would.
    TooWideToTell {
        /// Blocks in all.
        blocks: Option<u32>,
    },
    /// There is no figure of ours, or it has no interval.
    NoFigure,
}

/// More blocks than this are not worth naming.
const MOST_BLOCKS: f64 = 10_000.0;

impl Agreement {
    /// Compares `ours` with what was `published`, once or several times. All of it must lie within this share of that. Shares have no
    /// direction, and the first that was published counts.
    fn of(published: &[f64], within: f64, ours: Option<&Estimate>, is_share: bool) -> Self {
        let both = ours.and_then(|ours| Some((ours, ours.interval?, *published.first()?)));
        let Some((ours, interval, first)) = both else { return Self::NoFigure };
        let published = if is_share { &published[..1] } else { published };
        // As distances from 1 in the published direction.
        let towards = |ratio: f64| if first < 1.0 && !is_share { -ratio.ln() } else { ratio.ln() };
        let (a, b) = (towards(interval.low), towards(interval.high));
        let (near, far) = (a.min(b), a.max(b));
        let edge = |sign: f64| move |published: &f64| towards(*published) + sign * within.ln_1p();
        let inside = published.iter().map(edge(-1.0)).fold(f64::INFINITY, f64::min);
        let outside = published.iter().map(edge(1.0)).fold(f64::NEG_INFINITY, f64::max);
        let centre = towards(ours.hodges_lehmann);
        match () {
            () if inside <= near && far <= outside => Self::Agrees,
            () if near > outside && is_share => Self::LargerShare,
            () if near > outside => Self::Larger,
            // The number of blocks is not known for a share of 0: no event was seen.
            () if far >= inside => {
                let to_an_end = (centre - inside).abs().min((outside - centre).abs());
                Self::TooWideToTell { blocks: blocks_needed(ours.n, interval, to_an_end) }
            }
            () if is_share => Self::SmallerShare,
            () if near > 0.0 => Self::Smaller,
            () if far < 0.0 => Self::Opposite,
            () => Self::NoDifferenceShown { blocks: blocks_needed(ours.n, interval, centre.abs()) },
        }
    }

    pub(crate) fn word(self) -> String {
        match self {
            Self::Agrees => "agrees".into(),
            Self::Larger => "same direction, larger".into(),
            Self::Smaller => "same direction, smaller".into(),
            Self::NoDifferenceShown { blocks: Some(blocks) } => {
                format!("smaller, or none: no difference shown, {blocks} blocks might")
            }
            Self::NoDifferenceShown { blocks: None } => "smaller, or none: no difference shown".into(),
            Self::Opposite => "opposite direction".into(),
            Self::TooWideToTell { blocks: Some(blocks) } => format!("too wide to tell: {blocks} blocks"),
            Self::TooWideToTell { blocks: None } => "too wide to tell".into(),
            Self::LargerShare => "a larger share".into(),
            Self::SmallerShare => "a smaller share".into(),
            Self::NeedsPcpus { pcpus } => format!("needs {pcpus} pCPUs"),
            Self::NoFigure => "no figure".into(),
        }
    }
}

/// Blocks after which an interval that narrows with their square root is half as wide as `wanted` on each side.
fn blocks_needed(blocks: usize, interval: Interval, wanted: f64) -> Option<u32> {
    let needed = blocks as f64 * (interval.log_half_width() / wanted).powi(2);
    // The margin is inside the interval, so that it takes more than there are.
    (needed.is_finite() && needed <= MOST_BLOCKS).then(|| (needed.ceil() as u32).max(blocks as u32 + 1))
}

#[cfg(test)]
mod tests {
    use haltkick_vmm::{Image, Sched};

    use super::*;
    use crate::analysis::statistics::Method;
    use crate::experiment::plan::Plan;
    use crate::host::cpulist::CpuList;
    use crate::measure::synthetic::{World, built_in};
    use crate::settings::Supply;

    /// The rows of an experiment about `world`, on a host with `pcpus` pCPUs.
    fn rows_of(experiment: &str, pcpus: u32, world: &World) -> BTreeMap<String, Reproduced> {
        let experiment = built_in(experiment);
        let (image, allowed) = (Image::embedded(), CpuList((0..pcpus).collect()));
        let plan = Plan::new(&experiment, Supply { image: &image, allowed: &allowed }, 1).unwrap();
        let rows = world.summary(&plan).published;
        rows.into_iter().map(|row| (row.published.name.clone(), row)).collect()
    }

    #[test]
    fn rows_find_ratios_slow_downs_and_shares_and_say_what_is_alike() {
        let world = World::new(1)
            .truth(|asked| {
                let lock = if asked.ours.lock == "qspinlock-v16" { 2.0 } else { 1.0 };
                let floats = if asked.run.rules.sched == Sched::Host { 3.0 } else { 1.0 };
                1e4 * lock / floats
            })
            .adjust(|asked, outcome| {
                let share = if asked.ours.lock == "ticket" { 0.24 } else { 0.01 };
                outcome.lock_cpu = Some(outcome.window.mul_f64(share * asked.run.cpus.len() as f64));
            });
        let rows = rows_of("qspinlock", 2, &world);
        let is = |name: &str, ours: f64| {
            let row = &rows[name];
            assert!((row.ours.as_ref().unwrap().hodges_lehmann - ours).abs() < 0.01, "{row:?}");
            (row.ratio.unwrap(), row.like.as_str(), row.agreement)
        };
        assert_eq!(is("qspinlock with PV support, v16 (2015), VM2", 2.0), (1.0, "LR--", Agreement::Agrees));
        assert_eq!(is("qspinlock with PV support, v16 (2015), VM3", 2.0), (2.0, "LR--", Agreement::Larger));
        assert_eq!(is("PV ticket lock (2015), unpinned: VM2/VM1", 3.0), (1.0, "LR--", Agreement::Agrees));
        let shares = ["ticket locks", "qspinlocks"];
        let [ticket, queue] = shares.map(|of| format!("qspinlock (2015), native, share of CPU time in {of}"));
        assert_eq!(is(&ticket, 0.24).2, Agreement::Agrees);
        assert_eq!(is(&queue, 0.01).2, Agreement::SmallerShare);
        let native = &rows["qspinlock (2015), native, 1500 users"];
        assert_eq!((&native.ours, native.agreement), (&None, Agreement::NeedsPcpus { pcpus: 120 }));
    }

    #[test]
    fn two_guests_count_together_and_each_leads_by_its_own_figure() {
        let world = World::new(3).truth(|asked| if asked.ours.lock == "unfair-ticket" { 1.5e4 } else { 1e4 });
        let rows = rows_of("unfair", 16, &world);
        let row = &rows["unfair spinlock (2010)"];
        assert_eq!((row.ratio, row.agreement, row.like.as_str()), (Some(2.0), Agreement::Agrees, "LRA-"));
        let many = &rows["unfair spinlock (2010), 16 vCPUs on whatever CPUs there are"];
        assert_eq!((many.ratio, many.like.as_str()), (Some(2.0), "LR--"));
    }

    #[test]
    fn shares_of_events_are_those_of_all_runs_and_none_is_none() {
        let world = World::new(4).adjust(|_, outcome| {
            outcome.lock_events = vec![
                ("pgfault".into(), 100_000),
                ("speculative_pgfault".into(), 99_600),
                ("spf_vma_changed".into(), 175),
            ];
        });
        let rows = rows_of("fault", 2, &world);
        let is = |name: &str| {
            let row = &rows[&format!("Speculative page faults, v10 (2018), {name}")];
            (row.ours.as_ref().unwrap().hodges_lehmann, row.agreement)
        };
        assert_eq!(is("served so"), (0.996, Agreement::Agrees));
        assert_eq!(is("given up: vma_changed").1, Agreement::Agrees);
        // Zero of this many faults is fewer than the published 0.008 %.
        assert_eq!(is("given up: notsup"), (0.0, Agreement::SmallerShare));
    }

    fn estimate(low: f64, high: f64) -> Estimate {
        let middle = (low * high).sqrt();
        let interval = Some(Interval { low, high, method: Method::SignedRank });
        Estimate { n: 6, median: middle, hodges_lehmann: middle, interval }
    }

    #[test]
    fn the_word_says_where_ours_lies_beyond_the_margin() {
        for (published, low, high, expected) in [
            (&[2.0][..], 1.7, 2.4, "agrees"),
            (&[1.004], 0.99, 1.01, "agrees"),
            (&[2.0], 2.6, 3.0, "same direction, larger"),
            (&[2.0], 1.2, 1.5, "same direction, smaller"),
            (&[2.0], 0.9, 1.5, "smaller, or none: no difference shown, 18 blocks might"),
            (&[2.0], 0.99, 1.01, "smaller, or none: no difference shown"),
            (&[2.0], 0.5, 0.9, "opposite direction"),
            (&[1.004], 1.1, 1.2, "same direction, larger"),
            // A published loss is mirrored.
            (&[0.5], 0.2, 0.3, "same direction, larger"),
            (&[0.5], 0.7, 0.8, "same direction, smaller"),
            (&[0.5], 1.7, 1.8, "opposite direction"),
            // An estimate on the margin never tells.
            (&[2.0], 1.6 / 1.3, 1.6 * 1.3, "too wide to tell"),
            // Half as wide fits into the margin, so that it takes some more than three times the six blocks.
            (&[2.0], 2.0 / 1.5, 2.0 * 1.5, "too wide to tell: 20 blocks"),
            // Two published figures are one.
            (&[1.44, 1.8], 1.2, 2.2, "agrees"),
            (&[1.44, 1.8], 2.3, 2.5, "same direction, larger"),
            (&[1.44, 1.8], 1.05, 1.1, "same direction, smaller"),
            // A share has no direction.
            (&[0.2], 0.17, 0.24, "agrees"),
            (&[0.2], 0.3, 0.9, "a larger share"),
            (&[0.2], 0.001, 0.1, "a smaller share"),
            (&[0.2], 0.0, 0.22, "too wide to tell"),
        ] {
            let margin = if published == [1.004] { 0.05 } else { 0.25 };
            let ours = estimate(low, high);
            let word = Agreement::of(published, margin, Some(&ours), published == [0.2]).word();
            assert_eq!(word, expected, "{published:?}: {low} to {high}");
        }
    }

    #[test]
    fn without_an_interval_nothing_is_said() {
        let alone = Estimate { interval: None, ..estimate(1.9, 2.1) };
        // A directory's files may hold anything.
        let ours = estimate(0.1, 0.2);
        for (published, ours) in [(&[2.0][..], Some(&alone)), (&[2.0], None), (&[], Some(&ours))] {
            for is_share in [false, true] {
                assert_eq!(Agreement::of(published, 0.25, ours, is_share), Agreement::NoFigure);
            }
        }
    }
}
