//! `haltkick bisect`: for `git bisect run`, whether the second of two is slower than the first. Noise is never bad.

use std::path::Path;
use std::time::SystemTime;

use crate::analysis::comparable::Better;
use crate::analysis::statistics::Estimate;
use crate::analysis::summary::Comparison;
use crate::analysis::verdict::Verdict;
use crate::cli::BisectArgs;
use crate::commands::bench;
use crate::experiment::overrides::Overrides;
use crate::experiment::sweep::Sweep;
use crate::results::directory;
use crate::results::manifest::Manifest;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;
use crate::text::quantity::significant;
use crate::text::timestamp;

pub(crate) fn bisect(args: &BisectArgs) -> Result<Exit> {
    measured(args).map_err(|failure| {
        let exit = match failure.exit {
            Exit::Usage | Exit::BadExperiment => Exit::EndsBisection,
            Exit::Interrupted => Exit::Interrupted,
            _ => Exit::CannotTell,
        };
        Failure { exit, ..failure }
    })
}

fn measured(args: &BisectArgs) -> Result<Exit> {
    if args.vary.count() != 2 {
        return Err(Failure::usage("KEY=GOOD,NEW: give two values, such as lock=file:good.o,file:new.o"));
    }
    let sweep = Sweep {
        vary: std::slice::from_ref(&args.vary),
        settings: &args.settings,
        boot: &args.boot.pairs(),
        baseline: Some(""),
        of: std::slice::from_ref(&args.of),
        blocks: args.blocks,
        robust: None,
    };
    let source = sweep.source()?;
    let now = timestamp::for_file_name(SystemTime::now());
    let path = Path::new("experiments-out").join(format!("bisect-{now}"));
    let (summary, _) = bench::run_in(source, &Overrides::default(), &bench::of_user()?, None, &path)?;
    let records = directory::read(&path, Manifest::read(&path)?.has_kernels())?;
    let Some(better) = records.better(&args.of) else {
        return Err(Failure::lacking("--of: it is not known whether more or less of it is better"));
    };
    let Some(compared) = summary.comparisons.first() else {
        return Err(Failure::lacking("one of the two has no figures"));
    };
    let word = judged(compared, better, args.threshold);
    output::data(&line(compared, word, &path))?;
    Ok(word)
}

/// Good, bad, or neither.
fn judged(compared: &Comparison, better: Better, threshold: f64) -> Exit {
    let interval = compared.ratio.as_ref().and_then(|ratio| ratio.interval);
    let Some(interval) = interval.filter(|_| compared.verdict != Verdict::NotValid) else {
        return Exit::CannotTell;
    };
    let kept = 1.0 - threshold;
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
    let ratio = compared.ratio.as_ref().map_or_else(|| "no figures".to_owned(), ratio_in_words);
    format!("{word}: {} / {}: {ratio}; results: {}\n", compared.arm, compared.baseline, path.display())
}

/// An estimate with its interval.
pub(super) fn ratio_in_words(ratio: &Estimate) -> String {
    let middle = significant(ratio.hodges_lehmann);
    match ratio.interval {
        Some(interval) => {
            format!("{middle} ({} to {})", significant(interval.low), significant(interval.high))
        }
        None => format!("{middle}, without an interval,"),
    }
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
            assert_eq!(judged(&compared(low, high, "slower"), better, 0.1), expected, "{low} {high}");
        }
        assert_eq!(judged(&compared(0.5, 0.8, "not-valid"), Better::More, 0.1), Exit::CannotTell);
    }
}
