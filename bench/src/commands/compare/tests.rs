use haltkick_vmm::OurGuest;
use serde_json::json;

use super::*;
use crate::analysis::summary::Summary;
use crate::measure::synthetic::{Shape, Sketch, World, plain};
use crate::record::figures::{ACQUISITIONS, FIGURES, THROUGHPUT};
use crate::results::manifest::FailedRun;

/// Two sides, compared by throughput with a threshold of 5 %.
fn between(before: &Side, after: &Side) -> Compared {
    compare_sides(before, after, (&[], 0.05), vec![]).unwrap()
}

fn shown(compared: &Compared) -> String {
    plain(&table::comparisons(compared))
}

fn arm(side: &Side, arm: &str) -> Side {
    let Side { path, manifest, records, .. } = side;
    Side { path: path.clone(), arm: Some(arm.into()), manifest: manifest.clone(), records: records.clone() }
}

/// All arms equally fast, at this factor, with some noise.
fn scattered(seed: u64, factor: f64) -> World {
    World::new(seed).truth(move |_| 1e6 * factor).shape(Shape::LogNormal(0.02))
}

fn sketch() -> Sketch {
    Sketch::two().axis("ratio", &Vec::from_iter(1..=20))
}

fn side(path: &str, sketch: &Sketch, blocks: u32, world: &World) -> Side {
    let plan = sketch.plan(blocks);
    let records = world.records(&plan);
    Side { path: path.into(), arm: None, manifest: world.manifest(&plan), records }
}

#[test]
fn unlike_directories_are_compared_only_if_that_is_insisted_on() {
    let before = side("before", &sketch(), 1, &World::new(1));
    let longer = sketch().arm_with("c", "lock = \"mcs\"").head("# longer");
    let mut after = side("after", &longer, 1, &World::new(1).host_id(Some("host-b")));
    after.records.iter_mut().for_each(|record| record.settings.set("hold_ns", 2000));
    let refused = differences(&before, &after, false).unwrap_err();
    assert_eq!(refused.exit, Exit::Usage);
    for told in [
        "compared: hold_ns 1000 and 2000 in 60 cells; host host-a and host-b; only the second has",
        "; only the second has c, ratio 1 and 19 cells more",
    ] {
        assert!(refused.message.contains(told), "{refused}");
    }
    assert!(refused.message.ends_with("--anyway does"), "{refused}");
    let insisted = differences(&before, &after, true).unwrap();
    assert_eq!(insisted.len(), 3);
    assert_eq!(compare_sides(&before, &after, (&[], 0.05), insisted.clone()).unwrap().differences, insisted);
    // Another kernel is what is compared; another RAM disk has other programs in it.
    let booted = |path: &str, disk: &str| {
        let files = json!({ "arm": "pv", "kernel": "", "kernel_sha256": path, "initrd_sha256": disk, "command_line": "" });
        let mut side = side(path, &Sketch::two(), 1, &World::new(1));
        side.manifest.kernels = vec![serde_json::from_value(files).unwrap()];
        side
    };
    assert_eq!(differences(&booted("old", "same"), &booted("new", "same"), false), Ok(vec![]));
    let refused = differences(&booted("old", "one"), &booted("new", "another"), false).unwrap_err();
    assert!(refused.message.contains("other initial RAM disks of pv"), "{refused}");
}

#[test]
fn a_loss_that_may_be_within_the_threshold_is_no_regression() {
    // Seven per cent are lost, and the noise leaves it open whether 5 % may be all of it.
    let few = Sketch::new().arm("a", "tas");
    let before = side("before", &few, 8, &scattered(1, 1.0));
    let after = side("after", &few, 8, &scattered(2, 0.93));
    let compared = between(&before, &after);
    let ratio = compared.cells[0].ratio.clone().unwrap();
    assert!(ratio.hodges_lehmann < 0.95 && ratio.interval.unwrap().high > 0.95, "{ratio:?}");
    assert_eq!(compared.regressions, [0; 0]);
    let lost = side("lost", &few, 8, &scattered(2, 0.85));
    let lost = between(&before, &lost);
    assert_eq!(lost.regressions, [0]);
    let name = "1 a/a throughput";
    let [compared, lost] = [&compared, &lost].map(|compared| cases(compared).ktap());
    assert_eq!(compared, format!("KTAP version 1\n1..1\nok {name}\n"));
    assert!(lost.contains("# it has lost: 0.8") && lost.ends_with(&format!("not ok {name}\n")), "{lost}");
}

