//! Long-form CSV: one value per line, so that pandas, R and DuckDB need no reshaping.
//!
//! Names are as they are in records, so that both join, also where a spreadsheet would take one for a formula: docs/data.md says how to
//! open such a file.

use std::collections::BTreeMap;

use csv::Writer;

use crate::analysis::statistics::Estimate;
use crate::analysis::summary::Summary;
use crate::experiment::outline::Outline;
use crate::experiment::place::Role;
use crate::show::long::Long;

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
        let arm = named(&row.arm, row.role);
        for (metric, estimate) in metrics {
            csv.estimate(&row.setting, [&arm, "", metric], estimate.as_ref());
        }
    }
    for row in &summary.together {
        for (metric, estimate) in [
            ("all_guests_per_second", &row.per_second),
            ("slowest_guest_per_second", &row.slowest_guest_per_second),
            ("slowest_vcpu_per_second", &row.slowest_vcpu_per_second),
            ("worst_guest_wait_p99_ns", &row.wait_p99_ns),
        ] {
            csv.estimate(&row.setting, [&row.arm, "", metric], estimate.as_ref());
        }
    }
    for row in &summary.kernels {
        let arm = named(&row.arm, row.role);
        for (name, figure) in &row.figures {
            csv.estimate(&row.setting, [&arm, "", &format!("figure:{name}")], figure.estimate.as_ref());
        }
    }
    for comparison in summary.comparisons.iter().chain(&summary.control) {
        let names = [comparison.arm.as_str(), &comparison.baseline, &format!("ratio: {}", comparison.name)];
        csv.estimate(&comparison.setting, names, comparison.ratio.as_ref());
    }
    csv.finish()
}

/// Name of an arm, with its role if it is not an arm by itself.
fn named(arm: &str, role: Role) -> String {
    if role == Role::Control { format!("{arm} (control)") } else { arm.into() }
}

/// Raw values: the long form.
pub(crate) fn runs(long: &Long<'_>) -> String {
    let mut csv = Table { outline: long.outline, writer: Writer::from_writer(vec![]) };
    csv.write(long.columns().collect::<Vec<_>>().iter().map(String::as_str));
    for row in &long.rows {
        let value = row.value.map_or(String::new(), |value| value.to_string());
        let (block, index, trusted) =
            (row.block.to_string(), row.order_index.to_string(), row.trusted.to_string());
        let of_run = [row.arm, &row.role, row.cell_id, &block, &index, row.run_id, &row.host, &trusted];
        let fields =
            row.setting.iter().map(String::as_str).chain(of_run).chain([row.metric.as_ref(), &value]);
        csv.write(std::iter::once(long.outline.experiment.as_str()).chain(fields));
    }
    csv.finish()
}

/// A table under construction: the experiment's name and its settings come first in every line.
struct Table<'a> {
    outline: &'a Outline,
    writer: Writer<Vec<u8>>,
}

impl<'a> Table<'a> {
    fn new(outline: &'a Outline, columns: &[&str]) -> Self {
        let mut table = Self { outline, writer: Writer::from_writer(vec![]) };
        let of_settings = outline.setting_columns();
        let of_settings = of_settings.iter().map(String::as_str);
        table.write(std::iter::once("experiment").chain(of_settings).chain(columns.iter().copied()));
        table
    }

    fn line(&mut self, setting: &BTreeMap<String, String>, fields: &[&str]) {
        let outline = self.outline;
        let values = outline.setting_values(setting);
        let experiment = std::iter::once(outline.experiment.as_str());
        self.write(experiment.chain(values.iter().map(String::as_str)).chain(fields.iter().copied()));
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::measure::synthetic::{Sketch, World};
    use crate::show::long::metrics;

    #[test]
    fn runs_have_their_host_and_whether_they_are_to_be_trusted() {
        let plan = Sketch::new().arm("a", "tas").plan(2);
        let mut records = World::new(1).host_id(Some("host-a")).records(&plan);
        records[0].warn("busy-neighbour", "somebody".into());
        let text = runs(&Long::new(&plan.outline, &records));
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let header = reader.headers().unwrap().clone();
        let column = |name: &str| header.iter().position(|column| column == name).unwrap();
        let (run_id, host, trusted) = (column("run_id"), column("host"), column("trusted"));
        for row in reader.records().map(Result::unwrap) {
            let record = records.iter().find(|record| record.run_id == row[run_id]).unwrap();
            assert_eq!((&row[host], &row[trusted]), ("host-a", record.trusted.to_string().as_str()));
        }
        for metric in ["wait_p999_ns", "preemptions_holder", "preempted_waiter_ns"] {
            assert!(text.contains(&format!(",{metric},")), "{metric}");
        }
    }

    #[test]
    fn what_is_written_reads_back_whatever_the_names_are() {
        let plan = Sketch::new().axis("ratio", &["1", "8"]).arm("a, \"b\"", "tas").arm("c", "ticket").plan(2);
        let records = World::new(1).records(&plan);
        let summary = Summary::new(&plan.outline, &records);
        for (text, lines) in [
            (super::summary(&summary), summary.rows.len() * 9),
            (runs(&Long::new(&plan.outline, &records)), records.len() * metrics(&records[0]).len()),
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

    #[test]
    fn times_that_vary_have_a_column_in_nanoseconds() {
        let plan =
            Sketch::new().axis("ratio", &["8"]).axis("hold", &["500ns", "1.5us"]).arm("a", "tas").plan(1);
        let records = World::new(1).records(&plan);
        let summary = super::summary(&Summary::new(&plan.outline, &records));
        for text in [summary, runs(&Long::new(&plan.outline, &records))] {
            let mut reader = csv::Reader::from_reader(text.as_bytes());
            let headers: Vec<String> = reader.headers().unwrap().iter().map(String::from).collect();
            assert_eq!(headers[..4], ["experiment", "ratio", "hold", "hold_ns"], "{headers:?}");
            let mut pairs: Vec<(String, String)> =
                reader.records().map(Result::unwrap).map(|row| (row[2].into(), row[3].into())).collect();
            pairs.sort();
            pairs.dedup();
            assert_eq!(pairs, [("1.5us", "1500"), ("500ns", "500")].map(|(a, b)| (a.into(), b.into())));
        }
    }

    #[test]
    fn names_are_those_of_the_records_whatever_they_begin_with() {
        let names = ["=1+1", "-O2", "+c", "@home", "'quoted", "a,b", "two\"s", "\u{fc}"];
        let sketch = names.iter().fold(Sketch::new(), |sketch, name| sketch.arm(name, "tas"));
        let plan = sketch.compare("-O2/=1+1", "-O2", "=1+1").plan(1);
        let records = World::new(1).records(&plan);
        let summary = Summary::new(&plan.outline, &records);
        for (text, column) in [(super::summary(&summary), 1), (runs(&Long::new(&plan.outline, &records)), 1)]
        {
            let mut reader = csv::Reader::from_reader(text.as_bytes());
            let arms: BTreeSet<String> = reader.records().map(|row| row.unwrap()[column].into()).collect();
            let in_records = records.iter().map(|record| record.place.as_ref().unwrap().arm.clone());
            assert_eq!(arms, in_records.collect(), "{text}");
        }
        assert!(super::summary(&summary).contains(",ratio: -O2/=1+1,"));
    }
}
