//! Long-form CSV: one value per line, so that pandas, R and DuckDB need no reshaping.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::analysis::statistics::Estimate;
use crate::analysis::summary::Summary;
use crate::experiment::outline::Outline;
use crate::record::Record;

/// Estimates: `setting...,arm,role,metric,n,median,hodges_lehmann,low,high`.
pub(crate) fn summary(summary: &Summary) -> String {
    let mut csv = header(&summary.outline, "arm,baseline,metric,n,median,hodges_lehmann,low,high");
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
        let arm = if row.role == crate::experiment::place::Role::Control {
            format!("{} (control)", row.arm)
        } else {
            row.arm.clone()
        };
        for (metric, estimate) in metrics {
            line(&mut csv, &summary.outline, &row.setting, &[&arm, "", metric], estimate.as_ref());
        }
    }
    for comparison in summary.comparisons.iter().chain(&summary.control) {
        let names = [comparison.arm.as_str(), &comparison.baseline, &format!("ratio: {}", comparison.name)];
        line(&mut csv, &summary.outline, &comparison.setting, &names, comparison.ratio.as_ref());
    }
    csv
}

/// Raw values: `setting...,arm,role,cell_id,block,order_index,run_id,metric,value`.
pub(crate) fn runs(outline: &Outline, records: &[Record]) -> String {
    let mut csv = header(outline, "arm,role,cell_id,block,order_index,run_id,metric,value");
    for record in records {
        let Some(place) = &record.place else { continue };
        let role = format!("{:?}", place.role).to_lowercase();
        let (block, index) = (place.block.to_string(), place.order_index.to_string());
        for (metric, value) in metrics(record) {
            let value = value.map_or(String::new(), |value| value.to_string());
            let mut fields = setting(outline, &place.setting);
            fields.extend(
                [&place.arm, &role, &place.cell_id, &block, &index, &record.run_id, metric, &value]
                    .map(escape),
            );
            let _ = writeln!(csv, "{}", fields.join(","));
        }
    }
    csv
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

fn header(outline: &Outline, rest: &str) -> String {
    let axes: String = outline.axes.iter().map(|axis| format!("{},", escape(&axis.key))).collect();
    format!("experiment,{axes}{rest}\n")
}

fn setting(outline: &Outline, setting: &BTreeMap<String, String>) -> Vec<String> {
    let values = outline.axes.iter().map(|axis| setting.get(&axis.key).map_or(String::new(), escape));
    std::iter::once(escape(&outline.experiment)).chain(values).collect()
}

fn line(
    csv: &mut String,
    outline: &Outline,
    of: &BTreeMap<String, String>,
    names: &[&str],
    estimate: Option<&Estimate>,
) {
    let mut fields = setting(outline, of);
    fields.extend(names.iter().map(escape));
    match estimate {
        None => fields.extend(["0", "", "", "", ""].map(String::from)),
        Some(it) => {
            fields.extend([it.n.to_string(), it.median.to_string(), it.hodges_lehmann.to_string()]);
            let ends = it.interval.map_or([String::new(), String::new()], |interval| {
                [interval.low.to_string(), interval.high.to_string()]
            });
            fields.extend(ends);
        }
    }
    let _ = writeln!(csv, "{}", fields.join(","));
}

/// A field as RFC 4180 wants it.
fn escape(field: impl AsRef<str>) -> String {
    let field = field.as_ref();
    if field.contains([',', '"', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_and_quotes_are_quoted() {
        assert_eq!(escape("a,b"), "\"a,b\"");
        assert_eq!(escape("say \"x\""), "\"say \"\"x\"\"\"");
        assert_eq!(escape("plain"), "plain");
    }
}
