//! Checks before figures are to be believed. An all-clear is given only for checks that were made: a check that could
//! not be made says so, with the reason.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Summary, calibration};
use crate::analysis::statistics::{self, DRIFT_NEEDS, Estimate, Method, OUTLIERS_NEED, Verdict};
use crate::host::noise::{BUSY_NEIGHBOUR, Noise, OTHERS_SHARE_LIMIT, STEAL_SHARE_LIMIT};
use crate::record::Record;
use crate::record::figures::WORK_SPEED;
use crate::text::quantity::percent;

/// Something that was looked at, or was to be.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Check {
    /// Stable name.
    pub(crate) name: String,
    /// How it went.
    pub(crate) outcome: CheckOutcome,
    /// The findings, or why there could be none.
    pub(crate) text: String,
}

impl Check {
    /// Whether other warnings have what it found: the codes that the check of the runs counts, and the shares that others took.
    pub(super) fn is_told(&self) -> bool {
        [NEIGHBOURS, STEAL, WORK].contains(&self.name.as_str())
    }
}

const NEIGHBOURS: &str = "neighbours";
const STEAL: &str = "steal";
const WORK: &str = "work";

/// How a check went.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CheckOutcome {
    /// No finding.
    Passed,
    /// A finding.
    Failed,
    /// It could not be made.
    NotChecked,
}

type Finding = (CheckOutcome, String);

fn passed(text: impl Into<String>) -> Finding {
    (CheckOutcome::Passed, text.into())
}

fn failed(text: impl Into<String>) -> Finding {
    (CheckOutcome::Failed, text.into())
}

fn not_checked(text: impl Into<String>) -> Finding {
    (CheckOutcome::NotChecked, text.into())
}

pub(super) fn checks(summary: &Summary, records: &[Record]) -> Vec<Check> {
    let over_all = &summary.noise;
    let findings = [
        ("runs", runs(records)),
        (NEIGHBOURS, noise(records, &OTHERS, [over_all.others_share, over_all.run_delay_share])),
        (STEAL, noise(records, &OUTER_HOST, [over_all.steal_share, None])),
        (WORK, work(records)),
        ("control", control(summary)),
        ("drift", of_host(records, "drift", || drift(records))),
        ("jumps", of_host(records, "sudden changes of the host's speed", || jumps(&summary.calibration))),
        ("outliers", outliers(summary, records)),
    ];
    // Kernels time no work of ours, and have no lock-free runs between them.
    let is_made =
        |(name, _): &(&str, Finding)| !summary.of_kernels || ![WORK, "jumps", "outliers"].contains(name);
    let named = |(name, (outcome, text)): (&str, Finding)| Check { name: name.into(), outcome, text };
    findings.into_iter().filter(is_made).map(named).collect()
}

/// Whether every run is valid, by the load that was watched in it.
fn runs(records: &[Record]) -> Finding {
    let spoiled = records.iter().filter(|record| !record.trusted).count();
    if records.is_empty() {
        return not_checked("runs: there are none");
    }
    if spoiled == 0 {
        return passed(format!("none of {} runs was disturbed by what was watched", records.len()));
    }
    let mut codes: BTreeMap<&str, usize> = BTreeMap::new();
    for warning in records.iter().flat_map(|record| &record.warnings) {
        *codes.entry(warning.code.as_str()).or_default() += 1;
    }
    let codes: Vec<String> = codes.iter().map(|(code, count)| format!("{code} {count}")).collect();
    failed(format!(
        "{spoiled} of {} runs are invalid ({}): see 'warnings' in runs.jsonl",
        records.len(),
        codes.join(", ")
    ))
}

struct Kind {
    /// Source of the load.
    who: &'static str,
    /// The code of runs that lost too much to it.
    code: &'static str,
    path: &'static str,
    of: fn(&Noise) -> Option<f64>,
    limit: f64,
}

const OTHERS: Kind = Kind {
    who: "other processes",
    code: BUSY_NEIGHBOUR,
    path: "noise.others_share",
    of: |noise| noise.others_share,
    limit: OTHERS_SHARE_LIMIT,
};

