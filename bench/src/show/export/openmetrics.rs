//! The figures as OpenMetrics text, which Prometheus and others read: gauges, in base units, with arm and setting as labels.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::analysis::statistics::Estimate;
use crate::analysis::summary::{Row, Summary};
use crate::experiment::place::Role;
use crate::record::Record;

/// A figure of a row: name, unit, what it is, and where it is.
type Figure = (&'static str, &'static str, &'static str, fn(&Row) -> Option<&Estimate>);

/// What a row has, times in nanoseconds.
const FIGURES: [Figure; 9] = [
    ("acquisitions_per_second", "", "Sections completed per second", |row| {
        row.acquisitions_per_second.as_ref()
    }),
    ("efficiency", "ratio", "Throughput over the ideal", |row| row.efficiency.as_ref()),
    ("jain", "ratio", "Fairness index of Jain", |row| row.jain.as_ref()),
    ("wait_half_of_time", "seconds", "Half of all waiting time went into waits at least this long", |row| {
        row.wait_half_of_time_ns.as_ref()
    }),
    ("wait_p50", "seconds", "Median time to get the lock", |row| row.wait_p50_ns.as_ref()),
    ("wait_p99", "seconds", "99th percentile of the time to get the lock", |row| row.wait_p99_ns.as_ref()),
    ("wait_p999", "seconds", "99.9th percentile of the time to get the lock", |row| {
        row.wait_p999_ns.as_ref()
    }),
    ("completion", "seconds", "Time that the fixed amount of work took", |row| row.completion_ns.as_ref()),
    ("lock_cpu", "ratio", "Share of the vCPUs' time that went into locks", |row| row.lock_cpu_share.as_ref()),
];

/// The parts of an estimate: what stands in the name, and in the help.
type Part = (&'static str, &'static str, fn(&Estimate) -> Option<f64>);
const PARTS: [Part; 3] = [
    ("", "estimate of Hodges and Lehmann", |estimate| Some(estimate.hodges_lehmann)),
    ("_low", "lower end of its 95 % interval", |estimate| Some(estimate.interval?.low)),
    ("_high", "upper end of its 95 % interval", |estimate| Some(estimate.interval?.high)),
];

pub(crate) fn write(summary: &Summary, records: &[Record]) -> String {
    let mut text = String::new();
    for (name, unit, about, of) in FIGURES {
        let factor = if unit == "seconds" { 1e-9 } else { 1.0 };
        for (part, which, value) in PARTS {
            let samples = summary.rows.iter().filter(|row| row.role != Role::Control).filter_map(|row| {
                let labels = labels(summary, &row.setting, &[("arm", &row.arm)]);
                Some((labels, value(of(row)?)? * factor))
            });
            family(&mut text, (&format!("{name}{part}"), unit), &format!("{about}: {which}"), samples);
        }
    }
    for (part, which, value) in PARTS {
        let samples = summary.comparisons.iter().filter_map(|it| {
            let names = [("comparison", it.name.as_str()), ("arm", &it.arm), ("baseline", &it.baseline)];
            Some((labels(summary, &it.setting, &names), value(it.ratio.as_ref()?)?))
        });
        let help = format!("An arm over its baseline within blocks: {which}");
        family(&mut text, (&format!("comparison{part}"), "ratio"), &help, samples);
    }
    let experiment = labels(summary, &BTreeMap::new(), &[]);
    let untrusted = records.iter().filter(|record| !record.trusted).count();
    for (name, help, count) in [
        ("runs", "Runs that the figures are made of", records.len()),
        ("runs_untrusted", "Those of them that are not to be trusted", untrusted),
    ] {
        family(&mut text, (name, ""), help, std::iter::once((experiment.clone(), count as f64)));
    }
    text + "# EOF\n"
}

/// A metric with all its samples; nothing where there are none.
fn family(
    text: &mut String,
    (name, unit): (&str, &str),
    help: &str,
    samples: impl Iterator<Item = (String, f64)>,
) {
    let samples: Vec<(String, f64)> = samples.collect();
    if samples.is_empty() {
        return;
    }
    let unit_of_name = if unit.is_empty() { String::new() } else { format!("_{unit}") };
    let name = format!("haltkick_{name}{unit_of_name}");
    let _ = writeln!(text, "# TYPE {name} gauge");
    if !unit.is_empty() {
        let _ = writeln!(text, "# UNIT {name} {unit}");
    }
    let _ = writeln!(text, "# HELP {name} {help}.");
    for (labels, value) in samples {
        let _ = writeln!(text, "{name}{{{labels}}} {value}");
    }
}

/// The experiment, the setting and `names`, in this order.
fn labels(summary: &Summary, setting: &BTreeMap<String, String>, names: &[(&str, &str)]) -> String {
    let experiment = ("experiment".to_owned(), summary.outline.experiment.as_str());
    let of_axis = |key: &String| Some((key.replace('-', "_"), setting.get(key)?.as_str()));
    let axes = summary.outline.axes.iter().filter_map(|axis| of_axis(&axis.key));
    let names = names.iter().map(|(name, value)| ((*name).to_owned(), *value));
    let all = std::iter::once(experiment).chain(axes).chain(names);
    all.map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect::<Vec<_>>().join(",")
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::measure::synthetic::{Sketch, World};

    #[test]
    fn families_stand_together_with_units_in_names_and_an_end_mark() {
        let sketch = Sketch::new().axis("ratio", &["1", "8"]).arm("a \"b\" \\", "tas").arm("c", "mcs");
        let plan = sketch.compare("c/a", "c", "a \"b\" \\").plan(8);
        let records = World::new(1).records(&plan);
        let text = write(&Summary::new(&plan.outline, &records), &records);
        assert!(text.ends_with("\n# EOF\n") && text.contains("arm=\"a \\\"b\\\" \\\\\"}"), "{text}");
        let mut families = BTreeSet::new();
        let mut family = "";
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" gauge")) {
                assert!(families.insert(name), "{name} stands there twice");
                family = name;
            } else if let Some(rest) = line.strip_prefix("# UNIT ") {
                let (name, unit) = rest.split_once(' ').unwrap();
                assert!(name == family && name.ends_with(&format!("_{unit}")), "{line}");
            } else if !line.starts_with("# HELP ") {
                let (name, rest) = line.split_once('{').unwrap();
                let value: f64 = rest.rsplit_once("} ").unwrap().1.parse().unwrap();
                assert!(name == family && value.is_finite(), "{line}");
            }
        }
        for name in [
            "haltkick_acquisitions_per_second_low",
            "haltkick_wait_p999_seconds",
            "haltkick_comparison_ratio",
        ] {
            assert!(families.contains(name), "{name}: {families:?}");
        }
    }
}