#[test]
fn where_no_loss_could_be_told_there_is_no_all_clear() {
    let sketch = sketch();
    for (blocks, can_tell) in [(5, false), (7, true)] {
        // Nine tenths are lost.
        let before = side("before", &sketch, blocks, &scattered(1, 1.0));
        let after = side("after", &sketch, blocks, &scattered(2, 0.1));
        let compared = between(&before, &after);
        assert_eq!(compared.cells.len(), 40);
        assert_eq!((compared.can_tell, compared.regressions.len()), (can_tell, 40 * usize::from(can_tell)));
        assert_eq!(blocks as usize >= significance::runs_to_tell(40, false), can_tell);
    }
}

/// Two sides of eight blocks, of which the second is `factor` times as fast and has some runs of `a` at ratio 8 disturbed.
fn disturbed(spoiled: u32, factor: f64) -> Compared {
    let sketch = Sketch::two().axis("ratio", &["1", "8"]);
    let before = side("before", &sketch, 8, &scattered(1, 1.0));
    let mut after = side("after", &sketch, 8, &scattered(2, factor));
    for record in &mut after.records {
        let place = record.placed();
        if place.arm == "a" && place.setting["ratio"] == "8" && place.block < spoiled {
            match place.block {
                1 => record.noise.run_delay_share = Some(0.2),
                _ => record.trusted = false,
            }
        }
    }
    between(&before, &after)
}

#[test]
fn an_invalid_cell_is_neither_an_all_clear_nor_a_regression() {
    for (spoiled, factor, exit, regressions) in
        [(2, 1.0, Exit::Done, 0), (3, 1.0, Exit::Untrusted, 0), (8, 0.5, Exit::Regression, 3)]
    {
        let compared = disturbed(spoiled, factor);
        assert_eq!((compared.exit(), compared.regressions.len()), (exit, regressions), "{spoiled}");
        let is_spoiled = |cell: &Comparison| (&*cell.arm, &*cell.setting["ratio"]) == ("a", "8");
        let lost = compared.cells.iter().position(is_spoiled).filter(|_| spoiled > 2);
        assert_eq!(compared.invalid, Vec::from_iter(lost));
        assert!(lost.is_none_or(|lost| compared.p_values[lost].is_none()));
    }
    let told = shown(&disturbed(3, 1.0));
    let row = |arm: &str| told.lines().find(|line| line.contains("ratio 8") && line.contains(arm)).unwrap();
    assert!(row("a ").ends_with("not valid") && !row("b ").contains("not valid"), "{told}");
    assert!(told.ends_with("no regression beyond 5.00 % in the other 3\n"), "{told}");
    let mut all = side("all", &Sketch::new().arm("a", "tas"), 8, &World::new(1));
    all.records.iter_mut().for_each(|record| record.trusted = false);
    let gain = side("gain", &Sketch::new().arm("a", "tas"), 8, &World::new(2).truth(|_| 3e6));
    let compared = between(&all, &gain);
    assert_eq!((compared.exit(), compared.invalid.len()), (Exit::Untrusted, 1));
    let told = shown(&compared);
    assert!(!told.contains("faster") && !told.contains("no regression"), "{told}");
}

/// Eight blocks of two arms, each run with about this `value` of a figure.
fn with_figure(path: &str, (of, unit): (&Measure, &str), value: f64) -> Side {
    let mut side = side(path, &Sketch::two().compared(), 8, &World::new(1));
    side.manifest.outline.comparisons[0].of = of.clone();
    for record in &mut side.records {
        let (name, block) = (of.figure().unwrap(), record.placed().block);
        record.figures.set(name, value + f64::from(block % 3));
        record.units.insert(name.into(), unit.into());
    }
    side
}

fn by(of: &Measure, before: &Side, after: &Side) -> Compared {
    compare_sides(before, after, (std::slice::from_ref(of), 0.05), vec![]).unwrap()
}

#[test]
fn a_run_without_the_compared_figure_counts_as_invalid() {
    let of = Measure::Figure("wait_p50_ns".into());
    let [before, mut after] = ["before", "after"].map(|path| with_figure(path, (&of, "ns"), 100.0));
    for (missing, exit) in [(2, Exit::Done), (3, Exit::Untrusted)] {
        let early = |it: &&mut Record| it.placed().block < missing;
        after.records.iter_mut().filter(early).for_each(|record| record.figures.set("wait_p50_ns", None));
        let pairs = by(&of, &arm(&after, "a"), &arm(&after, "b"));
        assert_eq!([by(&of, &before, &after).exit(), pairs.exit()], [exit; 2], "{missing}");
        let summary = Summary::new(&after.manifest.outline, &after.records);
        let told = &summary.comparisons[0];
        let is_valid = told.verdict != Verdict::NotValid;
        assert_eq!((told.invalid_pairs, is_valid), (Some(missing as usize), exit == Exit::Done));
        assert_eq!(summary.lost.is_empty(), is_valid, "{missing}");
    }
}