const OUTER_HOST: Kind = Kind {
    who: "the outer host",
    code: "host-steal",
    path: "noise.steal_share",
    of: |noise| noise.steal_share,
    limit: STEAL_SHARE_LIMIT,
};

/// Whether a kind of noise took more than it may, in a run or in all together by these shares, and whether it could be watched.
fn noise(records: &[Record], kind: &Kind, over_all: [Option<f64>; 2]) -> Finding {
    let Kind { who, code, path, of, limit } = kind;
    let share = over_all.into_iter().flatten().fold(0.0, f64::max);
    let took = format!("{who} took {} of the pCPUs' time", percent(share));
    let disturbed = warned(records, &[code]);
    if disturbed > 0 || share > *limit {
        return failed(format!("{took}; too much in {disturbed} of {} runs", records.len()));
    }
    let blind: Vec<&Record> = records.iter().filter(|record| of(&record.noise).is_none()).collect();
    match blind.first() {
        None if records.is_empty() => not_checked(format!("time that {who} took: there are no runs")),
        None => passed(format!("{took} (limit {})", percent(*limit))),
        Some(first) => not_checked(format!(
            "time that {who} took: {} of {} runs could not be watched ({})",
            blind.len(),
            records.len(),
            first.why(path).unwrap_or("no reason given")
        )),
    }
}

/// Runs with a warning of one of these codes.
fn warned(records: &[Record], codes: &[&str]) -> usize {
    let is_warned =
        |record: &&Record| record.warnings.iter().any(|warning| codes.contains(&warning.code.as_str()));
    records.iter().filter(is_warned).count()
}

/// Whether the work went as fast as the calibration says.
fn work(records: &[Record]) -> Finding {
    let off = warned(records, &["work-off", "work-uneven"]);
    if off > 0 {
        return failed(format!("the work went at another speed in {off} of {} runs", records.len()));
    }
    let timed = records.iter().filter(|record| record.figure(WORK_SPEED).is_some()).count();
    match records.len() - timed {
        _ if records.is_empty() => not_checked("speed of the work: there are no runs"),
        0 => passed("the work went at the calibrated speed in every run"),
        blind => not_checked(format!(
            "speed of the work: too little of it was timed in {blind} of {} runs",
            records.len()
        )),
    }
}

/// An interval of an A/A pair that is wider than this to each side would hide a difference that matters.
const CLEARS_WITHIN: f64 = 0.1;

/// Whether the A/A pair shows what is not there.
fn control(summary: &Summary) -> Finding {
    let Some(control) = &summary.control else {
        return not_checked("A/A pair: this experiment has none ([control])");
    };
    let shown = control.as_ratio();
    let exact = |estimate: &Estimate| estimate.interval.is_some_and(|it| it.method != Method::StudentT);
    match control.verdict {
        Verdict::Faster | Verdict::Slower => failed(format!(
            "the A/A pair, one cell run twice per block, shows a difference ({shown}): expected in 5 % of experiments; \
             if it comes again, something disturbs this host"
        )),
        Verdict::NoDifferenceShown if control.ratio.as_ref().is_some_and(exact) => {
            let half = control.ratio.as_ref().and_then(Estimate::half_width);
            if half.is_none_or(|half| half > CLEARS_WITHIN) {
                return not_checked(format!(
                    "the A/A pair clears nothing: its interval is wide ({shown}); more --blocks make it narrower"
                ));
            }
            passed(format!("the A/A pair shows no difference ({shown})"))
        }
        Verdict::NotValid => not_checked(format!(
            "A/A pair: {} of {} pairs have an invalid run",
            control.invalid_pairs.unwrap_or_default(),
            control.per_block.len()
        )),
        _ => not_checked(format!("A/A pair: six blocks are the fewest that tell ({shown})")),
    }
}

/// Makes a check of hosts alone: on simulated machines lock-free runs differ by their seeds.
fn of_host(records: &[Record], what: &str, check: impl FnOnce() -> Finding) -> Finding {
    let all = |is: fn(&Record) -> bool| !records.is_empty() && records.iter().all(is);
    if all(Record::is_linux) {
        return not_checked(format!("{what}: kernels have no lock-free runs between them"));
    }
    match all(|record| record.settings.is_simulated()) {
        true => not_checked(format!("{what}: a simulated machine has none")),
        false => check(),
    }
}

