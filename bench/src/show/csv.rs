//! Long-form CSV: one value per line, so that pandas, R and DuckDB need no reshaping.
//!
//! Names are as they are in records, so that both join, also where a spreadsheet would take one for a formula: docs/data.md says how to
//! open such a file.

use csv::Writer;

use crate::analysis::statistics::Estimate;
use crate::analysis::summary::{Setting, Summary};
use crate::experiment::outline::Outline;
use crate::record::Record;
use crate::record::figures::LOCK_EVENT;
use crate::record::place::Role;

/// Estimates: `setting...,arm,baseline,metric,n,median,hodges_lehmann,low,high`.
pub(crate) fn summary(summary: &Summary) -> String {
    let columns = ["arm", "baseline", "metric", "n", "median", "hodges_lehmann", "low", "high"];
    let mut csv = Table::new(&summary.outline, &columns);
    for row in summary.rows.iter().chain(&summary.together) {
        let arm = format!("{}{}", row.arm, if row.role == Role::Control { " (control)" } else { "" });
        for (name, told) in &row.figures {
            let names = [arm.as_str(), "", name];
            csv.figure(&row.setting, names, (told.runs, Some(told.median)), told.estimate.as_ref());
        }
    }
    for comparison in summary.comparisons.iter().chain(&summary.control) {
        let names = [comparison.arm.as_str(), &comparison.baseline, &format!("ratio: {}", comparison.name)];
        csv.figure(&comparison.setting, names, (0, None), comparison.ratio.as_ref());
    }
    csv.finish()
}

/// Raw values, one per line. The name of the experiment and the settings that vary stand before these columns.
const COLUMNS: [&str; 10] =
    ["arm", "role", "cell_id", "block", "order_index", "run_id", "host", "trusted", "metric", "value"];

