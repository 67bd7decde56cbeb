//! `haltkick reproduce`: the published figures of the seeds beside ours, from runs made here and now.
//!
//! Each experiment that a row of [`seeds`] names is run into a directory of its own, and completed rather than run
//! again if that directory is there already. The table is made of their summaries.

mod figure;
mod row;
mod seeds;
mod verdict;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anstyle::{AnsiColor, Style};
use schemars::JsonSchema;
use serde::Serialize;

use crate::analysis::attempts;
use crate::analysis::statistics::Estimate;
use crate::analysis::summary::Summary;
use crate::cli::{Format, ReproduceArgs};
use crate::commands::bench;
use crate::results::directory;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::nearest;
use crate::text::output;
use crate::text::quantity::significant;
use crate::text::timestamp;
use crate::text::wrap::{paragraph, wrap};

use figure::Results;
use row::{Figure, Mark, Row, Share};
use verdict::{Agreement, MARGIN, MARGIN_NEAR_1};

/// What `haltkick reproduce` finds; `reproduction.json`.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct Reproduction {
    /// "haltkick.reproduction".
    pub(crate) schema: String,
    /// 1.
    pub(crate) schema_version: u32,
    /// One row per published figure.
    pub(crate) rows: Vec<Reproduced>,
    /// What speaks against the figures of each experiment.
    pub(crate) warnings: Vec<String>,
}

/// A published figure and ours.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct Reproduced {
    /// The thread that it comes from, and its year.
    seed: String,
    /// Where it was published: author, subject, list and month.
    source: String,
    /// What was compared there, by which measure.
    figure: String,
    /// Whether the figure is a ratio or a share.
    quantity: Quantity,
    /// The ratio, or the share, that was published.
    published: f64,
    /// The same from another run there, if one was published.
    published_again: Option<f64>,
    /// Where that was measured.
    machine: String,
    /// CPUs there; null if nobody says.
    pcpus_there: Option<u32>,
    /// CPUs here; null if the experiment was not run.
    pcpus_here: Option<usize>,
    /// vCPUs, or threads, for each CPU there; null if nobody says.
    ratio_there: Option<f64>,
    /// vCPUs for each pCPU here; null if the experiment was not run.
    ratio_here: Option<f64>,
    /// What is as it was there.
    alike: Alike,
    /// Our experiment.
    experiment: String,
    /// Our figure; null if there is none.
    ours: Option<Estimate>,
    /// Settings at which ours was measured.
    setting: BTreeMap<String, String>,
    /// Where the same thing must make no difference.
    control: Option<Estimate>,
    /// What was published of the control.
    control_published: Option<f64>,
    /// Whether ours agrees.
    agreement: Agreement,
    /// Why the two are alike or not; or why there is no figure.
    why: String,
    /// The page that has more.
    page: String,
}

/// What figures are.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Quantity {
    /// A ratio.
    Ratio,
    /// A share.
    Share,
}

/// What is as it was in the seed: true, false, or null where nobody says.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Serialize)]
struct Alike {
    /// The version of the locks, their spin threshold included.
    lock: Option<bool>,
    /// vCPUs for each CPU.
    ratio: Option<bool>,
    /// What runs beside what, on which CPUs, under whose scheduler.
    arrangement: Option<bool>,
    /// What is done.
    workload: Option<bool>,
}

impl Alike {
    fn of(row: &Row, ratio_here: Option<f64>) -> Self {
        /// 60 vCPUs on 32 CPUs and 4 on 2 are alike.
        const NEARLY: f64 = 1.1;
        let known = |mark| match mark {
            Mark::Same => Some(true),
            Mark::Other => Some(false),
            Mark::Unknown => None,
        };
        let near = |(there, here): (f64, f64)| (1.0 / NEARLY..=NEARLY).contains(&(here / there));
        Self {
            lock: known(row.alike.lock),
            ratio: row.ratio.zip(ratio_here).map(near),
            arrangement: known(row.alike.arrangement),
            workload: known(row.alike.workload),
        }
    }

