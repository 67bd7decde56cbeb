//! The pictures of an experiment, each a file of its own and a part of the report.

mod curves;
mod phases;
mod rows;
mod timeline;

use std::collections::BTreeMap;

use crate::analysis::summary::{Setting, Summary};
use crate::experiment::outline::OutlineAxis;
use crate::record::Record;
use crate::record::place::{Place, Role, slug};
use crate::show::svg::{Anchor, Svg, WIDTH, text_width};

pub(crate) struct Picture {
    /// File name without its ending.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) caption: String,
    /// `None`: it cannot be drawn from these records, and the caption says why.
    pub(crate) svg: Option<Svg>,
}

impl Picture {
    /// Returns the place of a picture that cannot be drawn, for this reason.
    fn not_drawn(name: String, title: String, reason: &str) -> Self {
        Self { name, title, caption: format!("Not drawn: {reason}."), svg: None }
    }
}

pub(crate) struct Data<'a> {
    pub(crate) summary: &'a Summary,
    /// Records of arms, and of guests that ran alongside theirs, by setting and arm.
    runs: BTreeMap<&'a Setting, BTreeMap<&'a str, Vec<&'a Record>>>,
}

impl<'a> Data<'a> {
    pub(crate) fn new(summary: &'a Summary, records: &'a [Record]) -> Self {
        let mut runs: BTreeMap<&Setting, BTreeMap<&str, Vec<&Record>>> = BTreeMap::new();
        for record in records {
            let is_drawn = |place: &&Place| matches!(place.role, Role::Arm | Role::Beside);
            if let Some(place) = record.place.as_ref().filter(is_drawn) {
                runs.entry(&place.setting).or_default().entry(&place.arm).or_default().push(record);
            }
        }
        Self { summary, runs }
    }

    fn runs(&self, setting: &Setting, arm: &str) -> &[&'a Record] {
        self.runs.get(setting).and_then(|arms| arms.get(arm)).map_or(&[], Vec::as_slice)
    }

    /// Settings in the order of the file.
    fn settings(&self) -> Vec<&'a Setting> {
        let mut settings: Vec<&Setting> = self.runs.keys().copied().collect();
        settings.sort_by_key(|setting| self.summary.outline.rank(setting));
        settings
    }

    /// Settings without these keys, each once, in the order of the file.
    fn without(&self, keys: &[&String]) -> Vec<Setting> {
        let mut rest: Vec<Setting> = vec![];
        for setting in self.settings() {
            let mut setting = setting.clone();
            setting.retain(|key, _| !keys.contains(&key));
            if !rest.contains(&setting) {
                rest.push(setting);
            }
        }
        rest
    }

    /// Name and title of the picture at these settings, of several alike.
    fn named(&self, name: &str, title: &str, fixed: &Setting) -> (String, String) {
        if fixed.is_empty() {
            return (name.into(), title.into());
        }
        let of = self.name(fixed);
        (format!("{name}-{}", slug(&of)), format!("{title}: {of}"))
    }

    fn arms(&self) -> &'a [String] {
        &self.summary.outline.arms
    }

    /// "ratio 8, hold 5us".
    fn name(&self, setting: &Setting) -> String {
        self.summary.outline.name(setting)
    }
}

/// Colour and marker of an arm: grey 0 is for what is no arm.
fn series(arm: usize) -> usize {
    arm + 1
}

/// The title of a picture's axis.
fn title_of(axis: &OutlineAxis) -> &str {
    if axis.key == "ratio" { "vCPUs per pCPU" } else { &axis.key }
}

/// Height of a line of a key, and width of its sample.
const LINE: f64 = 17.0;
const SAMPLE: f64 = 34.0;
/// Room between the key and the edges of its picture.
const MARGIN: f64 = 8.0;

/// Names in columns.
struct Key<'a> {
    names: Vec<&'a str>,
    column: f64,
    columns: usize,
}

impl<'a> Key<'a> {
    fn new(names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<&str> = names.into_iter().collect();
        let widest = names.iter().map(|name| text_width(name)).fold(0.0, f64::max);
        let column = SAMPLE + widest + 8.0;
        let columns =
            ((WIDTH - 2.0 * MARGIN) / column).floor().clamp(1.0, names.len().max(1) as f64) as usize;
        Self { names, column, columns }
    }

    fn height(&self) -> f64 {
        self.names.len().div_ceil(self.columns) as f64 * LINE + 4.0
    }