#[test]
fn a_lock_that_collapses_is_a_regression_although_it_has_no_figure() {
    let sketch = Sketch::two();
    let before = side("before", &sketch, 8, &World::new(1));
    let mut after = side("after", &sketch, 8, &World::new(2));
    for record in &mut after.records {
        if record.placed().arm == "b" {
            record.figures.set(ACQUISITIONS, 0.0);
        }
    }
    let [a, b] = ["a", "b"].map(|name| arm(&after, name));
    for (of, over, regressions, untold) in [
        (&after, &before, &[1][..], &[][..]),
        (&b, &a, &[0][..], &[][..]),
        // A baseline that did nothing does not say what was lost.
        (&before, &after, &[][..], &[1][..]),
        (&a, &b, &[][..], &[0][..]),
    ] {
        let compared = between(over, of);
        assert_eq!((&compared.regressions[..], &compared.untold[..]), (regressions, untold));
        let exit = if untold.is_empty() { Exit::Regression } else { Exit::Untrusted };
        assert_eq!(compared.exit(), exit);
    }
    let cell = &between(&before, &after).cells[1];
    assert_eq!((&cell.ratio, cell.verdict), (&None, Verdict::Slower));
    let told = shown(&between(&after, &before));
    assert!(told.ends_with("no regression beyond 5.00 % in the other 1\n"), "{told}");
}

#[test]
fn a_table_and_a_comparison_say_the_same_of_the_same_runs() {
    let (mut taken_back, mut differences, mut invalid) = (0, 0, 0);
    for (seed, blocks) in (0..8).flat_map(|seed| [4, 7, 12].map(|blocks| (seed, blocks))) {
        let sketch = Sketch::two().axis("ratio", &["1", "2", "4", "8", "16", "32"]).compared();
        let truth = |asked: OurGuest<'_>| if asked.ours.lock == "tas" { 1e6 } else { 1.04e6 };
        let world = World::new(seed).truth(truth).shape(Shape::LogNormal(0.03));
        let mut both = side("both", &sketch, blocks, &world);
        for record in &mut both.records {
            let place = record.placed();
            // Only runs of one host are a pair.
            let is_elsewhere = place.setting["ratio"] == "8" && place.arm == "b" && place.block < 2;
            record.trusted = place.setting["ratio"] != "32" || place.block > 1 || place.arm == "b";
            if is_elsewhere {
                record.host.host_id = Some("host-b".into());
            }
        }
        let summary = Summary::new(&both.manifest.outline, &both.records);
        let compared = between(&arm(&both, "a"), &arm(&both, "b"));
        assert_eq!((summary.comparisons.len(), compared.cells.len()), (6, 6));
        let lines = shown(&compared);
        for (of_table, cell) in summary.comparisons.iter().zip(&compared.cells) {
            assert_eq!((&of_table.setting, &of_table.ratio), (&cell.setting, &cell.ratio));
            assert_eq!(of_table.verdict, cell.verdict, "{of_table:?}");
            let is_told = cell.verdict == Verdict::NotValid || lines.contains(cell.verdict.word(&cell.of));
            assert!(is_told, "{lines}");
            let torn = if cell.setting["ratio"] == "8" { 2 } else { 0 };
            assert_eq!(cell.per_block.len(), blocks as usize - torn);
            let is_other = cell.ratio.as_ref().is_some_and(|ratio| ratio.verdict() != cell.verdict);
            taken_back += usize::from(is_other && cell.verdict == Verdict::NoDifferenceShown);
            differences += usize::from(cell.verdict.is_difference());
            invalid += usize::from(cell.verdict == Verdict::NotValid);
        }
    }
    assert!(taken_back > 0 && differences > 0 && invalid > 0, "{taken_back} {differences} {invalid}");
}

