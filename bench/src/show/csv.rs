//! Long-form CSV: one value per line, so that pandas, R and DuckDB need no reshaping.
//!
//! Names are as they are in records, so that both join, also where a spreadsheet would take one for a formula: docs/data.md says how to
//! open such a file.

use csv::Writer;

use crate::analysis::statistics::Estimate;
use crate::analysis::summary::{Setting, Summary};
use crate::experiment::outline::Outline;
use crate::record::Record;
use crate::record::place::Role;

/// Estimates: `setting...,arm,baseline,metric,n,median,hodges_lehmann,low,high`.
pub(crate) fn summary(summary: &Summary) -> String {
    let columns = ["arm", "baseline", "metric", "n", "median", "hodges_lehmann", "low", "high"];
    let arms = summary.rows.iter().chain(&summary.together).flat_map(|row| {
        let arm = format!("{}{}", row.arm, if row.role == Role::Control { " (control)" } else { "" });
        row.figures.iter().map(move |(name, told)| {
            let names = [arm.clone(), String::new(), name.clone()];
            (&row.setting, figure(names, (told.runs, Some(told.median)), told.estimate.as_ref()))
        })
    });
    let comparisons = summary.comparisons.iter().chain(&summary.control).map(|it| {
        let names = [it.arm.clone(), it.baseline.clone(), format!("ratio: {}", it.name)];
        (&it.setting, figure(names, (0, None), it.ratio.as_ref()))
    });
    table(&summary.outline, &columns, arms.chain(comparisons))
}

/// A figure by its estimate; where there is none, which needs values above 0, by its median of some runs.
fn figure(
    names: [String; 3],
    (runs, median): (usize, Option<f64>),
    estimate: Option<&Estimate>,
) -> Vec<String> {
    let interval = estimate.and_then(|it| it.interval);
    let numbers = [
        estimate.map(|it| it.median).or(median),
        estimate.map(|it| it.hodges_lehmann),
        interval.map(|it| it.low),
        interval.map(|it| it.high),
    ];
    let n = estimate.map_or(runs, |it| it.n).to_string();
    names.into_iter().chain([n]).chain(numbers.map(number)).collect()
}

fn number(number: Option<f64>) -> String {
    number.map_or(String::new(), |number| number.to_string())
}

/// Raw values, one per line. The name of the experiment and the settings that vary stand before these columns.
const COLUMNS: [&str; 10] =
    ["arm", "role", "cell_id", "block", "order_index", "run_id", "host", "trusted", "metric", "value"];

/// All figures of all runs, and shares of the pCPUs' time that others took.
pub(crate) fn runs(outline: &Outline, records: &[Record]) -> String {
    let placed = records.iter().filter_map(|record| Some((record.place.as_ref()?, record)));
    let lines = placed.flat_map(|(place, record)| {
        let of_run = [
            place.arm.clone(),
            format!("{:?}", place.role).to_lowercase(),
            place.cell_id.clone(),
            place.block.to_string(),
            place.order_index.to_string(),
            record.run_id.clone(),
            record.host.identity(),
            record.trusted.to_string(),
        ];
        let noise = &record.noise;
        let shares = [("others_share", noise.others_share), ("steal_share", noise.steal_share)];
        let shares = shares.map(|(name, share)| (name.to_owned(), share));
        record.named().chain(shares).map(move |(name, value)| {
            let fields = of_run.iter().cloned().chain([name, number(value)]);
            (&place.setting, fields.collect::<Vec<String>>())
        })
    });
    table(outline, &COLUMNS, lines)
}