    /// Four letters: capital where it is as it was there, a dash where it is not, a question mark where nobody says.
    fn letters(self) -> String {
        let letters = [(self.lock, 'L'), (self.ratio, 'R'), (self.arrangement, 'A'), (self.workload, 'W')];
        let letter = |(is, letter): (Option<bool>, char)| match is {
            Some(true) => letter,
            Some(false) => '-',
            None => '?',
        };
        letters.map(letter).iter().collect()
    }
}

pub(crate) fn reproduce(args: &ReproduceArgs) -> Result<Exit> {
    let names = chosen(&args.experiments)?;
    let output = args.output.clone().unwrap_or_else(default_output);
    let mut exit = Exit::Done;
    let (mut results, mut failures) = (BTreeMap::new(), BTreeMap::new());
    for (i, name) in names.iter().enumerate() {
        output::talk(&format!("experiment {} of {}: {name}", i + 1, names.len()));
        match bench::run_in(name, &args.overrides, &output.join(name)) {
            Ok((summary, ending)) => {
                let records = attempts::last(&directory::read_records(&output.join(name))?);
                results.insert(*name, Results { summary, records });
                exit = worse(exit, ending);
            }
            Err(failure) => {
                output::talk(&format!("haltkick: {failure}"));
                exit = failure.exit;
                failures.insert(*name, failure.message);
                if matches!(exit, Exit::Interrupted | Exit::HostLacks | Exit::Usage) {
                    break;
                }
            }
        }
    }
    let rows = seeds::rows().filter(|row| names.contains(&row.experiment));
    let rows = rows.map(|row| reproduced(row, results.get(row.experiment), failures.get(row.experiment)));
    let reproduction = Reproduction {
        schema: "haltkick.reproduction".into(),
        schema_version: 1,
        rows: rows.collect(),
        warnings: names
            .iter()
            .filter_map(|name| Some(&results.get(name)?.summary))
            .flat_map(warnings)
            .collect(),
    };
    if !results.is_empty() {
        conclude(&reproduction, &output, args.format)?;
    }
    Ok(exit)
}

fn warnings(summary: &Summary) -> Vec<String> {
    let of_experiment = |warning: &String| format!("{}: {warning}", summary.outline.experiment);
    summary.warnings.iter().map(of_experiment).collect()
}

/// A failure outlasts runs that are not to be trusted, and those outlast runs that are.
fn worse(so_far: Exit, next: Exit) -> Exit {
    if matches!(so_far, Exit::Done | Exit::Untrusted) && next != Exit::Done { next } else { so_far }
}

/// The experiments to run, in the order of the rows.
fn chosen(asked: &[String]) -> Result<Vec<&'static str>> {
    let mut names: Vec<&str> = seeds::rows().map(|row| row.experiment).collect();
    names.dedup();
    if let Some(unknown) = asked.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(Failure::usage(nearest::unknown("experiment of a seed", unknown, &names)));
    }
    names.retain(|name| asked.is_empty() || asked.iter().any(|asked| asked == name));
    Ok(names)
}

fn default_output() -> PathBuf {
    Path::new("experiments-out").join(format!("reproduce-{}", timestamp::for_file_name(SystemTime::now())))
}

