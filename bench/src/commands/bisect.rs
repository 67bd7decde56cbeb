//! `haltkick bisect`: for `git bisect run`, whether the second of two is slower than the first. Noise is never bad.

use std::path::Path;

use crate::analysis::statistics::Verdict;
use crate::analysis::summary::Comparison;
use crate::analysis::{consistency, significance};
use crate::cli::BisectArgs;
use crate::commands::bench;
use crate::experiment::Source;
use crate::experiment::overrides::Overrides;
use crate::experiment::sweep::{Sweep, Vary};
use crate::record::figures::{Better, THROUGHPUT};
use crate::results::directory::Directory;
use crate::results::manifest::Manifest;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

pub(crate) fn bisect(args: &BisectArgs) -> Result<Exit> {
    for_git(measured(args))
}

/// An ending in codes for git, to which most codes of programs mean a bad commit.
fn for_git(ended: Result<Exit>) -> Result<Exit> {
    ended.map_err(|failure| {
        let exit = match failure.exit {
            Exit::Usage | Exit::BadExperiment | Exit::EndsBisection => Exit::EndsBisection,
            Exit::Interrupted => Exit::Interrupted,
            _ => Exit::CannotTell,
        };
        Failure { exit, ..failure }
    })
}

fn measured(args: &BisectArgs) -> Result<Exit> {
    if args.vary.count() != 2 {
        return Err(Failure::usage(
            "KEY=GOOD,NEW: give two values, such as lock=file:good.o,file:new.o; a semicolon separates values that have commas \
             in them",
        ));
    }
    let source = source(args, &args.vary, Some(""))?;
    let path = Directory::fresh("bisect")?;
    let ran = bench::run_in(source.clone(), &Overrides::default(), &path);
    let (summary, _) = ran.map_err(|failure| match failure.exit {
        Exit::Usage | Exit::BadExperiment if is_fault_of_new(args, &source) => {
            Failure { exit: Exit::CannotTell, ..failure }
        }
        _ => failure,
    })?;
    let records = Manifest::read(&path)?.records(&path)?;
    let Some(better) = consistency::better(&args.of, &records) else {
        return Err(Failure::lacking("--of: it is not known whether more or less of it is better"));
    };
    let Some(compared) = summary.comparisons.first() else {
        return Err(Failure::lacking("one of the two has no figures"));
    };
    let baseline = summary.row(&compared.setting, &compared.baseline);
    let is_baseline_seen = baseline.is_some_and(|row| row.estimate(THROUGHPUT).is_some());
    let word = judged(compared, is_baseline_seen, better, args.threshold);
    output::data(&line(compared, word, &path))?;
    Ok(word)
}

fn source(args: &BisectArgs, vary: &Vary, baseline: Option<&str>) -> Result<Source> {
    let sweep = Sweep {
        vary: std::slice::from_ref(vary),
        settings: &args.boot.over(&args.settings).map_err(Failure::usage)?,
        baseline,
        of: std::slice::from_ref(&args.of),
        blocks: args.blocks,
        robust: None,
    };
    sweep.source(false)
}

/// Whether the command could be carried out but for the new file, which then says something about this commit alone.
fn is_fault_of_new(args: &BisectArgs, both: &Source) -> bool {
    let is_good = || source(args, &args.vary.first(), None).and_then(bench::check).is_ok();
    args.vary.ends_in_file() && bench::check(both.clone()).is_err() && is_good()
}

/// Good, bad, or neither.
fn judged(compared: &Comparison, is_baseline_seen: bool, better: Better, threshold: f64) -> Exit {
    let kept = 1.0 - threshold;
    if compared.verdict == Verdict::NotValid {
        return Exit::CannotTell;
    }
    let Some(interval) = compared.ratio.as_ref().and_then(|ratio| ratio.interval) else {
        // A lock that collapsed has no interval, but its ratios have ranks.
        let p_value = significance::p_of_pairs(&compared.per_block, kept).filter(|_| is_baseline_seen);
        let is_bad = p_value.is_some_and(|p| p <= significance::LEVEL);
        return if is_bad { Exit::BAD } else { Exit::CannotTell };
    };
    let (is_bad, is_good) = match better {
        Better::More => (interval.high < kept, interval.low > kept),
        Better::Less => (interval.low > 1.0 / kept, interval.high < 1.0 / kept),
    };
    match (is_bad, is_good) {
        (true, _) => Exit::BAD,
        (_, true) => Exit::Done,
        _ => Exit::CannotTell,
    }
}

fn line(compared: &Comparison, word: Exit, path: &Path) -> String {
    let word = match word {
        Exit::Done => "good",
        Exit::BAD => "bad",
        _ => "cannot tell",
    };
    let ratio = compared.as_ratio();
    format!("{word}: {} / {}: {ratio}; results: {}\n", compared.arm, compared.baseline, path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(low: f64, high: f64, verdict: &str) -> Comparison {
        serde_json::from_value(serde_json::json!({
            "name": "c", "setting": {}, "arm": "new", "baseline": "good", "verdict": verdict, "per_block": [],
            "ratio": { "n": 10, "median": 1.0, "hodges_lehmann": 1.0,
                       "interval": { "low": low, "high": high, "method": "signed-rank" } },
        }))
        .expect("a comparison")
    }

    #[test]
    fn noise_is_never_bad_and_never_good() {
        for (low, high, better, expected) in [
            (0.5, 0.8, Better::More, Exit::BAD),
            (0.5, 0.95, Better::More, Exit::CannotTell),
            (0.95, 1.2, Better::More, Exit::Done),
            (1.2, 1.4, Better::Less, Exit::BAD),
            (1.0, 1.4, Better::Less, Exit::CannotTell),
            (0.9, 1.05, Better::Less, Exit::Done),
        ] {
            assert_eq!(judged(&compared(low, high, "slower"), true, better, 0.1), expected, "{low} {high}");
        }
        let invalid = compared(0.5, 0.8, "not-valid");
        assert_eq!(judged(&invalid, true, Better::More, 0.1), Exit::CannotTell);
    }

    #[test]
    fn no_failure_is_a_bad_commit() {
        let exit = |failure| for_git(Err(failure)).unwrap_err().exit;
        assert_eq!(exit(Failure::internal("planted")), Exit::CannotTell);
        assert_eq!(exit(Failure::usage("planted")), Exit::EndsBisection);
        assert_eq!(for_git(Ok(Exit::BAD)), Ok(Exit::BAD));
    }

    #[test]
    fn a_lock_that_collapses_is_bad_although_it_has_no_interval() {
        let comparison = |per_block: [f64; 6]| Comparison {
            ratio: None,
            per_block: per_block.to_vec(),
            ..compared(0.0, 0.0, "too-few-blocks")
        };
        let judge =
            |per_block, is_baseline_seen| judged(&comparison(per_block), is_baseline_seen, Better::More, 0.1);
        assert_eq!(judge([1e-5; 6], true), Exit::BAD);
        assert_eq!(judge([1e-5, 1e-5, 1e-5, 1.0, 1.0, 1.0], true), Exit::CannotTell);
        assert_eq!(judge([1e-5; 6], false), Exit::CannotTell, "nothing is known of the good one");
    }
}
