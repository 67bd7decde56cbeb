//! The world keeps to its truth.

use super::*;
use crate::analysis::statistics::median;
use crate::analysis::summary::Summary;
use crate::record::figures::EFFICIENCY;

fn two_arms() -> Sketch {
    Sketch::new().arm("a", "tas").arm("b", "ticket").compare("b/a", "b", "a").control("a")
}

fn throughputs(records: &[Record], arm: &str) -> Vec<f64> {
    let of_arm = records.iter().filter(|record| record.place.as_ref().unwrap().arm == arm);
    of_arm.filter_map(|record| record.figure(THROUGHPUT)).collect()
}

#[test]
fn the_truth_is_the_median_whatever_the_shape() {
    let plan = two_arms().plan(400);
    for shape in [
        Shape::Exact,
        Shape::Normal(0.05),
        Shape::LogNormal(0.05),
        Shape::Skewed(0.05),
        Shape::HeavyTailed(0.05),
        Shape::Correlated { deviation: 0.05, correlation: 0.5 },
    ] {
        let world =
            World::new(1).truth(|asked| if asked.ours.lock == "tas" { 2e6 } else { 1e6 }).shape(shape);
        let records = world.records(&plan);
        let (a, b) = (median(&throughputs(&records, "a")), median(&throughputs(&records, "b")));
        assert!((a / 2e6 - 1.0).abs() < 0.02 && (b / 1e6 - 1.0).abs() < 0.02, "{shape:?}: {a} {b}");
    }
}

#[test]
fn shapes_differ_in_their_tails_and_in_their_memory() {
    let logs = |shape| {
        let mut scatter = shape::Scatter::new(2);
        (0..20_000).map(|_| scatter.next(shape).ln()).collect::<Vec<f64>>()
    };
    let beyond =
        |logs: &[f64], limit: f64| logs.iter().filter(|log| **log * limit.signum() > limit.abs()).count();
    let (normal, heavy, skewed) =
        (logs(Shape::LogNormal(0.1)), logs(Shape::HeavyTailed(0.1)), logs(Shape::Skewed(0.1)));
    assert!(beyond(&heavy, 0.5) > 100 && beyond(&normal, 0.5) < 3);
    assert!(beyond(&skewed, -0.2) > 500 && beyond(&skewed, 0.1) == 0);
    let correlation = |logs: &[f64]| {
        let products: f64 = logs.windows(2).map(|pair| pair[0] * pair[1]).sum();
        products / logs.iter().map(|log| log * log).sum::<f64>()
    };
    let correlated = logs(Shape::Correlated { deviation: 0.1, correlation: 0.7 });
    assert!((correlation(&correlated) - 0.7).abs() < 0.05 && correlation(&normal).abs() < 0.05);
}

#[test]
fn only_a_disturbed_run_is_slow_and_invalid() {
    let plan = two_arms().plan(10);
    let world = World::new(3).disturbed(|asked, run| asked.ours.lock == "tas" && run < 4);
    let records = world.records(&plan);
    let (bad, good): (Vec<&Record>, Vec<&Record>) = records.iter().partition(|record| !record.trusted);
    assert!(!bad.is_empty() && good.len() > 30);
    assert!(
        bad.iter().all(|record| record.settings.text("lock") == Some("tas")
            && record.warnings[0].code == "busy-neighbour")
    );
    assert!(bad.iter().all(|record| record.amount(THROUGHPUT) < 0.7e6));
    assert_eq!(world.runs(), 40);
}

#[test]
fn what_a_host_does_not_tell_is_null_with_the_reason() {
    let plan = two_arms().plan(1);
    let world = World::new(4)
        .host_id(None)
        .work_rate(5 << 20)
        .without_noise("nobody looked")
        .adjust(|_, outcome| outcome.preemptions = None);
    for record in world.records(&plan) {
        assert_eq!((record.noise.others_share, record.host.host_id.as_ref()), (None, None));
        assert_eq!(record.why["noise.others_share"], "nobody looked");
        assert!(record.figure("preemptions").is_none() && record.why("preemptions_holder").is_some());
        assert!(record.trusted && record.figure("work_rate") == Some(f64::from(5 << 20)));
    }
}

#[test]
fn records_of_a_plan_are_those_that_a_summary_needs() {
    let plan = two_arms().axis("ratio", &["1", "8"]).head("trial-blocks = 5").plan(10);
    let world = World::new(5).truth(|asked| if asked.ours.lock == "tas" { 1e5 } else { 0.9e5 });
    let summary = Summary::new(&plan.outline, &world.records(&plan));
    assert_eq!((summary.blocks, summary.comparisons.len(), summary.trials.len()), (10, 2, 2));
    for comparison in &summary.comparisons {
        let ratio = comparison.ratio.as_ref().unwrap().hodges_lehmann;
        assert!((ratio - 0.9).abs() < 1e-3, "{ratio}");
    }
    let efficiency = summary.rows.iter().find(|row| row.arm == "a").unwrap().estimate(EFFICIENCY).unwrap();
    assert!((efficiency.median - 1e5 / (2.0 / 3e-6)).abs() < 1e-3, "{efficiency:?}");
}

#[test]
fn guests_beside_and_fixed_work_are_run_too() {
    let mixed = "workload = \"mixed\"\nwork = \"3ms\"\nvm = \"lock=tas; name=second,lock=ticket\"";
    let plan = Sketch::new().arm_with("pair", mixed).plan(1);
    let records = World::new(6).records(&plan);
    let arms: Vec<&str> = records.iter().map(|record| record.place.as_ref().unwrap().arm.as_str()).collect();
    assert_eq!(arms, ["lock-free", "lock-free / second", "pair", "pair / second"]);
    assert!(records.iter().all(|record| record.figure("acquisitions") == Some(1000.0)));
    assert_eq!(records[2].figure("completion_ns"), Some(1e6));
}