/// Whether any host drifted; an all-clear is one of them all.
fn drift(records: &[Record]) -> Finding {
    let mut hosts: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    calibration(records).into_iter().for_each(|(host, speed)| hosts.entry(host).or_default().push(speed));
    let order = [CheckOutcome::Passed, CheckOutcome::NotChecked, CheckOutcome::Failed];
    let rank = |(outcome, _): &Finding| order.iter().position(|it| it == outcome);
    // The last of equal ones is taken: that of the first host.
    let findings = hosts.values().rev().map(|speeds| drift_of(speeds));
    findings.max_by_key(rank).unwrap_or_else(|| drift_of(&[]))
}

fn drift_of(speeds: &[f64]) -> Finding {
    if speeds.len() < DRIFT_NEEDS {
        return not_checked(format!(
            "drift: {} lock-free runs do not tell, {} would",
            speeds.len(),
            DRIFT_NEEDS
        ));
    }
    if speeds.contains(&0.0) {
        return not_checked("drift: a lock-free run completed nothing, and has no speed");
    }
    match statistics::drift(speeds).filter(|factor| !(0.98..=1.02).contains(factor)) {
        None => passed("lock-free speed did not drift by more than 2 %"),
        Some(factor) => failed(format!(
            "lock-free speed drifted by {} from the first run to the last: ratios within blocks bear that, levels do not",
            percent(factor - 1.0)
        )),
    }
}

/// A lock-free run this far off the median of its cell is a jump.
const JUMP: f64 = 1.1;
/// More than this share of jumps says that the host was disturbed; a few are noise.
const JUMPS_BORNE: f64 = 0.05;

fn jumps(speeds: &[f64]) -> Finding {
    // The median of two cells' runs lies between them: nothing can be far off it then.
    const FEWEST: usize = 4;
    if speeds.len() < FEWEST {
        return not_checked("sudden changes of the host's speed: too few lock-free runs");
    }
    let off = speeds.iter().filter(|speed| !(1.0 / JUMP..=JUMP).contains(*speed)).count();
    let text =
        format!("{off} of {} lock-free runs were more than 10 % off the median of their cell", speeds.len());
    if off > 1 && off as f64 > JUMPS_BORNE * speeds.len() as f64 {
        failed(format!("{text}: the host was disturbed"))
    } else {
        passed(text)
    }
}

fn outliers(summary: &Summary, records: &[Record]) -> Finding {
    let hosts = records.iter().map(|record| record.host.identity()).collect::<BTreeSet<_>>().len();
    // Runs are judged among those of their host, and one of the hosts has as many as that.
    let judged = summary.rows.iter().filter(|row| row.runs > (OUTLIERS_NEED - 1) * hosts).count();
    if judged == 0 {
        return not_checked(format!("outliers: it takes {} runs of a cell", OUTLIERS_NEED));
    }
    let outliers: usize = summary.rows.iter().map(|row| row.outlier_blocks.len()).sum();
    match outliers {
        0 => passed("no run lies far from its cell's others"),
        _ => failed(format!(
            "{outliers} of {} runs lie far from their cell's others: kept, and marked",
            summary.runs
        )),
    }
}

/// Other load during all runs of an experiment together. Hundreds of runs can show noise that one short run cannot tell
/// from a tick.
pub(super) fn over_all(records: &[Record]) -> Noise {
    // Guests of one run have the noise in common.
    let runs: BTreeMap<&str, &Noise> =
        records.iter().map(|record| (record.run_id.as_str(), &record.noise)).collect();
    let mean = |share: fn(&Noise) -> Option<f64>| {
        let shares = runs.values().filter_map(|noise| Some((share(noise)?, noise.of_ns as f64)));
        let (taken, whole) =
            shares.fold((0.0, 0.0), |(taken, whole), (share, of)| (taken + share * of, whole + of));
        (whole > 0.0).then(|| taken / whole)
    };
    Noise {
        others_share: mean(|noise| noise.others_share),
        steal_share: mean(|noise| noise.steal_share),
        of_ns: runs.values().map(|noise| noise.of_ns).fold(0, u64::saturating_add),
        run_delay_share: mean(|noise| noise.run_delay_share),
        stopped_share: mean(|noise| noise.stopped_share),
    }
}

