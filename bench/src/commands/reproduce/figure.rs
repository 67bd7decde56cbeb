//! From the results of an experiment to the figure that a row asks for.

use std::collections::BTreeMap;

use super::row::{Figure, Point, Setting, Share};
use crate::analysis::rate::{self, Rate};
use crate::analysis::statistics::Estimate;
use crate::analysis::summary::{Comparison, Summary};
use crate::record::Record;
use crate::record::figures::{ACQUISITIONS, LOCK_CPU_SHARE, WINDOW};
use crate::record::names::BESIDE;
use crate::record::place::Role;

/// A figure of ours.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) estimate: Option<Estimate>,
    /// Settings at which it was measured.
    pub(super) setting: BTreeMap<String, String>,
    /// vCPUs for each pCPU there, those of all guests.
    pub(super) ratio: Option<f64>,
}

/// Results that an experiment has left behind.
#[derive(Clone, Debug)]
pub(super) struct Results {
    pub(super) summary: Summary,
    /// Records that count.
    pub(super) records: Vec<Record>,
}

impl Results {
    /// pCPUs that it ran on.
    pub(super) fn pcpus(&self) -> Option<usize> {
        self.summary.rows.first().map(|row| row.pcpus)
    }

    pub(super) fn figure(&self, figure: Figure) -> Found {
        match figure {
            Figure::Ratio(point) => self.comparison(&point).map_or_else(Found::default, |comparison| Found {
                estimate: comparison.ratio.clone(),
                setting: comparison.setting.clone(),
                ratio: self.vcpus_per_pcpu(&comparison.setting, &comparison.arm),
            }),
            Figure::Slowdown { arm, at, over } => self.slowdown(arm, at, over),
            Figure::Share { of, arm, setting } => self.share(of, arm, setting),
        }
    }

    /// The comparison that `point` picks.
    pub(super) fn comparison(&self, point: &Point) -> Option<&Comparison> {
        let is_there = |it: &&Comparison| it.name == point.comparison && has(&it.setting, point.setting);
        self.summary.comparisons.iter().find(is_there)
    }

    /// Runs of an arm at a setting.
    fn runs(&self, arm: &str, setting: Setting) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |record| {
            record.place.as_ref().is_some_and(|place| {
                place.role == Role::Arm && place.arm == arm && has(&place.setting, setting)
            })
        })
    }

    fn slowdown(&self, arm: &str, at: Setting, over: Setting) -> Found {
        let rates = |setting| {
            let pass = |record: &Record| Some((record.place.as_ref()?.block, record.host.identity()));
            let of_run = move |record: &Record| Some((pass(record)?, Rate::of(record)?));
            self.runs(arm, setting).filter_map(of_run).collect::<BTreeMap<_, _>>()
        };
        let slow = rates(at);
        let ratios: Vec<Rate> =
            rates(over).iter().filter_map(|(pass, fast)| Some(fast.over(*slow.get(pass)?))).collect();
        Found { estimate: rate::estimate(&ratios), ..self.place(arm, at) }
    }

    fn share(&self, of: Share, arm: &str, setting: Setting) -> Found {
        let runs = || self.runs(arm, setting);
        let estimate = if let Share::Events { of, among } = of {
            let count = |name: &str| -> u64 {
                let all: Option<f64> = runs().map(|record| record.lock_events.get(name)).sum();
                all.unwrap_or_default() as u64
            };
            Estimate::of_count(count(of), count(among), runs().count())
        } else {
            let shares: Option<Vec<f64>> = runs().map(|record| of.in_run(record)).collect();
            shares.and_then(|shares| Estimate::of_positive(&shares))
        };
        Found { estimate, ..self.place(arm, setting) }
    }

    fn place(&self, arm: &str, setting: Setting) -> Found {
        let of_run = |record: &Record| Some(record.place.as_ref()?.setting.clone());
        let setting = self.runs(arm, setting).next().and_then(of_run).unwrap_or_default();
        Found { estimate: None, ratio: self.vcpus_per_pcpu(&setting, arm), setting }
    }

    fn vcpus_per_pcpu(&self, setting: &BTreeMap<String, String>, arm: &str) -> Option<f64> {
        let first = arm.split(BESIDE).next()?;
        let is_of_run = |name: &str| {
            name == first || name.strip_prefix(first).is_some_and(|rest| rest.starts_with(BESIDE))
        };
        let rows = || {
            let of_setting = self.summary.rows.iter().filter(|row| row.setting == *setting);
            of_setting.filter(|row| matches!(row.role, Role::Arm | Role::Beside) && is_of_run(&row.arm))
        };
        let pcpus = rows().next()?.pcpus;
        Some(f64::from(rows().map(|row| row.vcpus).sum::<u32>()) / pcpus as f64)
    }
}

impl Share {
    /// `None` where the run does not tell, or has only counts: those of all runs are taken together.
    fn in_run(self, record: &Record) -> Option<f64> {
        match self {
            Self::LockCpu => record.figure(LOCK_CPU_SHARE),
            Self::Waiting => {
                let waited_ns = record.figure("wait_mean_ns")? * record.figure(ACQUISITIONS)?;
                Some(waited_ns / (f64::from(record.settings.vcpus()) * record.figure(WINDOW)?))
            }
            Self::Events { .. } => None,
        }
    }

    /// In words.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::LockCpu => "CPU time in acquiring and releasing locks",
            Self::Waiting => "time waiting for the write lock",
            Self::Events { .. } => "events over page faults",
        }
    }
}

fn has(setting: &BTreeMap<String, String>, wanted: Setting) -> bool {
    wanted.iter().all(|(key, value)| setting.get(*key).is_some_and(|is| is == value))
}
