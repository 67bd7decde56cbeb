use haltkick_vmm::{LinuxEnd, OurGuest};

use super::*;
use crate::analysis::summary::Summary;
use crate::experiment::{Experiment, Source};
use crate::measure::session::Rule;
use crate::measure::synthetic::{Scratch, Shape, Sketch, World, plain, planned, seen};
use crate::record::Record;
use crate::record::figures::{ACQUISITIONS, FIGURES, THROUGHPUT};
use crate::results::manifest::FailedRun;

/// Two sides, compared by throughput with a threshold of 5 %.
fn between(before: &Side, after: &Side) -> Compared {
    compare_sides(before, after, (&[], 0.05), vec![]).unwrap()
}

/// The table on a terminal.
fn shown(compared: &Compared) -> String {
    plain(&table::comparisons(compared))
}

/// An arm of a directory.
fn arm(side: &Side, arm: &str) -> Side {
    let Side { path, manifest, records, .. } = side;
    Side { path: path.clone(), arm: Some(arm.into()), manifest: manifest.clone(), records: records.clone() }
}

/// All arms equally fast, at this factor, with some noise.
fn scattered(seed: u64, factor: f64) -> World {
    World::new(seed).truth(move |_| 1e6 * factor).shape(Shape::LogNormal(0.02))
}

/// A directory with a kernel and an initial RAM disk.
fn kernels_in(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    ["kernel", "initrd"].iter().for_each(|file| scratch.put(file, file));
    scratch
}

/// Eight blocks of a kernel with three figures of which two are compared, at two numbers of vCPUs.
fn side_of_kernels(scratch: &Scratch, path: &str, figures: [f64; 3]) -> Side {
    let mut text = "format = 1\nname = 'k'\ntitle = 'K'\nblocks = 8\n\
        [settings]\nkernel = 'kernel'\ninitrd = 'initrd'\n[grid]\nvcpus = [2, 4]\n\
        [[arm]]\nname = 'pv'\n[[arm]]\nname = 'nopvspin'\nnopvspin = true\n[control]\narm = 'pv'\n"
        .to_owned();
    for of in ["loop", "wake", "kicks"] {
        let arms = "arm = 'nopvspin'\nbaseline = 'pv'";
        text += &format!("[[compare]]\nname = '{of}'\n{arms}\nof = 'figure:{of}'\n");
    }
    let source = Source { origin: scratch.path().join("k.toml").display().to_string(), text };
    let plan = planned(&Experiment::parse(source).unwrap()).unwrap();
    let engine = |run: &haltkick_vmm::Run| {
        // The seed is that of the block.
        let scatter = 1.0 + (run.guests[0].seed % 5) as f64 / 500.0;
        let units = [("loop", "turns/s"), ("wake", "us"), ("kicks", "count")];
        let line = |((name, unit), value): (&(&str, &str), f64)| {
            format!("haltkick: {name}={} {unit}", value * scatter)
        };
        Ok(seen(run, LinuxEnd::PowerOff, &units.iter().zip(figures).map(line).collect::<Vec<_>>()))
    };
    let world = World::new(1);
    let watcher = world.watcher();
    let mut session = world.session(&plan, &engine, &watcher, scratch);
    let whole = Rule { blocks: 8, target_precision: None, max_time: None, retries: 0, ends_in_vain: None };
    session.run(whole).unwrap();
    let records = session.records;
    std::fs::remove_file(scratch.path().join("runs.jsonl")).unwrap();
    Side { path: path.into(), arm: None, manifest: world.manifest(&plan), records }
}