/// Warnings about the time lost to others over the whole experiment, where it is more than single runs may lose.
pub(super) fn lost_time(noise: &Noise) -> Vec<String> {
    let checks = [
        ("other processes used", noise.others_share, OTHERS_SHARE_LIMIT),
        ("the runs' threads waited for others during", noise.run_delay_share, OTHERS_SHARE_LIMIT),
        ("the outer host took", noise.steal_share, STEAL_SHARE_LIMIT),
    ];
    let above = checks.into_iter().filter_map(|(what, share, limit)| {
        let percent = percent(share.filter(|share| *share > limit)?);
        Some(format!(
            "{what} {percent} of the pCPUs' time over all runs together: levels are low by about that, and levels and ratios \
             of strict queues (ticket, mcs, qspinlock pv off) may be off tenfold; --wait-for-quiet TIME waits for a quiet host, \
             and --set engine=sim needs none"
        ))
    });
    above.collect()
}

#[cfg(test)]
mod tests {
    use super::CheckOutcome::{Failed, NotChecked, Passed};
    use super::*;
    use crate::measure::synthetic::{Shape, Sketch, World};
    use crate::record::figures::THROUGHPUT;

    /// Requires the outcomes of these checks, and parts of their texts.
    fn check(summary: &Summary, expected: &[(&str, CheckOutcome, &str)]) {
        for (name, outcome, part) in expected {
            let found = summary.checks.iter().find(|check| check.name == *name).unwrap();
            assert!(found.outcome == *outcome && found.text.contains(part), "{found:?}");
        }
    }

    /// Two settings whose lock-free speeds differ by half, as different slices make them.
    fn two_speeds(world: World, blocks: u32) -> Summary {
        let plan = Sketch::new().axis("slice", &["100us", "1ms"]).arm("a", "tas").plan(blocks);
        let world = world.adjust(|asked, outcome| {
            if asked.run.rules.slice.as_micros() == 100 {
                outcome.vcpus.iter_mut().for_each(|vcpu| vcpu.acquisitions /= 2);
            }
        });
        world.summary(&plan)
    }

    #[test]
    fn lock_free_speeds_disturb_nothing_if_they_differ_by_design_alone() {
        let summary = two_speeds(World::new(1).shape(Shape::LogNormal(0.01)), 10);
        check(&summary, &[("jumps", Passed, ""), ("drift", Passed, "")]);
        let speeds = &summary.calibration;
        assert!(speeds.iter().all(|speed| (0.9..1.1).contains(speed)), "{speeds:?}");
        let world = World::new(1).disturbed(|asked, run| asked.ours.lock == "none" && run % 3 == 0);
        let summary = two_speeds(world, 20);
        check(&summary, &[("jumps", Failed, "off the median of their cell")]);
        assert!(summary.warnings.iter().any(|warning| warning.contains("off the median of their cell")));
    }

    #[test]
    fn only_a_narrow_a_a_pair_gives_the_all_clear() {
        for (blocks, scatter, outcome, part) in [
            (10, 0.01, Passed, "shows no difference"),
            (10, 0.5, NotChecked, "clears nothing"),
            (4, 0.01, NotChecked, "six blocks are the fewest"),
        ] {
            let plan = Sketch::new().arm("a", "tas").control("a").plan(blocks);
            let mut records = World::new(1).shape(Shape::LogNormal(scatter)).records(&plan);
            // Lock-free runs that scatter are marked; this is about the pair.
            records.iter_mut().for_each(|record| record.trusted = true);
            check(&Summary::new(&plan.outline, &records), &[("control", outcome, part)]);
        }
    }