/// Two sides of eight blocks. Runs of b at ratio 8 failed in A or in B: in one block, or in all.
fn with_failed(side_of_failed: char, blocks: u32, ended_with: Option<u8>) -> [Side; 2] {
    let sketch = Sketch::two().axis("ratio", &["1", "8"]);
    let mut sides = [("before", 1), ("after", 2)]
        .map(|(path, seed)| side(path, &sketch, 8, &World::new(seed).shape(Shape::LogNormal(0.01))));
    let failing = &mut sides[usize::from(side_of_failed == 'B')];
    let is_failed = |record: &Record| {
        let place = record.placed();
        (place.arm.as_str(), place.setting["ratio"].as_str()) == ("b", "8") && place.block < blocks
    };
    let failed =
        failing.records.extract_if(.., |record| is_failed(record)).map(|record| record.place.unwrap());
    let failed = failed.map(|place| FailedRun {
        cell_id: place.cell_id,
        block: place.block,
        message: "cell b in block 0: mutual exclusion violated".into(),
        ended_with,
    });
    failing.manifest.failed = failed.collect();
    sides
}

#[test]
fn failed_runs_of_either_side_are_named_and_never_all_clear() {
    for (at, blocks, ended_with, test) in [
        ('B', 1, None, "\nnot ok 4 b/b ratio=8 throughput\n"),
        ('A', 1, None, "\nok 4 b/b ratio=8 throughput # SKIP A: FAILED: b_ratio-8 made "),
        ('B', 1, Some(5), "\nnot ok 4 b/b ratio=8 throughput\n"),
        ('B', 8, None, "\nnot ok 4 b_ratio-8\n"),
        ('A', 8, Some(5), "\nok 4 b_ratio-8 # SKIP A: FAILED: this ended"),
    ] {
        let (exit, sentence) = match ended_with {
            None => (Exit::NoProgress, "b_ratio-8 made no progress, twice, in blocks 0"),
            Some(_) => (Exit::GuestFailed, "this ended the experiment: cell b in block 0: mutual exclusion"),
        };
        let [a, b] = with_failed(at, blocks, ended_with);
        assert_eq!(differences(&a, &b, false).unwrap(), [""; 0], "that a cell failed is known");
        let compared = between(&a, &b);
        assert_eq!(compared.exit(), exit, "{at} {blocks}");
        let shown = shown(&compared);
        let end = "no regression beyond 5.00 % in the runs that there are; others failed";
        assert!(shown.contains(&format!("{at}: FAILED: {sentence}")) && shown.contains(end), "{shown}");
        let ktap = cases(&compared).ktap();
        assert!(ktap.contains(test), "{test}: {ktap}");
        // The other arm lacks nothing.
        let of_a = between(&arm(&a, "a"), &arm(&b, "a"));
        assert_eq!((of_a.exit(), of_a.left_out.len()), (Exit::Done, 0));
        let of_b = between(&arm(&a, "a"), &arm(&b, "b"));
        assert_eq!(of_b.exit() == exit, at == 'B', "{at}");
    }
    let [a, mut b] = with_failed('B', 8, None);
    b.records.clear();
    let compared = between(&a, &b);
    assert_eq!((compared.cells.len(), compared.exit()), (0, Exit::NoProgress), "every run failed");
    let shown = shown(&compared);
    assert!(shown.contains("B: FAILED: b_ratio-8 ") && shown.contains("nothing was compared"), "{shown}");
}

#[test]
fn a_loss_of_any_figure_is_a_regression_a_gain_none() {
    let rows = FIGURES.iter().filter(|row| !row.name.contains('*') && row.name != THROUGHPUT);
    let rows = rows.map(|row| (row.name, row.unit.word(), row.better));
    // The unit tells which direction of a printed figure is better.
    let printed = [
        ("figure:loop", "turns/s", Some(Better::More)),
        ("figure:wake", "us", Some(Better::Less)),
        ("figure:kicks", "count", None),
    ];
    for (name, unit, better) in rows.chain(printed) {
        let of = Measure::try_from(name.to_owned()).unwrap();
        assert_eq!(String::from(of.clone()), name, "it is written as it is read");
        let side = |path, value| with_figure(path, (&of, unit), value);
        let before = side("before", 100.0);
        let compared = [200.0, 50.0].map(|after| by(&of, &before, &side("after", after)));
        let expected = match better {
            Some(Better::More) => [Exit::Done, Exit::Regression],
            Some(Better::Less) => [Exit::Regression, Exit::Done],
            // It is not known whether it is a loss: no all-clear either.
            None => [Exit::Untrusted; 2],
        };
        assert_eq!(compared.each_ref().map(Compared::exit), expected, "{name}");
        let told = shown(&compared[0]);
        assert_eq!(told.contains("2 of 2 cells are no regressions"), better.is_none(), "{told}");
    }
}