fn reproduced(row: &Row, results: Option<&Results>, failure: Option<&String>) -> Reproduced {
    let pcpus_here = results.and_then(Results::pcpus);
    let fewer_than = |pcpus: u32| pcpus_here.is_some_and(|here| here < pcpus as usize);
    let stand_in = row.on_fewer.filter(|_| fewer_than(row.pcpus));
    let figure = stand_in.unwrap_or(row.ours);
    let is_beyond = fewer_than(row.needs_pcpus);
    let found = results.filter(|_| !is_beyond).map(|results| results.figure(figure)).unwrap_or_default();
    let control = results.filter(|_| !is_beyond).and_then(|results| match row.control {
        Some(control) => results.comparison(&control.ours),
        None => results.summary.control.as_ref(),
    });
    let ours = found.estimate;
    let (quantity, agreement) = match figure {
        Figure::Share { .. } => (Quantity::Share, Agreement::of_share(row.published, ours.as_ref())),
        Figure::Ratio(_) | Figure::Slowdown { .. } => {
            let published: Vec<f64> = std::iter::once(row.published).chain(row.again).collect();
            (Quantity::Ratio, Agreement::of(&published, ours.as_ref()))
        }
    };
    Reproduced {
        seed: row.seed.into(),
        source: row.source.into(),
        figure: row.figure.into(),
        quantity,
        published: row.published,
        published_again: row.again,
        machine: row.machine.into(),
        pcpus_there: (row.pcpus > 0).then_some(row.pcpus),
        pcpus_here,
        ratio_there: row.ratio,
        ratio_here: found.ratio,
        alike: Alike::of(row, found.ratio),
        experiment: row.experiment.into(),
        agreement: if is_beyond { Agreement::NeedsPcpus { pcpus: row.needs_pcpus } } else { agreement },
        ours,
        setting: found.setting,
        control: control.and_then(|control| control.ratio.clone()),
        control_published: row.control.and_then(|control| control.published),
        why: failure.map_or_else(|| why(row, figure), |failure| format!("not measured: {failure}")),
        page: row.page.into(),
    }
}

/// Why the two are alike or not, with what ours is a share of.
fn why(row: &Row, figure: Figure) -> String {
    match figure {
        Figure::Share { of, .. } => format!("Ours is {}. {}", Share::words(of), row.why),
        Figure::Ratio(_) | Figure::Slowdown { .. } => row.why.into(),
    }
}

fn conclude(reproduction: &Reproduction, path: &Path, format: Format) -> Result<()> {
    let json = serde_json::to_string_pretty(reproduction)
        .map_err(|error| Failure::internal(format!("the reproduction as JSON: {error}")))?;
    let json = json + "\n";
    directory::write_whole(&path.join("reproduction.json"), &json)?;
    match format {
        Format::Table => output::data(&text(reproduction))?,
        Format::Json => output::data(&json)?,
    }
    output::talk(&format!("results: {}", path.display()));
    Ok(())
}

/// The table: one row per figure with the reasons below it.
fn text(reproduction: &Reproduction) -> String {
    let bold = Style::new().bold();
    let mut text = format!(
        "{bold}{:<12} {:<24} {:<31} {:>8} {:>10} {:>5}{bold:#}\n",
        "published", "ours", "control", "pCPUs", "ratio", "like"
    );
    reproduction.rows.iter().for_each(|row| text += &entry(row));
    let percent = |margin: f64| significant((margin - 1.0) * 100.0);
    let legend = format!(
        "published and ours are ratios, or shares in percent, (low to high) is the 95 % interval; control: where nothing \
         should differ, [as published]; pCPUs, and ratio, vCPUs for each of them: there / here. like: what is as it was \
         there: L version of the lock, R ratio, A arrangement, W workload; - it is not, ? nobody says. agrees: the whole \
         interval lies within {} % of what was published ({} % where that is near 1). N blocks: about as many would tell; a \
         word without that would not change if the interval was narrower.",
        percent(MARGIN),
        percent(MARGIN_NEAR_1)
    );
    text += "\n";
    for line in wrap(&legend, 0) {
        let _ = writeln!(text, "{line}");
    }
    let yellow = AnsiColor::Yellow.on_default();
    for warning in &reproduction.warnings {
        for line in wrap(&format!("warning: {warning}"), 2) {
            let _ = writeln!(text, "{yellow}{line}{yellow:#}");
        }
    }
    text
}