#[test]
fn kernels_are_compared_by_figure_and_the_unit_defines_a_loss() {
    let scratch = kernels_in("compare-kernels");
    let side = |path: &str, figures| side_of_kernels(&scratch, path, figures);
    let before = side("before", [1e4, 50.0, 7.0]);
    let pairs = between(&arm(&before, "pv"), &arm(&before, "nopvspin"));
    assert_eq!(pairs.cells.len(), 3 * 2);
    assert!(pairs.cells.iter().all(|cell| cell.per_block == [1.0; 8]), "{:?}", pairs.cells);
    // Faster loops are a win, longer waits are a loss, and more kicks are neither.
    for (figures, regressed) in
        [([2e4, 25.0, 70.0], &[][..]), ([5e3, 50.0, 7.0], &["loop"][..]), ([1e4, 75.0, 0.7], &["wake"])]
    {
        let after = side("after", figures);
        let compared = between(&before, &after);
        assert_eq!((compared.cells.len(), compared.told, compared.can_tell), (3 * 2 * 2, 8, true));
        let figure = |cell: &usize| compared.cells[*cell].of.figure().unwrap();
        let found: Vec<&str> = compared.regressions.iter().map(figure).collect();
        let expected: Vec<&str> = regressed.iter().flat_map(|name| [*name; 4]).collect();
        assert_eq!(found, expected, "{figures:?}");
        let shown = shown(&compared);
        assert!(shown.contains("figure") && shown.contains("4 of 12 cells are no regressions"), "{shown}");
    }
    // Another kernel is what is compared; another RAM disk has other programs in it.
    scratch.put("kernel", "another");
    let after = side("after", [1e4, 50.0, 7.0]);
    assert_eq!(differences(&before, &after, false).unwrap(), [""; 0]);
    scratch.put("initrd", "another");
    let after = side("after", [1e4, 50.0, 7.0]);
    let refused = differences(&before, &after, false).unwrap_err().message;
    assert!(
        refused.contains("other initial RAM disks of pv; other initial RAM disks of nopvspin"),
        "{refused}"
    );
}

fn sketch() -> Sketch {
    let ratios: Vec<String> = (1..=20).map(|ratio| ratio.to_string()).collect();
    let ratios: Vec<&str> = ratios.iter().map(String::as_str).collect();
    Sketch::two().axis("ratio", &ratios)
}

fn side(path: &str, sketch: &Sketch, blocks: u32, world: &World) -> Side {
    let plan = sketch.plan(blocks);
    let records = world.records(&plan);
    Side { path: path.into(), arm: None, manifest: world.manifest(&plan), records }
}

#[test]
fn unlike_directories_are_compared_only_if_that_is_insisted_on() {
    let world = || World::new(1);
    let before = side("before", &sketch(), 1, &world());
    let longer = sketch().arm_with("c", "lock = \"mcs\"").head("# longer");
    let after = side("after", &longer, 1, &world().host_id(Some("host-b")));
    let refused = differences(&before, &after, false).unwrap_err();
    assert_eq!(refused.exit, Exit::Usage);
    assert!(refused.message.contains("host host-a and host-b; only the second has c, ratio 1"), "{refused}");
    assert!(refused.message.ends_with("--anyway does"), "{refused}");
    let insisted = differences(&before, &after, true).unwrap();
    assert_eq!(insisted.len(), 2);
    assert_eq!(compare_sides(&before, &after, (&[], 0.05), insisted.clone()).unwrap().differences, insisted);
}

#[test]
fn arms_are_paired_only_within_a_block_of_one_host() {
    let mut both = side("both", &Sketch::two(), 8, &World::new(1));
    for record in &mut both.records {
        let place = record.placed();
        if place.arm == "b" && place.block < 2 {
            record.host.host_id = Some("host-b".into());
        }
    }
    let compared = between(&arm(&both, "a"), &arm(&both, "b"));
    assert_eq!(compared.cells[0].per_block.len(), 6);
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
            record.trusted = false;
        }
    }
    between(&before, &after)
}

#[test]
fn no_all_clear_is_given_over_cells_that_lost_their_validity() {
    let enough = disturbed(2, 1.0);
    assert_eq!((enough.exit(), &enough.invalid[..]), (Exit::Done, &[][..]));
    let lost = disturbed(3, 1.0);
    let [invalid] = lost.invalid[..] else { panic!("{:?}", lost.invalid) };
    let cell = &lost.cells[invalid];
    assert_eq!((cell.arm.as_str(), cell.setting["ratio"].as_str()), ("a", "8"));
    assert_eq!((lost.exit(), lost.p_values[invalid]), (Exit::Untrusted, None));
    let shown = shown(&lost);
    let row = |arm: &str| shown.lines().find(|line| line.contains("ratio 8") && line.contains(arm)).unwrap();
    assert!(row("a ").ends_with("invalid") && !row("b ").contains("invalid"), "{shown}");
    assert!(shown.ends_with("no regression beyond 5.00 % in the other 3\n"), "{shown}");
}

