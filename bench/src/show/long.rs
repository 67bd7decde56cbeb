//! The long form: one value per line, so that pandas, R and DuckDB need no reshaping. `docs/data.md` has its columns.

use std::borrow::Cow;
use std::rc::Rc;

use crate::analysis::recorded::Recorded;
use crate::experiment::outline::Outline;
use crate::record::linux::LinuxRecord;
use crate::record::{Activities, Record};

/// All values of all runs.
pub(crate) struct Long<'a> {
    pub(crate) outline: &'a Outline,
    pub(crate) rows: Vec<LongRow<'a>>,
}

/// One value, and what it is a value of.
pub(crate) struct LongRow<'a> {
    /// Values of the settings that vary, as [`Outline::setting_values`] has them.
    pub(crate) setting: Rc<[String]>,
    pub(crate) arm: &'a str,
    pub(crate) role: String,
    pub(crate) cell_id: &'a str,
    pub(crate) block: u32,
    pub(crate) order_index: u64,
    pub(crate) run_id: &'a str,
    pub(crate) host: String,
    pub(crate) trusted: bool,
    pub(crate) metric: Cow<'a, str>,
    pub(crate) value: Option<f64>,
}

/// Names of the columns behind those of the settings; the name of the experiment stands before these.
pub(crate) const COLUMNS: [&str; 10] =
    ["arm", "role", "cell_id", "block", "order_index", "run_id", "host", "trusted", "metric", "value"];

impl<'a> Long<'a> {
    pub(crate) fn new(outline: &'a Outline, records: &'a [Record]) -> Self {
        Self { outline, rows: records.iter().flat_map(|record| of_record(outline, record)).collect() }
    }

    /// Figures of arms that are kernels: what they printed, and how their runs went.
    pub(crate) fn of_kernels(outline: &'a Outline, records: &'a [LinuxRecord]) -> Self {
        let of_record = |record: &'a LinuxRecord| rows(outline, record, kernel_metrics(record));
        Self { outline, rows: records.iter().flat_map(of_record).collect() }
    }

    /// Names of all columns.
    pub(crate) fn columns(&self) -> impl Iterator<Item = String> {
        let of_settings = self.outline.setting_columns();
        std::iter::once("experiment".into()).chain(of_settings).chain(COLUMNS.map(String::from))
    }
}

fn of_record<'a>(outline: &'a Outline, record: &'a Record) -> Vec<LongRow<'a>> {
    let metrics = metrics(record).into_iter().map(|(metric, value)| (Cow::Borrowed(metric), value));
    rows(outline, record, metrics.collect())
}

fn rows<'a>(
    outline: &'a Outline,
    record: &'a impl Recorded,
    metrics: Vec<(Cow<'a, str>, Option<f64>)>,
) -> Vec<LongRow<'a>> {
    let Some(place) = record.place() else { return vec![] };
    let setting: Rc<[String]> = outline.setting_values(&place.setting).into();
    let row = |(metric, value)| LongRow {
        setting: Rc::clone(&setting),
        arm: &place.arm,
        role: format!("{:?}", place.role).to_lowercase(),
        cell_id: &place.cell_id,
        block: place.block,
        order_index: place.order_index,
        run_id: record.run_id(),
        host: record.host().identity(),
        trusted: record.is_trusted(),
        metric,
        value,
    };
    metrics.into_iter().map(row).collect()
}

/// Figures that a kernel printed, by name, and how its run went.
fn kernel_metrics(record: &LinuxRecord) -> Vec<(Cow<'_, str>, Option<f64>)> {
    let of_run = [
        ("run_ns", Some(record.timing.run_ns as f64)),
        ("user_space_ns", record.timing.user_space_ns.map(|ns| ns as f64)),
        ("cpu_ns", Some(record.timing.cpu_ns as f64)),
        ("others_share", record.noise.others_share),
        ("steal_share", record.noise.steal_share),
    ];
    let of_run = of_run.into_iter().map(|(name, value)| (Cow::Borrowed(name), value));
    let printed =
        record.named().into_iter().map(|(name, (value, _))| (format!("figure:{name}").into(), Some(value)));
    of_run.chain(printed).collect()
}

/// Every figure of a run, by name; none where the host cannot tell it, or where there is no such thing.
pub(crate) fn metrics(record: &Record) -> Vec<(&'static str, Option<f64>)> {
    let count = |count: Option<u64>| count.map(|count| count as f64);
    let mut metrics = vec![
        ("acquisitions", Some(record.totals.acquisitions as f64)),
        ("acquisitions_per_second", Some(record.totals.acquisitions_per_second)),
        ("ideal_per_second", record.totals.ideal_per_second),
        ("efficiency", record.totals.efficiency),
        ("window_ns", Some(record.timing.window_ns as f64)),
        ("cpu_ns", Some(record.totals.cpu_ns as f64)),
        ("run_ns", count(record.totals.run_ns)),
        ("lock_cpu_ns", count(record.totals.lock_cpu_ns)),
        ("lock_cpu_share", record.totals.lock_cpu_share),
        ("completion_ns", count(record.timing.completion_ns)),
        ("jain", record.fairness.jain),
        ("wait_p50_ns", record.wait_ns.p50),
        ("wait_p99_ns", record.wait_ns.p99),
        ("wait_p999_ns", record.wait_ns.p999),
        ("wait_max_ns", record.wait_ns.max),
        ("wait_longest_ns", record.wait_ns.longest),
        ("wait_half_of_time_ns", record.wait_ns.half_of_time),
        ("waits_pending", count(record.wait_ns.pending)),
        ("starved_vcpus", record.fairness.starved_vcpus.map(f64::from)),
        ("work_over_promised", record.timing.work_speed.as_ref().map(|speed| speed.over_promised)),
        ("hold_p99_ns", record.hold_ns.p99),
        ("pair_patched_tsc_cycles", record.lock_cost.patched_tsc_cycles),
        ("pair_through_table_tsc_cycles", record.lock_cost.through_table_tsc_cycles),
        ("pair_compiled_in_tsc_cycles", record.lock_cost.compiled_in_tsc_cycles),
        ("others_share", record.noise.others_share),
        ("steal_share", record.noise.steal_share),
    ];
    metrics.extend(PREEMPTIONS.into_iter().zip(each(record.preemptions.as_ref())));
    metrics.extend(PREEMPTED_NS.into_iter().zip(each(record.preempted_ns.as_ref())));
    metrics
}

/// Times that vCPUs were taken off, by what they were doing.
const PREEMPTIONS: [&str; 5] = [
    "preemptions_holder",
    "preemptions_head",
    "preemptions_waiter",
    "preemptions_halted",
    "preemptions_other",
];
/// The time that they were off for.
const PREEMPTED_NS: [&str; 5] = [
    "preempted_holder_ns",
    "preempted_head_ns",
    "preempted_waiter_ns",
    "preempted_halted_ns",
    "preempted_other_ns",
];

fn each(activities: Option<&Activities>) -> [Option<f64>; 5] {
    let Some(it) = activities else { return [None; 5] };
    [it.holder, it.head, it.waiter, it.halted, it.other].map(|value| Some(value as f64))
}
