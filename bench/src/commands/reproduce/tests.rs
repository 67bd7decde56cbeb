use haltkick_vmm::{Image, Sched};

use super::*;
use crate::analysis::statistics::{Interval, Method};
use crate::experiment::overrides::Overrides;
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
        let first = name.split(crate::record::names::BESIDE).next().unwrap();
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
    for (row, quick) in rows().flat_map(|row| [(row, false), (row, true)]) {
        let mut experiment = Experiment::parse(Source::find(row.experiment).unwrap()).unwrap();
        experiment.apply(&Overrides { quick, ..Overrides::default() }).unwrap();
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
    let mut seeds: Vec<&str> = rows().map(|row| row.seed).collect();
    let rows = seeds.len();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), rows, "two rows of one name");
}

/// The rows of an experiment about `world`, on a host with `pcpus` pCPUs.
fn rows_of(experiment: &str, pcpus: u32, world: &World) -> BTreeMap<&'static str, Reproduced> {
    let experiment = Experiment::parse(Source::find(experiment).unwrap()).unwrap();
    let (image, allowed) = (Image::embedded(), CpuList((0..pcpus).collect()));
    let plan = Plan::new(&experiment, Supply { image: &image, allowed: &allowed }, 1).unwrap();
    let records = world.records(&plan);
    let results = Results { summary: Summary::new(&plan.outline, &records), records };
    let rows = rows().filter(|row| row.experiment == experiment.name);
    rows.map(|row| (row.seed, reproduced(row, Some(&results), None))).collect()
}

#[test]
fn rows_find_ratios_slow_downs_and_shares_and_say_what_is_alike() {
    let world = World::new(1)
        .truth(|asked| {
            let lock = if asked.ours.lock == "qspinlock-v16" { 2.0 } else { 1.0 };
            let floats = if asked.run.rules.sched == Sched::Host { 3.0 } else { 1.0 };
            1e4 * lock / floats
        })
        .adjust(|asked, outcome| {
            let share = if asked.ours.lock == "ticket" { 0.24 } else { 0.01 };
            outcome.lock_cpu = Some(outcome.window.mul_f64(share * asked.run.cpus.len() as f64));
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
fn a_row_picks_its_study_ratio_where_the_host_has_the_cpus() {
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
    let world = World::new(3).truth(|asked| if asked.ours.lock == "unfair-ticket" { 1.5e4 } else { 1e4 });
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
    // Zero of this many faults is fewer than the published 0.008 %.
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
        rows: rows().map(measured).collect(),
        warnings: vec!["osq: 3 of 8 runs are invalid (busy-neighbour 3)".into()],
    };
    let text = text(&reproduction);
    assert!(text.contains("warning: osq: 3 of 8 runs"), "{text}");
    let plain: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for row in rows() {
        let words: Vec<&str> = row.seed.split(' ').collect();
        assert!(plain.contains(words[0]) && plain.contains(row.figure), "{text}");
    }
    let plain = text.lines().filter(|line| !line.contains('\x1b'));
    assert!(plain.clone().count() > rows().count());
    plain.for_each(|line| assert!(line.chars().count() <= 100, "{line}"));
}

#[test]
fn an_unknown_seed_is_refused() {
    assert!(
        chosen(&["qspinlok".into()], ReproducedOn::Kvm)
            .unwrap_err()
            .message
            .contains("did you mean 'qspinlock'?")
    );
    assert_eq!(chosen(&[], ReproducedOn::Kvm).unwrap()[0], "qspinlock");
}

#[test]
fn the_first_failure_is_what_the_command_ends_with() {
    assert_eq!(worse(Exit::Done, Exit::Untrusted), Exit::Untrusted);
    assert_eq!(worse(Exit::Untrusted, Exit::Done), Exit::Untrusted);
    assert_eq!(worse(Exit::GuestFailed, Exit::Untrusted), Exit::GuestFailed);
}

/// Rows of this host and of simulated machines.
fn rows() -> impl Iterator<Item = &'static Row> {
    [ReproducedOn::Kvm, ReproducedOn::Sim].into_iter().flat_map(seeds::rows)
}