    /// Draws each entry with `sample`, which is given the entry and the left end of its middle.
    fn draw(&self, svg: &mut Svg, top: f64, sample: impl Fn(&mut Svg, usize, (f64, f64))) {
        for (i, name) in self.names.iter().enumerate() {
            let x = MARGIN + (i % self.columns) as f64 * self.column;
            let y = top + (i / self.columns) as f64 * LINE;
            sample(svg, i, (x, y + 8.0));
            svg.text("", (x + SAMPLE - 6.0, y + 12.0), Anchor::Start, name);
        }
    }
}

fn of_shade(svg: &mut Svg, fill: &str, (x, y): (f64, f64)) {
    svg.rectangle((x + 8.0, y - 6.0), 14.0, 12.0, fill, "");
}

/// All pictures that the data are enough for.
pub(crate) fn pictures(data: &Data<'_>) -> Vec<Picture> {
    let [preemptions, fairness] = [&rows::PREEMPTIONS, &rows::FAIRNESS].map(|it| rows::picture(data, it));
    let others = [rows::time(data), preemptions, fairness, timeline::map(data)];
    let maps = phases::maps(data).into_iter();
    named_apart(maps.chain(curves::pictures(data)).chain(others.into_iter().flatten()).collect())
}

/// Names are parts of files' names: short ones, each with its number behind it if an earlier picture has it.
fn named_apart(mut pictures: Vec<Picture>) -> Vec<Picture> {
    const LONGEST: usize = 80;
    let mut had: BTreeMap<String, usize> = BTreeMap::new();
    for picture in &mut pictures {
        let short: String = picture.name.chars().take(LONGEST).collect();
        let count = had.entry(short.clone()).or_default();
        *count += 1;
        picture.name = if *count == 1 { short } else { format!("{short}~{count}") };
    }
    pictures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::Plan;
    use crate::measure::synthetic::{Sketch, assert_has};
    use crate::record::Timeline;
    use crate::record::figures::{ACQUISITIONS, THROUGHPUT};

    /// The pictures by name: each its file, or the caption that says why there is none.
    fn drawn(plan: &Plan, records: &[Record]) -> BTreeMap<String, String> {
        let pictures = pictures(&Data::new(&Summary::new(&plan.outline, records), records));
        pictures.into_iter().map(|it| (it.name, it.svg.map_or(it.caption, |svg| svg.file()))).collect()
    }

    #[test]
    fn every_arm_stands_in_every_picture_of_its_experiment() {
        let (rows, curves) = (Sketch::two().compared(), Sketch::two().axis("ratio", &["1", "4"]));
        let work = curves.clone().arm_with("c", "workload = 'mixed'\nwork = '1ms'\nlock = 'tas'");
        let arms: Vec<String> = (0..30).map(|i| format!("arm number {i}.")).collect();
        let many = arms.iter().fold(curves, |sketch, arm| sketch.arm(arm, "tas"));
        let longer = rows.clone().axis("ratio", &["1", "2", "4"]);
        for (sketch, shown, not_shown) in [
            (&rows, "throughput", "completion"),
            (&rows.clone().axis("ratio", &["4"]), "throughput", "completion"),
            (&work, "completion", "throughput"),
            (&many, "fairness", "comparison"),
            (&longer, "comparison", "map"),
            (&longer.clone().axis("think", &["0ns", "1us"]), "comparison-think-0ns", "map"),
        ] {
            let (plan, records) = sketch.measured(4);
            let pictures = drawn(&plan, &records);
            let names = pictures.keys().collect::<Vec<_>>();
            assert!(pictures.contains_key(shown) && !pictures.contains_key(not_shown), "{names:?}");
            let estimates = [("throughput", "b"), ("efficiency", "a"), ("comparison", "b/a")];
            for (name, row) in estimates.iter().filter(|_| not_shown == "completion") {
                let file = &pictures[*name];
                assert_has(file, &[&format!(">{row}</text>"), "class=\"bar\"", "with 95 % interval"]);
                assert!(!file.contains("NaN") && !file.contains("inf"), "{name}: {file}");
                assert_eq!(file.contains("class=\"axis\""), *name == "comparison", "a line at 1: {file}");
            }
            for (name, file) in
                pictures.iter().filter(|(_, file)| shown == "fairness" && file.contains("<svg"))
            {
                let missing = |arm: &&String| !file.contains(&format!(">{arm}</text>"));
                assert_eq!(arms.iter().filter(missing).collect::<Vec<_>>(), [""; 0], "{name}");
            }
        }
    }

    #[test]
    fn an_arm_without_progress_still_has_its_row() {
        let (plan, mut records) = Sketch::two().measured(4);
        for record in records.iter_mut().filter(|record| record.placed().arm == "b") {
            [ACQUISITIONS, THROUGHPUT].into_iter().for_each(|name| record.figures.set(name, 0.0));
        }
        let file = &drawn(&plan, &records)["throughput"];
        assert!(file.contains(">b</text>") && file.contains(">no estimate</text>"), "{file}");
    }

    #[test]
    fn an_arm_has_neither_bar_nor_strip_where_it_did_not_run() {
        let (plan, mut records) = Sketch::two().axis("ratio", &["1", "2"]).measured(4);
        let rows = |records: &[Record]| {
            let pictures = drawn(&plan, records);
            ["fairness", "preemptions", "time"].map(|name| pictures[name].matches(">b</text>").count())
        };
        let whole = rows(&records);
        records.retain(|it| it.placed().arm != "b" || it.settings.vcpus() == it.settings.pcpus() as u32);
        assert_eq!(rows(&records), whole.map(|rows| rows - 1), "of {whole:?}");
    }

    #[test]
    fn each_arms_first_run_maps_its_vcpus_by_half_a_slice() {
        let (plan, mut records) = Sketch::two().axis("ratio", &["1", "2"]).measured(4);
        let without = &drawn(&plan, &records)["timeline"];
        assert!(without.starts_with("Not drawn: only KVM"), "{without}");
        for record in &mut records {
            let place = record.placed();
            // A bin shows where its vCPU was for half of it or more.
            let of_arm = if place.arm == "a" { "..wwhhrs" } else { "ssssssss" };
            let vcpus = record.per_vcpu.len();
            record.timeline = (place.block == 0).then(|| Timeline {
                bin_ns: 500_000,
                on_pcpu: vec!["95400000".into(); vcpus],
                off_pcpu: vec![of_arm.into(); vcpus],
            });
        }
        let summary = Summary::new(&plan.outline, &records);
        let found = timeline::map(&Data::new(&summary, &records)).unwrap();
        assert!(found.caption.contains("at ratio 2"), "{}", found.caption);
        let file = found.svg.unwrap().file();
        for (words, times) in [
            ("<title>a: taken off, holding the lock</title>", 1),
            ("<title>a: off, doing neither</title>", 1),
            ("<title>b: asleep</title>", 1),
            ("<title>b: taken off, holding the lock</title>", 0),
            (">4.00 ms</text>", 2),
            // Two bins of eight are one area: on the pCPU, in the queue and holding, and of `b` on the pCPU alone.
            ("h171.5v", 4 * (3 + 1)),
        ] {
            assert_eq!(file.matches(words).count(), times, "{words}: {file}");
        }
    }

    #[test]
    fn pictures_of_settings_that_look_alike_have_names_of_their_own() {
        let long = format!("throughput-{}", "0-2-4-6-8".repeat(30));
        let names = ["throughput-cpus-0-3", "throughput-cpus-0-3", &long, &long];
        let picture = |name: &str| Picture::not_drawn(name.into(), String::new(), "");
        let apart = named_apart(names.into_iter().map(picture).collect());
        let [first, second, third, fourth] = &apart[..] else { panic!("all stay") };
        assert_eq!((&*first.name, &*second.name), ("throughput-cpus-0-3", "throughput-cpus-0-3~2"));
        assert!(third.name != fourth.name && fourth.name.len() < 100, "{}", fourth.name);
        assert_eq!(slug("+3 % (hold=1.03us) PV"), "3-hold-1.03us-pv", "fit for shells and file names");
    }

    #[test]
    fn guests_that_share_the_pcpus_are_held_against_all_of_them() {
        let (plan, records) = Sketch::two().axis("ratio", &["1"]).measured(4);
        // A second guest in each run.
        let both: Vec<Record> = records.iter().flat_map(|record| [record.clone(), record.clone()]).collect();
        let time = rows::time(&Data::new(&Summary::new(&plan.outline, &records), &both));
        assert!(time.is_none_or(|time| time.svg.is_none()), "whose idle time is it?");
    }
}