#[test]
fn a_run_without_the_compared_figure_counts_as_invalid() {
    let scratch = kernels_in("compare-missing");
    let side = |path: &str| side_of_kernels(&scratch, path, [1e4, 50.0, 7.0]);
    let (before, mut after) = (side("before"), side("after"));
    for (missing, exit) in [(2, Exit::Done), (3, Exit::Untrusted)] {
        let early = |it: &&mut Record| it.placed().block < missing;
        for record in after.records.iter_mut().filter(early) {
            record.figures.set("loop", None);
        }
        let compared = between(&before, &after);
        assert_eq!((compared.cells.len(), compared.exit()), (12, exit), "{missing}");
        let pairs = between(&arm(&after, "pv"), &arm(&after, "nopvspin"));
        assert_eq!((pairs.cells.len(), pairs.exit()), (6, exit), "{missing}");
        let summary = Summary::new(&after.manifest.outline, &after.records);
        let of_loop = summary.comparisons.iter().find(|it| it.of.figure() == Some("loop")).unwrap();
        let is_valid = of_loop.verdict != Verdict::NotValid;
        assert_eq!((of_loop.invalid_pairs, is_valid), (Some(missing as usize), exit == Exit::Done));
        assert_eq!(trust::lost(&after.manifest.outline, &after.records).is_empty(), is_valid, "{missing}");
    }
}

#[test]
fn an_invalid_loss_is_no_regression_and_a_valid_one_stays_one() {
    let some = disturbed(8, 0.5);
    assert_eq!((some.exit(), some.regressions.len(), some.invalid.len()), (Exit::Regression, 3, 1));
    assert!(!some.regressions.contains(&some.invalid[0]));
    let mut all = side("all", &Sketch::new().arm("a", "tas"), 8, &World::new(1));
    all.records.iter_mut().for_each(|record| record.trusted = false);
    let gain = side("gain", &Sketch::new().arm("a", "tas"), 8, &World::new(2).truth(|_| 3e6));
    let compared = between(&all, &gain);
    assert_eq!((compared.exit(), compared.invalid.len()), (Exit::Untrusted, 1));
    let shown = shown(&compared);
    assert!(!shown.contains("faster") && !shown.contains("no regression"), "{shown}");
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
    let compared = between(&before, &after);
    assert_eq!((compared.exit(), &compared.regressions[..]), (Exit::Regression, &[1][..]));
    assert_eq!((&compared.cells[1].ratio, compared.cells[1].verdict), (&None, Verdict::Slower));
    let pairs = between(&arm(&after, "a"), &arm(&after, "b"));
    assert_eq!((pairs.exit(), &pairs.regressions[..]), (Exit::Regression, &[0][..]));
    // A baseline that did nothing does not say what was lost.
    let compared = between(&after, &before);
    assert_eq!((compared.exit(), &compared.untold[..]), (Exit::Untrusted, &[1][..]));
    let shown = shown(&compared);
    assert!(shown.ends_with("no regression beyond 5.00 % in the other 1\n"), "{shown}");
    let pairs = between(&arm(&after, "b"), &arm(&after, "a"));
    assert_eq!((pairs.exit(), &pairs.untold[..]), (Exit::Untrusted, &[0][..]));
}