/// One row of it.
fn entry(row: &Reproduced) -> String {
    let bold = Style::new().bold();
    let mut text = String::new();
    for line in wrap(&format!("{}: {}", row.seed, row.agreement.word()), 2) {
        let _ = writeln!(text, "\n{bold}{line}{bold:#}");
    }
    let published: Vec<f64> = std::iter::once(row.published).chain(row.published_again).collect();
    let (published, ours) = match row.quantity {
        Quantity::Ratio => (each(&published, significant) + "x", ratio(row.ours.as_ref())),
        Quantity::Share => (each(&published, percent_of), share(row.ours.as_ref())),
    };
    let mut control = ratio(row.control.as_ref());
    if let Some(published) = row.control_published {
        let _ = write!(control, " [{published}]");
    }
    let of_both = |there: Option<String>, here: Option<String>| {
        format!("{} / {}", there.unwrap_or("?".into()), here.unwrap_or("-".into()))
    };
    let pcpus = of_both(row.pcpus_there.map(|it| it.to_string()), row.pcpus_here.map(|it| it.to_string()));
    let ratios = of_both(row.ratio_there.map(significant_short), row.ratio_here.map(significant_short));
    let letters = row.alike.letters();
    let _ = writeln!(text, "{published:<12} {ours:<24} {control:<31} {pcpus:>8} {ratios:>10} {letters:>5}");
    let setting: String = row.setting.iter().map(|(key, value)| format!(", {key} {value}")).collect();
    let ours = format!("Ours: experiment {}{setting}.", row.experiment);
    let words = format!(
        "{}; {}. {ours} {} See {}. Published: {}.",
        row.figure, row.machine, row.why, row.page, row.source
    );
    for line in paragraph(&words, 2) {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn each(values: &[f64], text: fn(f64) -> String) -> String {
    values.iter().map(|value| text(*value)).collect::<Vec<_>>().join(", ")
}

/// Without zeros behind the point.
fn significant_short(value: f64) -> String {
    let text = significant(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

fn percent_of(share: f64) -> String {
    format!("{} %", significant(share * 100.0))
}

fn ratio(estimate: Option<&Estimate>) -> String {
    estimate.map_or("no figure".into(), Estimate::as_ratio)
}

fn share(estimate: Option<&Estimate>) -> String {
    let Some(estimate) = estimate else { return "no figure".into() };
    let interval = estimate.interval.map_or(String::new(), |it| {
        format!(" ({} to {})", significant(it.low * 100.0), significant(it.high * 100.0))
    });
    percent_of(estimate.hodges_lehmann) + &interval
}

#[cfg(test)]
mod tests {
    use haltkick_vmm::{Image, Sched};

    use super::*;
    use crate::analysis::statistics::{Interval, Method};
    use crate::experiment::plan::Plan;
    use crate::experiment::{Experiment, Source};
    use crate::host::cpulist::CpuList;
    use crate::measure::synthetic::World;
    use crate::settings::Supply;

    /// That `setting` picks one point of the experiment's grid, at which `arms` stand.
    fn picks_one(row: &Row, experiment: &Experiment, setting: row::Setting, arms: &[&str]) {
        for (key, value) in setting {
            let axis = experiment.axes.iter().find(|axis| axis.key == *key).expect(key);
            assert!(axis.values.iter().any(|(each, _)| each == value), "{}: {key} {value}", row.seed);
        }
        let open = experiment
            .axes
            .iter()
            .filter(|axis| axis.values.len() > 1 && !setting.iter().any(|(key, _)| *key == axis.key));
        let open: Vec<&str> = open.map(|axis| axis.key.as_str()).collect();
        assert!(open.is_empty(), "{}: several points, {open:?} are open", row.seed);
        let owned: Vec<_> = setting.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        for name in arms {
            let first = name.split(crate::experiment::names::BESIDE).next().unwrap();
            let arm = experiment.arms.iter().find(|arm| arm.name == first).expect(name);
            assert!(arm.stands_at(&owned), "{}: arm '{name}' does not stand there", row.seed);
        }
    }

    fn check_point(row: &Row, experiment: &Experiment, point: &row::Point) {
        let named: Vec<_> = experiment.comparisons.iter().filter(|it| it.name == point.comparison).collect();
        assert_eq!(named.len(), 1, "{}: comparison '{}'", row.seed, point.comparison);
        picks_one(row, experiment, point.setting, &[&named[0].arm, &named[0].baseline]);
    }

    #[test]
    fn every_row_picks_one_figure_that_its_experiment_has() {
        for row in seeds::rows() {
            let experiment = Experiment::parse(Source::find(row.experiment).unwrap()).unwrap();
            assert!(row.control.is_some() || experiment.control.is_some(), "{}: no control", row.seed);
            for figure in std::iter::once(row.ours).chain(row.on_fewer) {
                match figure {
                    Figure::Ratio(point) => check_point(row, &experiment, &point),
                    Figure::Slowdown { arm, at, over } => {
                        [at, over].iter().for_each(|setting| picks_one(row, &experiment, setting, &[arm]));
                    }
                    Figure::Share { arm, setting, .. } => picks_one(row, &experiment, setting, &[arm]),
                }
            }
            if let Some(control) = row.control {
                check_point(row, &experiment, &control.ours);
            }
            let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(row.page);
            assert!(page.is_file(), "{}: {} is missing", row.seed, row.page);
        }
        let mut seeds: Vec<&str> = seeds::rows().map(|row| row.seed).collect();
        let rows = seeds.len();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), rows, "two rows of one name");
    }

    /// What the rows of an experiment say of `world`, on a host with so many pCPUs.
    fn rows_of(experiment: &str, pcpus: u32, world: &World) -> BTreeMap<&'static str, Reproduced> {
        let experiment = Experiment::parse(Source::find(experiment).unwrap()).unwrap();
        let (image, allowed) = (Image::embedded(), CpuList((0..pcpus).collect()));
        let plan = Plan::new(&experiment, Supply { image: &image, allowed: &allowed }, 1).unwrap();
        let records = world.records(&plan);
        let results = Results { summary: Summary::new(&plan.outline, &records), records };
        let rows = seeds::rows().filter(|row| row.experiment == experiment.name);
        rows.map(|row| (row.seed, reproduced(row, Some(&results), None))).collect()
    }

    #[test]
    fn rows_find_ratios_slow_downs_and_shares_and_say_what_is_alike() {
        let world = World::new(1)
            .truth(|config| {
                let lock = if config.lock == "qspinlock-v16" { 2.0 } else { 1.0 };
                let floats = if config.sched == Sched::Host { 3.0 } else { 1.0 };
                1e4 * lock / floats
            })
            .adjust(|config, outcome| {
                let share = if config.lock == "ticket" { 0.24 } else { 0.01 };
                outcome.lock_cpu = Some(outcome.window.mul_f64(share * config.cpus.len() as f64));
            });
        let rows = rows_of("qspinlock", 2, &world);
        let row = |seed: &str| &rows[seed];
        let ours = |seed: &str| row(seed).ours.as_ref().unwrap().hodges_lehmann;
        let vm2 = "qspinlock with PV support, v16 (2015), VM2";
        assert!((ours(vm2) - 2.0).abs() < 0.01 && row(vm2).agreement == Agreement::Agrees);
        assert_eq!((row(vm2).ratio_here, row(vm2).alike.letters()), (Some(1.0), "LR--".into()));
        let vm3 = row("qspinlock with PV support, v16 (2015), VM3");
        assert_eq!((vm3.ratio_here, vm3.alike.letters()), (Some(2.0), "LR--".into()));
        let unpinned = "PV ticket lock (2015), unpinned: VM2/VM1";
        assert!((ours(unpinned) - 3.0).abs() < 0.01 && row(unpinned).agreement == Agreement::Agrees);
        let in_locks = "qspinlock (2015), native, share of CPU time in ticket locks";
        assert!((ours(in_locks) - 0.24).abs() < 0.01 && row(in_locks).agreement == Agreement::Agrees);
        let of_qspinlock = row("qspinlock (2015), native, share of CPU time in qspinlocks");
        assert_eq!(of_qspinlock.agreement, Agreement::SmallerShare);
        let native = row("qspinlock (2015), native, 1500 users");
        assert_eq!((&native.ours, native.agreement), (&None, Agreement::NeedsPcpus { pcpus: 120 }));
    }

    #[test]
    fn a_row_picks_the_seeds_own_ratio_where_the_host_has_the_cpus() {
        let world = World::new(2);
        for (pcpus, ratio) in [(2, "4"), (32, "1")] {
            let rows = rows_of("qspinlock", pcpus, &world);
            let row = &rows["today's PV qspinlock for VM2"];
            assert_eq!(row.setting["ratio"], ratio, "{pcpus} pCPUs");
            assert_eq!(row.alike.ratio, Some(ratio == "1"));
        }
    }

    #[test]
    fn two_guests_count_together_and_each_leads_by_its_own_figure() {
        let world = World::new(3).truth(|config| if config.lock == "unfair-ticket" { 1.5e4 } else { 1e4 });
        let rows = rows_of("unfair", 16, &world);
        let row = &rows["unfair spinlock (2010)"];
        assert_eq!((row.ratio_here, row.published_again), (Some(2.0), Some(1.46)));
        assert_eq!((row.agreement, row.alike.letters()), (Agreement::Agrees, "LRA-".into()));
        let many = &rows["unfair spinlock (2010), 16 vCPUs on whatever CPUs there are"];
        assert_eq!((many.ratio_here, many.alike.letters()), (Some(2.0), "LR--".into()));
    }

    #[test]
    fn shares_of_events_are_those_of_all_runs_and_none_is_none() {
        let world = World::new(4).adjust(|_, outcome| {
            outcome.lock_events = vec![
                ("pgfault".into(), 100_000),
                ("speculative_pgfault".into(), 99_600),
                ("spf_vma_changed".into(), 175),
            ];
        });
        let rows = rows_of("fault", 2, &world);
        let share = |seed: &str| rows[seed].ours.as_ref().unwrap().hodges_lehmann;
        assert!((share("Speculative page faults, v10 (2018), served so") - 0.996).abs() < 1e-9);
        // None of so many faults is fewer than the published 0.008 %.
        let none = &rows["Speculative page faults, v10 (2018), given up: notsup"];
        assert_eq!(share("Speculative page faults, v10 (2018), given up: notsup"), 0.0);
        assert_eq!(none.agreement, Agreement::SmallerShare);
        let changed = &rows["Speculative page faults, v10 (2018), given up: vma_changed"];
        assert_eq!((changed.agreement, changed.quantity), (Agreement::Agrees, Quantity::Share));
    }

    #[test]
    fn the_table_tells_what_speaks_against_its_figures() {
        let interval = Some(Interval { low: 1.234, high: 1.345, method: Method::SignedRank });
        let estimate = Estimate { n: 6, median: 1.3, hodges_lehmann: 1.288, interval };
        let measured = |row: &Row| Reproduced {
            ours: Some(estimate.clone()),
            control: Some(estimate.clone()),
            agreement: Agreement::of(&[row.published], Some(&estimate)),
            pcpus_here: Some(2),
            ratio_here: Some(1.875),
            ..reproduced(row, None, None)
        };
        let reproduction = Reproduction {
            schema: "haltkick.reproduction".into(),
            schema_version: 1,
            rows: seeds::rows().map(measured).collect(),
            warnings: vec!["osq: 3 of 8 runs are not to be trusted (busy-neighbour 3)".into()],
        };
        let text = text(&reproduction);
        assert!(text.contains("warning: osq: 3 of 8 runs"), "{text}");
        let plain: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for row in seeds::rows() {
            let words: Vec<&str> = row.seed.split(' ').collect();
            assert!(plain.contains(words[0]) && plain.contains(row.figure), "{text}");
        }
        let plain = text.lines().filter(|line| !line.contains('\x1b'));
        assert!(plain.clone().count() > seeds::rows().count());
        plain.for_each(|line| assert!(line.chars().count() <= 100, "{line}"));
    }

    #[test]
    fn an_unknown_seed_is_refused() {
        assert!(chosen(&["qspinlok".into()]).unwrap_err().message.contains("did you mean 'qspinlock'?"));
        assert_eq!(chosen(&[]).unwrap()[0], "qspinlock");
    }

    #[test]
    fn the_first_failure_is_what_the_command_ends_with() {
        assert_eq!(worse(Exit::Done, Exit::Untrusted), Exit::Untrusted);
        assert_eq!(worse(Exit::Untrusted, Exit::Done), Exit::Untrusted);
        assert_eq!(worse(Exit::GuestFailed, Exit::Untrusted), Exit::GuestFailed);
    }
}