    #[test]
    fn a_slower_host_among_merged_ones_is_no_disturbance() {
        let (plan, mut records) = Sketch::new().arm("a", "tas").measured(20);
        for record in &mut records {
            let block = record.placed().block;
            let (host, level) = if block < 10 { ("host-a", 1e6) } else { ("host-b", 0.7e6) };
            record.host.host_id = Some(host.into());
            record.figures.set(THROUGHPUT, level * (1.0 + 0.001 * f64::from(block % 10 % 3)));
        }
        let summary = Summary::new(&plan.outline, &records);
        check(&summary, &[("jumps", Passed, ""), ("drift", Passed, "")]);
        // Among many runs of one host, a few of another lie far off.
        records.retain(|record| record.placed().block < 13);
        let summary = Summary::new(&plan.outline, &records);
        check(&summary, &[("outliers", Passed, "")]);
    }

    #[test]
    fn a_host_that_slows_down_is_found() {
        let (plan, mut records) = Sketch::new().arm("a", "tas").measured(30);
        for record in &mut records {
            let slower = record.amount(THROUGHPUT) * (1.0 - 0.01 * f64::from(record.placed().block));
            record.figures.set(THROUGHPUT, slower);
        }
        let checked =
            |records: &[Record], expected| check(&Summary::new(&plan.outline, records), &[expected]);
        checked(&records, ("drift", Failed, "drifted by -2"));
        // A run that did nothing has no logarithm, and is no all-clear.
        let ideal = |record: &&mut Record| record.placed().role == crate::record::place::Role::Ideal;
        records.iter_mut().find(ideal).unwrap().figures.set(THROUGHPUT, 0.0);
        checked(&records, ("drift", NotChecked, ""));
        records.iter_mut().for_each(|record| record.settings.set("engine", "sim"));
        checked(&records, ("jumps", NotChecked, "simulated machine"));
    }

    #[test]
    fn what_disturbed_a_run_is_no_all_clear() {
        let plan = Sketch::two().plan(6);
        let mut records = World::new(1).disturbed(|_, run| run % 2 == 0).records(&plan);
        records[1].warn("work-off", "too slow".into());
        let expected = [
            (NEIGHBOURS, Failed, "other processes took 20.0 % of the pCPUs' time; too much in 9 of 18 runs"),
            (WORK, Failed, "the work went at another speed in 1 of 18 runs"),
            (STEAL, Passed, "the outer host took 0 % of the pCPUs' time (limit 2.00 %)"),
        ];
        check(&Summary::new(&plan.outline, &records), &expected);
    }

    #[test]
    fn what_could_not_be_checked_is_no_all_clear() {
        let plan = Sketch::two().compared().plan(3);
        let world =
            World::new(1).without_noise("no /proc/stat here").adjust(|_, outcome| outcome.work.clear());
        let summary = world.summary(&plan);
        let reasons = [
            ("neighbours", "no /proc/stat here"),
            ("steal", "no /proc/stat here"),
            ("work", "too little of it was timed"),
            ("control", "this experiment has none"),
            ("drift", "do not tell"),
            ("jumps", "too few lock-free runs"),
            ("outliers", "it takes 5 runs"),
        ];
        check(&summary, &reasons.map(|(name, reason)| (name, NotChecked, reason)));
        assert_eq!(summary.warnings, [""; 0]);
    }

    #[test]
    fn what_single_runs_cannot_tell_is_summed_over_the_experiment() {
        let (plan, mut records) = Sketch::two().measured(20);
        for record in &mut records {
            // Below the limit that ticks set to a short run, and below that of nanoseconds.
            record.noise.others_share = Some(0.08);
            record.noise.steal_share = None;
            record.noise.run_delay_share = Some(0.01);
        }
        records[0].noise.others_share = None;
        let summary = Summary::new(&plan.outline, &records);
        assert!((summary.noise.others_share.unwrap() - 0.08).abs() < 1e-9, "{:?}", summary.noise);
        assert_eq!((summary.noise.steal_share, summary.noise.run_delay_share.is_some()), (None, true));
        let expected = "other processes used 8.00 % of the pCPUs' time over all runs together: levels are low by about that, and \
                        levels and ratios of strict queues (ticket, mcs, qspinlock pv off) may be off tenfold; --wait-for-quiet TIME \
                        waits for a quiet host, and --set engine=sim needs none";
        assert!(summary.warnings.iter().any(|warning| warning == expected), "{:?}", summary.warnings);
        check(&summary, &[(NEIGHBOURS, Failed, "")]);
    }
}