/// Lines that the experiment's name and its settings begin.
fn table<'a>(
    outline: &Outline,
    columns: &[&str],
    lines: impl Iterator<Item = (&'a Setting, Vec<String>)>,
) -> String {
    let mut csv: Writer<Vec<u8>> = Writer::from_writer(vec![]);
    let mut write = |experiment: &str, of_setting: Vec<String>, fields: Vec<String>| {
        let line = [vec![experiment.to_owned()], of_setting, fields].concat();
        csv.write_record(line).expect("lines of one length, into memory");
    };
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    write("experiment", outline.setting_columns(), columns);
    for (setting, fields) in lines {
        write(&outline.experiment, outline.setting_values(setting), fields);
    }
    let bytes = csv.into_inner().expect("memory is written to");
    String::from_utf8(bytes).expect("made of text")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::measure::synthetic::Sketch;
    use crate::record::figures::FIGURES;

    #[test]
    fn figures_read_back_whatever_names_begin_with_and_times_in_nanoseconds() {
        let names = ["=1+1", "-O2", "+c", "@home", "'quoted", "a, b", "two\"s", "\u{fc}"];
        let sketch = Sketch::new().axis("hold", &["500ns", "1.5us"]);
        let sketch = names.iter().fold(sketch, |sketch, name| sketch.arm(name, "tas"));
        let (plan, mut records) = sketch.compare("-O2/=1+1", "-O2", "=1+1").measured(2);
        records[0].warn("busy-neighbour", "somebody".into());
        let summary = Summary::new(&plan.outline, &records);
        let figures = records.iter().map(|record| record.figures.iter().count() + 2).sum();
        let estimates: usize = summary.rows.iter().map(|row| row.figures.len()).sum();
        for (text, lines) in [
            (super::summary(&summary), estimates + summary.comparisons.len()),
            (runs(&plan.outline, &records), figures),
        ] {
            assert!(text.starts_with("experiment,hold,hold_ns,arm,"), "{text}");
            let mut reader = csv::Reader::from_reader(text.as_bytes());
            let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
            assert!(rows.len() == lines && rows.iter().all(|row| &row[0] == "sketch"), "{text}");
            let times: BTreeSet<(&str, &str)> = rows.iter().map(|row| (&row[1], &row[2])).collect();
            assert_eq!(times, BTreeSet::from([("1.5us", "1500"), ("500ns", "500")]));
            // Host and validity of a run, where the lines are of runs.
            for row in rows.iter().filter(|row| row.len() == 3 + COLUMNS.len()) {
                let record = records.iter().find(|record| record.run_id == row[8]).unwrap();
                assert_eq!((&row[9], &row[10]), ("host-a", record.trusted.to_string().as_str()));
            }
            let arms: BTreeSet<&str> = rows.iter().map(|row| &row[3]).collect();
            let in_records = records.iter().map(|record| record.placed().arm.as_str());
            assert_eq!(arms, in_records.collect(), "{text}");
        }
        assert!(super::summary(&summary).contains(",ratio: -O2/=1+1,"));
    }

    #[test]
    fn every_figure_is_in_csv_summary_and_schema_under_one_name() {
        let (plan, mut records) = Sketch::new().arm("a", "tas").measured(2);
        let rows = || FIGURES.iter().filter(|row| !row.name.contains('*'));
        for record in &mut records {
            rows().for_each(|row| record.figures.set(row.name, 7.0));
        }
        let found = Summary::new(&plan.outline, &records);
        let (runs, estimates) = (runs(&plan.outline, &records), super::summary(&found));
        let schema = serde_json::to_value(schemars::schema_for!(Record)).unwrap();
        for row in rows() {
            let told = &schema["$defs"]["Figures"]["properties"][row.name]["description"];
            let unit = format!("Unit: {}.", row.unit.word());
            assert!(told.as_str().is_some_and(|told| told.ends_with(&unit)), "{}: {told}", row.name);
            let line = format!(",{},", row.name);
            assert!(runs.contains(&line), "{}", row.name);
            assert_eq!(estimates.contains(&line), row.center.is_some(), "{}", row.name);
            let told = found.rows.iter().find_map(|arm| arm.figure(row.name));
            assert_eq!(told.map(|it| it.unit.as_str()), row.center.map(|_| row.unit.word()), "{}", row.name);
        }
    }
}
