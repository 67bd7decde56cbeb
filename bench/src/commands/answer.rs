//! `haltkick answer`: a question, the experiment that answers it, and the answer in a sentence.

use std::path::Path;

use crate::analysis::power;
use crate::analysis::statistics::Estimate;
use crate::analysis::summary::{Comparison, Summary};
use crate::analysis::verdict::Verdict;
use crate::cli::{AnswerArgs, Question};
use crate::commands::bench;
use crate::experiment::Source;
use crate::experiment::overrides::Overrides;
use crate::results::directory::Directory;
use crate::text::exit::{Exit, Result};
use crate::text::output;
use crate::text::quantity::significant;

/// A narrower interval than this share of the ratio is not worth more runs.
const NARROW: f64 = 0.05;
/// More blocks, to say how much they would help.
const TIMES_MORE: u32 = 4;

pub(crate) fn answer(args: &AnswerArgs) -> Result<Exit> {
    let Question::Pv = args.question;
    let given = args.settings.all_given();
    let overrides = Overrides {
        sets: given.map(|(setting, value)| (setting.name.to_owned(), value.to_string())).collect(),
        quick: args.quick,
        blocks: args.blocks,
        ..Overrides::default()
    };
    let source = Source { origin: "haltkick answer pv".into(), text: include_str!("answer_pv.toml").into() };
    // It has a parent directory, which the process may write in.
    let given = args.output.as_ref().map(|path| Path::new(".").join(path));
    let path = given.map_or_else(|| Directory::fresh("answer-pv"), Ok)?;
    let (summary, exit) = bench::run_in(source, &overrides, &bench::of_user()?, None, &path)?;
    output::data(&text(&summary, &path))?;
    Ok(exit)
}

fn text(summary: &Summary, path: &Path) -> String {
    let found = |name: &str| summary.comparisons.iter().find(|it| it.name == name);
    let mut lines = vec![];
    if let Some(gain) = found("PV / no PV") {
        lines.push(sentence(gain, "a guest on a hypervisor that offers none (test-and-set)"));
    }
    if let Some(gain) = found("PV / nopvspin") {
        lines.push(sentence(gain, "a guest with nopvspin (the native queue)"));
    }
    if lines.is_empty() {
        lines.push("No answer: no run has ended.".into());
    }
    lines.extend(surer(summary).into_iter().map(|what| format!("Surer: {what}.")));
    lines.push(format!("Results: {0}, report: {0}/report.html", path.display()));
    lines.join("\n") + "\n"
}

/// The gain over another guest, with its interval.
fn sentence(gain: &Comparison, other: &str) -> String {
    let Some(ratio) = &gain.ratio else { return format!("No answer over {other}: there are no figures.") };
    let times = figure(ratio);
    match gain.verdict {
        Verdict::NotValid => format!("No answer over {other}: too many runs are invalid; they give {times}."),
        Verdict::TooFewBlocks => format!("No answer yet over {other}: too few blocks; they give {times}."),
        Verdict::NoDifferenceShown => {
            format!(
                "No difference is shown from {other}: with PV spinlocks a guest completes {times} as many sections per second."
            )
        }
        Verdict::Faster | Verdict::Slower => {
            format!("With PV spinlocks a guest completes {times} as many sections per second as {other}.")
        }
    }
}

/// "1.85 times (1.7 to 2.01)".
fn figure(ratio: &Estimate) -> String {
    let interval = ratio.interval.map_or(String::new(), |interval| {
        format!(" ({} to {}, 95 %)", significant(interval.low), significant(interval.high))
    });
    format!("{} times{interval}", significant(ratio.hodges_lehmann))
}

/// Ways to a surer answer.
fn surer(summary: &Summary) -> Vec<String> {
    let mut ways = vec![];
    if summary.simulated {
        ways.push(
            "measure on a host with /dev/kvm: the machine is simulated, and intervals are over seeds only"
                .into(),
        );
    }
    if summary.invalid_runs > 0 {
        let (invalid, runs) = (summary.invalid_runs, summary.runs);
        ways.push(format!(
            "{invalid} of {runs} runs are invalid: stop what else runs, or choose pCPUs with --cpus"
        ));
    }
    let blocks = summary.blocks.saturating_mul(TIMES_MORE);
    let ratios = summary.comparisons.iter().filter_map(|it| it.ratio.as_ref());
    let widest = ratios.filter(|ratio| ratio.half_width().is_none_or(|half| half > NARROW));
    let widest =
        widest.max_by(|a, b| a.half_width().unwrap_or(1e9).total_cmp(&b.half_width().unwrap_or(1e9)));
    if let Some(ratio) = widest {
        let share = power::smallest_difference(ratio, blocks);
        let share = share.map_or(String::new(), |share| {
            format!(", which would show a difference of {} %", significant(share * 100.0))
        });
        ways.push(format!("--blocks {blocks}{share}"));
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Shape, Sketch, World};

    fn told(scatter: f64, blocks: u32, spoil: bool) -> String {
        let arms = Sketch::new().arm("no PV", "tas").arm("nopvspin", "mcs").arm("PV", "qspinlock");
        let sketch = arms.compare("PV / no PV", "PV", "no PV").compare("PV / nopvspin", "PV", "nopvspin");
        let plan = sketch.plan(blocks);
        let mut records = World::new(1).shape(Shape::LogNormal(scatter)).records(&plan);
        if spoil {
            records.iter_mut().for_each(|record| record.warn("busy-neighbour", "another process".into()));
        }
        text(&Summary::new(&plan.outline, &records), Path::new("there"))
    }

    #[test]
    fn an_answer_has_an_interval_and_what_would_make_it_surer() {
        let text = told(0.2, 8, false);
        assert!(text.lines().count() >= 4 && text.contains(" times (") && text.contains(", 95 %)"), "{text}");
        assert!(text.contains("Surer: --blocks 32, which would show "), "{text}");
        assert!(text.ends_with("Results: there, report: there/report.html\n"), "{text}");
    }

    #[test]
    fn invalid_or_too_few_runs_are_no_answer() {
        let text = told(0.01, 8, true);
        assert!(text.contains("No answer over ") && text.contains("runs are invalid: stop"), "{text}");
        assert!(told(0.01, 1, false).contains("No answer yet over "));
    }
}