/// All figures of all runs, and shares of the pCPUs' time that others took.
pub(crate) fn runs(outline: &Outline, records: &[Record]) -> String {
    let mut csv = Table::new(outline, &COLUMNS);
    for record in records {
        let Some(place) = &record.place else { continue };
        let role = format!("{:?}", place.role).to_lowercase();
        let (block, index) = (place.block.to_string(), place.order_index.to_string());
        let (host, trusted) = (record.host.identity(), record.trusted.to_string());
        let of_run = [&place.arm, &role, &place.cell_id, &block, &index, &record.run_id, &host, &trusted];
        let noise = &record.noise;
        let events = record.lock_events.iter().filter(|_| record.is_linux());
        let figures = record.figures.iter().map(|(name, value)| (name.to_owned(), value));
        let figures =
            figures.chain(events.map(|(name, count)| (format!("{LOCK_EVENT}{name}"), Some(count)))).chain(
                [("others_share", noise.others_share), ("steal_share", noise.steal_share)]
                    .map(|(name, share)| (name.into(), share)),
            );
        for (name, value) in figures {
            let value = value.map_or(String::new(), |value| value.to_string());
            let fields: Vec<&str> =
                of_run.iter().map(|field| field.as_str()).chain([name.as_str(), &value]).collect();
            csv.line(&place.setting, &fields);
        }
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

    fn line(&mut self, setting: &Setting, fields: &[&str]) {
        let outline = self.outline;
        let values = outline.setting_values(setting);
        let experiment = std::iter::once(outline.experiment.as_str());
        self.write(experiment.chain(values.iter().map(String::as_str)).chain(fields.iter().copied()));
    }

    /// A figure by its estimate; where there is none, which needs values above 0, by its median of some runs.
    fn figure(
        &mut self,
        setting: &Setting,
        [arm, baseline, metric]: [&str; 3],
        (runs, median): (usize, Option<f64>),
        estimate: Option<&Estimate>,
    ) {
        let interval = estimate.and_then(|it| it.interval);
        let numbers = [
            estimate.map(|it| it.median).or(median),
            estimate.map(|it| it.hodges_lehmann),
            interval.map(|it| it.low),
            interval.map(|it| it.high),
        ];
        let n = estimate.map_or(runs, |it| it.n).to_string();
        let [median, hodges_lehmann, low, high] =
            numbers.map(|number| number.map_or(String::new(), |number| number.to_string()));
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
    use crate::record::figures::FIGURES;

    #[test]
    fn every_figure_reads_back_whatever_the_names_begin_with() {
        let names = ["=1+1", "-O2", "+c", "@home", "'quoted", "a, b", "two\"s", "\u{fc}"];
        let sketch = names.iter().fold(Sketch::new(), |sketch, name| sketch.arm(name, "tas"));
        let plan = sketch.compare("-O2/=1+1", "-O2", "=1+1").plan(2);
        let mut records = World::new(1).records(&plan);
        records[0].warn("busy-neighbour", "somebody".into());
        let summary = Summary::new(&plan.outline, &records);
        let figures = records.iter().map(|record| record.figures.iter().count() + 2).sum();
        let estimates: usize = summary.rows.iter().map(|row| row.figures.len()).sum();
        for (text, lines) in [
            (super::summary(&summary), estimates + summary.comparisons.len()),
            (runs(&plan.outline, &records), figures),
        ] {
            let mut reader = csv::Reader::from_reader(text.as_bytes());
            let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
            assert!(rows.len() == lines && rows.iter().all(|row| &row[0] == "sketch"), "{text}");
            // Host and validity of a run, where the lines are of runs.
            for row in rows.iter().filter(|row| row.len() > COLUMNS.len()) {
                let record = records.iter().find(|record| record.run_id == row[6]).unwrap();
                assert_eq!((&row[7], &row[8]), ("host-a", record.trusted.to_string().as_str()));
            }
            let arms: BTreeSet<&str> = rows.iter().map(|row| &row[1]).collect();
            let in_records = records.iter().map(|record| record.placed().arm.as_str());
            assert_eq!(arms, in_records.collect(), "{text}");
        }
        assert!(super::summary(&summary).contains(",ratio: -O2/=1+1,"));
    }

    #[test]
    fn times_that_vary_have_a_column_in_nanoseconds() {
        let plan =
            Sketch::new().axis("ratio", &["8"]).axis("hold", &["500ns", "1.5us"]).arm("a", "tas").plan(1);
        let records = World::new(1).records(&plan);
        let summary = super::summary(&Summary::new(&plan.outline, &records));
        for text in [summary, runs(&plan.outline, &records)] {
            assert!(text.starts_with("experiment,ratio,hold,hold_ns,"), "{text}");
            let of_line = |line: &str| line.split(',').skip(2).take(2).map(String::from).collect::<Vec<_>>();
            let times: BTreeSet<Vec<String>> = text.lines().skip(1).map(of_line).collect();
            let expected = [["1.5us", "1500"], ["500ns", "500"]].map(|it| it.map(String::from).to_vec());
            assert_eq!(times, BTreeSet::from(expected));
        }
    }

    #[test]
    fn every_figure_is_in_csv_summary_and_schema_under_one_name() {
        let plan = Sketch::new().arm("a", "tas").plan(2);
        let mut records = World::new(1).records(&plan);
        let rows = || FIGURES.iter().filter(|row| !row.name.contains('*'));
        for record in &mut records {
            rows().for_each(|row| record.figures.set(row.name, 7.0));
        }
        let found = Summary::new(&plan.outline, &records);
        let (runs, estimates) = (runs(&plan.outline, &records), super::summary(&found));
        let schema = serde_json::to_value(schemars::schema_for!(Record)).unwrap();
        let figures = &schema["$defs"]["Figures"];
        for row in FIGURES {
            let (part, name) = match row.name.contains('*') {
                true => ("patternProperties", format!("^{}$", row.name.replace('*', ".+"))),
                false => ("properties", row.name.into()),
            };
            let told = figures[part][name]["description"].as_str().expect(row.name);
            assert!(told.ends_with(&format!("Unit: {}.", row.unit.word())), "{}: {told}", row.name);
        }
        for row in rows() {
            let line = format!(",{},", row.name);
            assert!(runs.contains(&line), "{}", row.name);
            assert_eq!(estimates.contains(&line), row.center.is_some(), "{}", row.name);
            let told = found.rows.iter().find_map(|arm| arm.figure(row.name));
            assert_eq!(told.map(|it| it.unit.as_str()), row.center.map(|_| row.unit.word()), "{}", row.name);
        }
    }
}
