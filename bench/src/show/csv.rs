//! Long-form CSV: one value per line, so that pandas, R and DuckDB need no reshaping.

use std::collections::BTreeMap;

use csv::Writer;

use crate::analysis::statistics::Estimate;
use crate::analysis::summary::Summary;
use crate::experiment::outline::Outline;
use crate::experiment::place::Role;
use crate::record::Record;

/// Estimates: `setting...,arm,baseline,metric,n,median,hodges_lehmann,low,high`.
pub(crate) fn summary(summary: &Summary) -> String {
    let columns = ["arm", "baseline", "metric", "n", "median", "hodges_lehmann", "low", "high"];
    let mut csv = Table::new(&summary.outline, &columns);
    for row in &summary.rows {
        let metrics = [
            ("acquisitions_per_second", &row.acquisitions_per_second),
            ("efficiency", &row.efficiency),
            ("jain", &row.jain),
            ("wait_half_of_time_ns", &row.wait_half_of_time_ns),
            ("wait_p50_ns", &row.wait_p50_ns),
            ("wait_p99_ns", &row.wait_p99_ns),
            ("completion_ns", &row.completion_ns),
            ("lock_cpu_share", &row.lock_cpu_share),
            ("wait_p999_ns", &row.wait_p999_ns),
        ];
        let arm = match row.role {
            Role::Control => format!("{} (control)", row.arm),
            _ => row.arm.clone(),
        };
        for (metric, estimate) in metrics {
            csv.estimate(&row.setting, [&arm, "", metric], estimate.as_ref());
        }
    }
    for comparison in summary.comparisons.iter().chain(&summary.control) {
        let names = [comparison.arm.as_str(), &comparison.baseline, &format!("ratio: {}", comparison.name)];
        csv.estimate(&comparison.setting, names, comparison.ratio.as_ref());
    }
    csv.finish()
}

/// Raw values: `setting...,arm,role,cell_id,block,order_index,run_id,metric,value`.
pub(crate) fn runs(outline: &Outline, records: &[Record]) -> String {
    let columns = ["arm", "role", "cell_id", "block", "order_index", "run_id", "metric", "value"];
    let mut csv = Table::new(outline, &columns);
    for record in records {
        let Some(place) = &record.place else { continue };
        let role = format!("{:?}", place.role).to_lowercase();
        let (block, index) = (place.block.to_string(), place.order_index.to_string());
        for (metric, value) in metrics(record) {
            let value = value.map_or(String::new(), |value| value.to_string());
            let fields = [&place.arm, &role, &place.cell_id, &block, &index, &record.run_id, metric, &value];
            csv.line(&place.setting, &fields);
        }
    }
    csv.finish()
}

fn metrics(record: &Record) -> [(&'static str, Option<f64>); 24] {
    [
        ("acquisitions", Some(record.totals.acquisitions as f64)),
        ("acquisitions_per_second", Some(record.totals.acquisitions_per_second)),
        ("ideal_per_second", record.totals.ideal_per_second),
        ("efficiency", record.totals.efficiency),
        ("cpu_ns", Some(record.totals.cpu_ns as f64)),
        ("run_ns", record.totals.run_ns.map(|ns| ns as f64)),
        ("lock_cpu_ns", record.totals.lock_cpu_ns.map(|ns| ns as f64)),
        ("lock_cpu_share", record.totals.lock_cpu_share),
        ("completion_ns", record.timing.completion_ns.map(|ns| ns as f64)),
        ("jain", record.fairness.jain),
        ("wait_p50_ns", record.wait_ns.p50),
        ("wait_p99_ns", record.wait_ns.p99),
        ("wait_max_ns", record.wait_ns.max),
        ("wait_longest_ns", record.wait_ns.longest),
        ("wait_half_of_time_ns", record.wait_ns.half_of_time),
        ("waits_pending", record.wait_ns.pending.map(|pending| pending as f64)),
        ("starved_vcpus", record.fairness.starved_vcpus.map(f64::from)),
        ("work_over_promised", record.timing.work_speed.as_ref().map(|speed| speed.over_promised)),
        ("hold_p99_ns", record.hold_ns.p99),
        ("pair_patched_tsc_cycles", record.lock_cost.patched_tsc_cycles),
        ("pair_through_table_tsc_cycles", record.lock_cost.through_table_tsc_cycles),
        ("pair_compiled_in_tsc_cycles", record.lock_cost.compiled_in_tsc_cycles),
        ("others_share", record.noise.others_share),
        ("steal_share", record.noise.steal_share),
    ]
}

/// A table under construction: the experiment's name and its settings come first in every line.
struct Table<'a> {
    outline: &'a Outline,
    writer: Writer<Vec<u8>>,
}

impl<'a> Table<'a> {
    fn new(outline: &'a Outline, columns: &[&str]) -> Self {
        let mut table = Self { outline, writer: Writer::from_writer(vec![]) };
        let axes = outline.axes.iter().map(|axis| axis.key.as_str());
        table.write(std::iter::once("experiment").chain(axes).chain(columns.iter().copied()));
        table
    }

    fn line(&mut self, setting: &BTreeMap<String, String>, fields: &[&str]) {
        let outline = self.outline;
        let values = outline.axes.iter().map(|axis| setting.get(&axis.key).map_or("", String::as_str));
        let experiment = std::iter::once(outline.experiment.as_str());
        self.write(experiment.chain(values).chain(fields.iter().copied()));
    }

    fn estimate(
        &mut self,
        setting: &BTreeMap<String, String>,
        [arm, baseline, metric]: [&str; 3],
        estimate: Option<&Estimate>,
    ) {
        let end = |of: fn(&Estimate) -> Option<f64>| {
            estimate.and_then(of).map_or(String::new(), |value| value.to_string())
        };
        let (n, median) = (estimate.map_or(0, |it| it.n).to_string(), end(|it| Some(it.median)));
        let (low, high) = (end(|it| Some(it.interval?.low)), end(|it| Some(it.interval?.high)));
        let hodges_lehmann = end(|it| Some(it.hodges_lehmann));
        self.line(setting, &[arm, baseline, metric, &n, &median, &hodges_lehmann, &low, &high]);
    }

    fn write<'f>(&mut self, fields: impl Iterator<Item = &'f str>) {
        self.writer.write_record(fields).expect("lines of one length, into memory");
    }

    fn finish(self) -> String {
        let bytes = self.writer.into_inner().expect("memory is written to");
        String::from_utf8(bytes).expect("made of text")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Sketch, World};

    #[test]
    fn what_is_written_reads_back_whatever_the_names_are() {
        let plan = Sketch::new().axis("ratio", &["1", "8"]).arm("a, \"b\"", "tas").arm("c", "ticket").plan(2);
        let records = World::new(1).records(&plan);
        let summary = Summary::new(&plan.outline, &records);
        for (text, lines) in [
            (super::summary(&summary), summary.rows.len() * 9),
            (runs(&plan.outline, &records), records.len() * metrics(&records[0]).len()),
        ] {
            let mut reader = csv::Reader::from_reader(text.as_bytes());
            let arm = reader.headers().unwrap().iter().position(|name| name == "arm").unwrap();
            let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
            assert_eq!(rows.len(), lines);
            assert!(
                rows.iter().any(|row| &row[arm] == "a, \"b\"") && rows.iter().all(|row| &row[0] == "sketch")
            );
        }
    }
}
