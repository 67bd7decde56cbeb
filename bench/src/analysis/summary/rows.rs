//! One row per setting and arm.

use std::collections::{BTreeMap, BTreeSet};

use super::placed::Placed;
use super::{Row, Setting, throughput};
use crate::analysis::drift;
use crate::analysis::rate::{self, Rate};
use crate::analysis::statistics::{self, Estimate};
use crate::experiment::outline::Outline;
use crate::experiment::place::Role;
use crate::record::Record;

pub(super) fn rows(outline: &Outline, settings: &[Setting], placed: &Placed<'_, Record>) -> Vec<Row> {
    let mut rows = Vec::new();
    for setting in settings {
        for arm in arms(outline, setting, placed) {
            for control in [false, true] {
                let records: Vec<_> = placed.of(setting, arm, control).collect();
                rows.extend(row(setting, arm, &records));
            }
        }
    }
    rows
}

/// The lock-free arms of a setting, then the others.
pub(super) fn arms<'a>(
    outline: &'a Outline,
    setting: &Setting,
    placed: &Placed<'a, Record>,
) -> impl Iterator<Item = &'a str> + use<'a> {
    let ideals: BTreeSet<&str> = placed
        .cells
        .iter()
        .filter(|((of, ..), record)| *of == setting && role(record) == Some(Role::Ideal))
        .map(|((_, arm, ..), _)| *arm)
        .collect();
    ideals.into_iter().chain(outline.arms.iter().map(String::as_str))
}

pub(super) fn role(record: &Record) -> Option<Role> {
    record.place.as_ref().map(|place| place.role)
}

fn row(setting: &Setting, arm: &str, records: &[(u32, &Record)]) -> Option<Row> {
    let (_, first) = records.first()?;
    let rates: Vec<Rate> = records.iter().map(|(_, record)| Rate::of(record)).collect();
    let efficiencies: Option<Vec<Rate>> = records
        .iter()
        .zip(&rates)
        .map(|((_, record), rate)| {
            let ideal =
                Rate { per_second: record.totals.ideal_per_second?, is_floor: false, resolution: 0.0 };
            Some(rate.over(ideal))
        })
        .collect();
    let throughputs: Vec<f64> = records.iter().map(|(_, record)| throughput(record)).collect();
    // A figure that a run without acquisitions cannot have is that of the others.
    let of_runs_with = |value: fn(&Record) -> Option<f64>| {
        let values: Vec<f64> = records.iter().filter_map(|(_, record)| value(record)).collect();
        if 2 * values.len() > records.len() { Estimate::of_positive(&values) } else { None }
    };
    Some(Row {
        setting: setting.clone(),
        arm: arm.into(),
        role: role(first)?,
        vcpus: first.config.vcpus,
        pcpus: first.config.cpus.len(),
        runs: records.len(),
        invalid_runs: records.iter().filter(|(_, record)| !record.trusted).count(),
        mean_per_second: throughputs.iter().sum::<f64>() / throughputs.len() as f64,
        acquisitions_per_second: rate::estimate(&rates),
        efficiency: rate::estimate(&efficiencies.unwrap_or_default()).filter(|it| is_share(first, it)),
        jain: of_runs_with(|record| record.fairness.jain),
        starved_vcpus: median_of(records.iter().filter_map(|(_, record)| record.fairness.starved_vcpus)),
        wait_half_of_time_ns: of_runs_with(|record| record.wait_ns.half_of_time),
        wait_longest_ns: records.iter().filter_map(|(_, record)| record.wait_ns.longest).reduce(f64::max),
        overtaken_most: overtaken_most(records),
        at_least: at_least(records),
        wait_p50_ns: of_runs_with(|record| record.wait_ns.p50),
        wait_p99_ns: of_runs_with(|record| record.wait_ns.p99),
        completion_ns: of_runs_with(|record| record.timing.completion_ns.map(|ns| ns as f64)),
        lock_cpu_share: of_runs_with(|record| record.totals.lock_cpu_share),
        wait_p999_ns: of_runs_with(|record| record.wait_ns.p999),
        outlier_blocks: outlier_blocks(records),
    })
}

/// Whether an efficiency is a share of what can be had: sections without a lock overlap, and are no share of what one lock allows.
fn is_share(record: &Record, efficiency: &Estimate) -> bool {
    const NEAR: f64 = 1.05;
    role(record) != Some(Role::Ideal) || efficiency.hodges_lehmann < NEAR
}

/// Blocks whose throughput lies far from the others' on the same host.
fn outlier_blocks(records: &[(u32, &Record)]) -> Vec<u32> {
    let mut hosts: BTreeMap<String, (Vec<u32>, Vec<f64>)> = BTreeMap::new();
    for (block, record) in records {
        let (blocks, throughputs) = hosts.entry(record.host.identity()).or_default();
        blocks.push(*block);
        throughputs.push(throughput(record));
    }
    let mut outliers = Vec::new();
    for (blocks, throughputs) in hosts.values() {
        outliers.extend(drift::outliers(throughputs).into_iter().map(|i| blocks[i]));
    }
    outliers.sort_unstable();
    outliers
}

fn median_of(counts: impl Iterator<Item = u32>) -> Option<f64> {
    let counts: Vec<f64> = counts.map(f64::from).collect();
    (!counts.is_empty()).then(|| statistics::median(&counts))
}

fn overtaken_most(records: &[(u32, &Record)]) -> Option<u64> {
    let of_runs = records.iter().filter_map(|(_, record)| record.lock_events.get("overtaken_most"));
    of_runs.copied().max().filter(|most| *most > 0)
}

/// The figures of waits that are lower bounds in any of the runs.
fn at_least(records: &[(u32, &Record)]) -> Vec<String> {
    let of_runs = records.iter().flat_map(|(_, record)| &record.wait_ns.at_least);
    let names: BTreeSet<String> = of_runs.map(|name| format!("wait_{name}_ns")).collect();
    names.into_iter().collect()
}