#[test]
fn a_table_and_a_comparison_say_the_same_of_the_same_runs() {
    let (mut taken_back, mut differences, mut invalid) = (0, 0, 0);
    for (seed, blocks) in (0..8).flat_map(|seed| [4, 7, 12].map(|blocks| (seed, blocks))) {
        let sketch = Sketch::new().axis("ratio", &["1", "2", "4", "8", "16", "32"]).arm("a", "tas");
        let sketch = sketch.arm("b", "ticket").compared();
        let truth = |asked: OurGuest<'_>| if asked.ours.lock == "tas" { 1e6 } else { 1.04e6 };
        let world = World::new(seed).truth(truth).shape(Shape::LogNormal(0.03));
        let mut both = side("both", &sketch, blocks, &world);
        for record in &mut both.records {
            // A pair is invalid by either run.
            let place = record.placed();
            let spoiled = if place.arm == "a" { 0..2 } else { 2..3 };
            record.trusted = place.setting["ratio"] != "32" || !spoiled.contains(&place.block);
        }
        let summary = Summary::new(&both.manifest.outline, &both.records);
        let compared = between(&arm(&both, "a"), &arm(&both, "b"));
        let lines = shown(&compared);
        assert_eq!((summary.comparisons.len(), compared.cells.len()), (6, 6));
        for ((of_table, cell), line) in
            summary.comparisons.iter().zip(&compared.cells).zip(lines.lines().skip(1))
        {
            assert_eq!((&of_table.setting, &of_table.ratio), (&cell.setting, &cell.ratio));
            assert_eq!(of_table.verdict, cell.verdict, "{of_table:?}");
            let word =
                if cell.verdict == Verdict::NotValid { "invalid" } else { cell.verdict.word(&cell.of) };
            assert!(line.ends_with(word), "{word}: {lines}");
            let is_other = cell.ratio.as_ref().is_some_and(|ratio| ratio.verdict() != cell.verdict);
            taken_back += usize::from(is_other && cell.verdict == Verdict::NoDifferenceShown);
            differences += usize::from(cell.verdict.is_difference());
            invalid += usize::from(cell.verdict == Verdict::NotValid);
        }
    }
    assert!(taken_back > 3 && differences > 10 && invalid > 10, "{taken_back} {differences} {invalid}");
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
    let twice = "FAILED: b_ratio-8 made no progress, twice, in blocks 0";
    let violated = "FAILED: this ended the experiment: cell b in block 0: mutual exclusion violated";
    for (at, blocks, ended_with, exit, sentence, test) in [
        ('B', 1, None, Exit::NoProgress, twice, "\nnot ok 4 b/b ratio=8 throughput\n"),
        (
            'A',
            1,
            None,
            Exit::NoProgress,
            twice,
            "\nok 4 b/b ratio=8 throughput # SKIP A: FAILED: b_ratio-8 made ",
        ),
        ('B', 1, Some(5), Exit::GuestFailed, violated, "\nnot ok 4 b/b ratio=8 throughput\n"),
        ('B', 8, None, Exit::NoProgress, twice, "\nnot ok 4 b_ratio-8\n"),
        ('A', 8, Some(5), Exit::GuestFailed, violated, "\nok 4 b_ratio-8 # SKIP A: FAILED: this ended"),
    ] {
        let [a, b] = with_failed(at, blocks, ended_with);
        assert_eq!(differences(&a, &b, false).unwrap(), [""; 0], "that a cell failed is known");
        let compared = between(&a, &b);
        assert_eq!(compared.exit(), exit, "{at} {blocks}");
        let shown = shown(&compared);
        assert!(shown.contains(&format!("{at}: {sentence}")), "{shown}");
        assert!(
            shown.contains("no regression beyond 5.00 % in the runs that there are; others failed"),
            "{shown}"
        );
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
fn tails_of_waits_are_compared_only_where_neighbours_are_few() {
    for (name, share, expected) in [
        ("wait_p99_ns", 0.01, Exit::Done),
        ("wait_p99_ns", 0.03, Exit::Untrusted),
        ("wait_p50_ns", 0.03, Exit::Done),
    ] {
        assert_eq!(compared_beside(name, 50.0, share).exit(), expected, "{name} {share}");
    }
}

/// Compares runs of about 100 with runs of `after`, during which neighbours used `share` of the pCPUs.
fn compared_beside(name: &str, after: f64, share: f64) -> Compared {
    let with = |path: &str, value: f64| {
        let mut side = side(path, &Sketch::new().arm("a", "tas"), 8, &World::new(1));
        for record in &mut side.records {
            let block = record.placed().block;
            record.figures.set(name, value + f64::from(block % 3));
            record.noise.run_delay_share = Some(share);
        }
        side
    };
    let of = Measure::try_from(name.to_owned()).unwrap();
    compare_sides(&with("before", 100.0), &with("after", after), (&[of], 0.05), vec![]).unwrap()
}

#[test]
fn a_loss_of_any_figure_is_a_regression_a_gain_none() {
    let rows = FIGURES.iter().filter(|row| !row.name.contains('*') && row.name != THROUGHPUT);
    for row in rows {
        let [more, less] = [200.0, 50.0].map(|after| compared_beside(row.name, after, 0.0).exit());
        let expected = match row.better {
            Some(Better::More) => (Exit::Done, Exit::Regression),
            Some(Better::Less) => (Exit::Regression, Exit::Done),
            // It is not known whether it is a loss: no all-clear either.
            None => (Exit::Untrusted, Exit::Untrusted),
        };
        assert_eq!((more, less), expected, "{}", row.name);
    }
}
