//! `haltkick answer`: a question, the experiment that answers it, and the answer in a sentence.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use haltkick_vmm::Span;
use haltkick_vmm::hosts::{Fair, Host, PauseCounter};

use crate::analysis::significance;
use crate::analysis::statistics::{Estimate, Verdict};
use crate::analysis::summary::{Comparison, Sensitivity, Summary};
use crate::cli::{AnswerArgs, Question};
use crate::commands::bench;
use crate::commands::doctor::quiet::pauses_exit;
use crate::experiment::Source;
use crate::experiment::overrides::Overrides;
use crate::record::Record;
use crate::results::directory::Directory;
use crate::results::manifest::Manifest;
use crate::settings::{Settings, machines, rounds};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;
use crate::text::quantity::significant;

/// A narrower interval than this share of the ratio is not worth more runs.
const NARROW: f64 = 0.05;
/// More blocks, to say how much they would help.
const TIMES_MORE: u32 = 4;
/// Comparisons, each with the other guest in words.
const COMPARED: [(&str, &str); 2] = [
    ("PV / no PV", "a guest on a hypervisor that offers none (test-and-set)"),
    ("PV / nopvspin", "a guest with nopvspin (the native queue)"),
];
const NOT_YET: &str = "not tried yet";
/// Slices of Linux' scheduler on eight CPUs or more: that of EEVDF, and of CFS (before Linux 6.6) where two vCPUs share a CPU.
const SLICES: [&str; 2] = ["3ms", "12ms"];
/// Machines like the simulated one on which the answer is tried, and runs on each.
const LIKE: (u32, u32) = (4, 5);
/// Built-in hosts with these two schedulers.
const HOSTS: [&str; 2] = ["linux-7.3", "cfs-2019"];

/// An assumption that is also tried otherwise.
struct Assumption {
    key: &'static str,
    asked: String,
    other: &'static str,
    /// The other way, in words.
    words: String,
}

pub(crate) fn answer(args: &AnswerArgs) -> Result<Exit> {
    let Question::Pv = args.question;
    let asked = completed(args.settings.clone())?;
    // It has a parent directory, which the process may write in.
    let given = args.output.as_ref().map(|path| Path::new(".").join(path));
    let path = given.map_or_else(|| Directory::fresh("answer-pv"), Ok)?;
    let begun = Instant::now();
    match answered(&asked, args, args.budget.0, &path) {
        Err(failure) if failure.exit == Exit::Untrusted && !is_simulated(&asked) => {
            output::data(&format!("No answer from this host: {failure}.\nResults: {}\n", path.display()))?;
            let left = args.budget.0.saturating_sub(begun.elapsed());
            instead(args, &path, left).unwrap_or_else(|why| {
                output::talk(&format!("haltkick: no simulated machine can answer it instead: {why}"));
            });
            Ok(Exit::Untrusted)
        }
        ended => ended,
    }
}

/// Asks a simulated machine like this host, which no neighbour disturbs, in the time that is left.
fn instead(args: &AnswerArgs, path: &Path, left: Duration) -> Result<()> {
    if left.is_zero() {
        return Err(Failure::usage("the time is over: a longer --for leaves some"));
    }
    let records = Manifest::read(path)?.records(path)?;
    let pcpus = records.first().map_or(1, |record| record.settings.pcpus());
    let machine = machines::like_this_host();
    output::data(&format!(
        "\nThe same question on a simulated machine like this host ({machine}), which no neighbour disturbs:\n"
    ))?;
    let asked = simulated(&args.settings, machine, pcpus)?;
    answered(&asked, args, left, &path.join("simulated")).map(drop)
}

fn simulated(asked: &Settings, machine: &str, pcpus: usize) -> Result<Settings> {
    let cpus = format!("0-{}", pcpus.saturating_sub(1));
    let mut given = vec![("engine", "sim"), ("machine", machine), ("cpus", &cpus)];
    let is_by_host = asked.given("sched").is_some_and(|sched| sched.text() == "host");
    if is_by_host && asked.given("host").is_none() {
        given.push(("host", HOSTS[0]));
    }
    completed(asked.clone().with(given).map_err(Failure::usage)?)
}

/// Runs the experiment and tells the answer. Fails where too many runs are invalid for any answer, unless `--anyway` bears them.
fn answered(asked: &Settings, args: &AnswerArgs, budget: Duration, path: &Path) -> Result<Exit> {
    let assumptions = assumptions(asked)?;
    let sets = asked.all_given().map(|(setting, value)| (setting.name.to_owned(), value.to_string()));
    let sets = sets.filter(|(key, _)| !assumptions.iter().any(|it| it.key == key)).collect();
    let overrides = Overrides { sets, quick: args.quick, blocks: args.blocks, ..Overrides::default() };
    let source = source(asked, &assumptions, assumptions.len());
    let begun = Instant::now();
    let ran = bench::run_within(source, &overrides, (Some(budget), Some(&args.patience)), path);
    let is_over = |failure: &Failure| failure.exit == Exit::Interrupted && begun.elapsed() >= budget;
    let (ending, concluded) = match ran {
        Err(failure) if failure.exit == Exit::Interrupted => {
            output::data("No answer: no run has ended.\n")?;
            return if is_over(&failure) { Ok(Exit::Untrusted) } else { Err(failure) };
        }
        ran => ran?,
    };
    let (summary, exit) = concluded?;
    let left = budget.saturating_sub(begun.elapsed());
    let (like, ending) = match ending {
        Ok(()) if is_simulated(asked) && !args.quick && !left.is_zero() => {
            let (machines, blocks) = LIKE;
            let overrides = Overrides { robust: Some(machines), blocks: Some(blocks), ..overrides };
            let source = self::source(asked, &assumptions, 0);
            let ran = bench::run_within(source, &overrides, (Some(left), None), &path.join("robust"));
            // They count if all of them ran in the time that is left.
            match ran.and_then(|(ending, concluded)| ending.and(concluded)) {
                Ok((like, _)) => (Some(like), Ok(())),
                Err(failure) => (None, Err(failure)),
            }
        }
        ending => (None, ending),
    };
    let by_hand = |failure: &Failure| failure.exit == Exit::Interrupted && !is_over(failure);
    if !args.patience.anyway && !ending.as_ref().is_err_and(by_hand) && is_lost(&summary, &assumptions) {
        let (invalid, runs) = (summary.invalid_runs, summary.runs);
        let message = format!(
            "{invalid} of {runs} runs are invalid: stop what else runs; --anyway answers all the same"
        );
        let lost = Failure { exit: Exit::Untrusted, message };
        return Err(ending.err().filter(|failure| !is_over(failure)).unwrap_or(lost));
    }
    let records = Manifest::read(path)?.records(path)?;
    let assumed =
        records.iter().find(|record| is_asked(record, &assumptions)).map(assumed).unwrap_or_default();
    output::data(&text(&summary, &assumptions, &assumed, like.as_ref(), path))?;
    match ending {
        // Enough was measured before the host became busy.
        Err(failure) if failure.exit == Exit::Untrusted => {
            output::talk(&format!("haltkick: {failure}"));
            Ok(exit)
        }
        Err(failure) if !is_over(&failure) => Err(failure),
        _ => Ok(exit),
    }
}

/// Whether too many runs are invalid for any answer to what was asked.
fn is_lost(summary: &Summary, assumptions: &[Assumption]) -> bool {
    let asked = setting(assumptions, None);
    let mut compared = summary.comparisons.iter().filter(|it| it.setting == asked).peekable();
    compared.peek().is_some() && compared.all(|it| it.verdict == Verdict::NotValid)
}

/// The settings, with those that an answer assumes unless it is told otherwise.
fn completed(asked: Settings) -> Result<Settings> {
    let [sched, slice, host] = ["sched", "slice", "host"].map(|key| asked.given(key).is_some());
    let sched = (!sched).then_some(("sched", if host { "host" } else { "vmm" }));
    let slice = (!slice && !host).then_some(("slice", SLICES[0]));
    asked.with(sched.into_iter().chain(slice)).map_err(Failure::usage)
}

fn is_simulated(asked: &Settings) -> bool {
    asked.given("engine").is_some_and(|engine| engine.text() == "sim")
}

/// Assumptions to try otherwise: exits of waiters that spin, where there are any, and the scheduler's slices.
fn assumptions(asked: &Settings) -> Result<Vec<Assumption>> {
    let given = |key: &str| asked.given(key).map(|value| value.to_string());
    let host = given("host")
        .map(|name| machines::find_host(&name).map_err(|error| Failure::usage(format!("--host: {error}"))));
    let host = host.transpose()?;
    let in_ring_0 = given("ring").as_deref() != Some("3");
    let exits_act = match &host {
        Some(host) => host.pause.is_some_and(|it| in_ring_0 || it.counter == PauseCounter::Pauses),
        None => !is_simulated(asked) && in_ring_0 && pauses_exit(),
    };
    let mut found = vec![];
    if exits_act && given("ple").is_none() {
        let asked = given("pause-exits").unwrap_or_else(|| "on".into());
        let (other, do_exit) = if asked == "on" { ("off", "do not exit") } else { ("on", "exit") };
        let words = format!("if waiters that spin {do_exit} (--pause-exits {other})");
        found.push(Assumption { key: "pause-exits", asked, other, words });
    }
    let slice = given("slice").unwrap_or_default();
    let (key, other, words) = match (host, given("sched").as_deref()) {
        (Some(host), _) => {
            let other = HOSTS[usize::from(matches!(host.fair, Fair::Eevdf(_)))];
            ("host", other, format!("under the scheduler of {other} (--host {other})"))
        }
        (None, Some("host")) => {
            ("sched", "vmm", format!("under slices of {slice} that the VMM ends (--sched vmm)"))
        }
        _ => {
            let other = SLICES[usize::from(slice == SLICES[0])];
            ("slice", other, format!("with slices of {other} (--slice {other})"))
        }
    };
    found.push(Assumption { key, asked: given(key).unwrap_or_default(), other, words });
    Ok(found)
}

/// The experiment: the file, at what was asked and with each of the first `otherwise` assumptions otherwise.
fn source(asked: &Settings, assumptions: &[Assumption], otherwise: usize) -> Source {
    let mut text = include_str!("answer_pv.toml").to_owned();
    if is_simulated(asked) {
        // A simulated host does not drift; seeds make figures precise, not long windows.
        text = text.replacen("\n[settings]", "without-ideal = true\n\n[settings]", 1);
        text = text.replacen("window = \"100ms\"", "window = \"20ms\"", 1);
        // The time that further blocks would take is left for machines like it: guesses are off by more than seeds.
        text = text.replacen("target-precision = \"10%\"\n", "", 1);
    }
    if asked.given("vm").is_some() || asked.given("guests").is_some_and(|it| it.to::<u32>() > 1) {
        text = text.replace("baseline = ", "of = \"all-guests\"\nbaseline = ");
    }
    for other in std::iter::once(None).chain((0..otherwise).map(Some)) {
        text += "\n[[point]]\n";
        for (key, value) in setting(assumptions, other) {
            let _ = writeln!(text, "{key} = {value:?}");
        }
    }
    Source { origin: "haltkick answer pv".into(), text }
}

/// The setting as it was asked for, or with an assumption otherwise.
fn setting(assumptions: &[Assumption], other: Option<usize>) -> BTreeMap<String, String> {
    let pair = |(index, it): (usize, &Assumption)| {
        (it.key.to_owned(), if other == Some(index) { it.other.to_owned() } else { it.asked.clone() })
    };
    assumptions.iter().enumerate().map(pair).collect()
}

fn is_asked(record: &Record, assumptions: &[Assumption]) -> bool {
    record.place.as_ref().is_some_and(|place| place.setting == setting(assumptions, None))
}

/// Ring, exits, scheduler, guests and machine of a run as it was asked for, in words.
fn assumed(record: &Record) -> String {
    let settings = &record.settings;
    let beside = settings.get("beside").and_then(|guests| guests.as_array()).map_or(0, Vec::len);
    let (guests, vcpus, pcpus) = (beside + 1, settings.vcpus(), settings.pcpus());
    let ring = settings.count("ring");
    let exits = match settings.is_simulated() {
        true => settings.get("ple").is_some(),
        false => settings.is("pause_exits") && ring == 0 && pauses_exit(),
    };
    let exits = if exits { "exit" } else { "do not exit" };
    let each = (guests as u32 * vcpus).div_ceil(pcpus.max(1) as u32);
    let file = |name: &str| record.files.get(settings.text(name)?);
    let scheduler = match (settings.text("host"), settings.number("slice_ns")) {
        (Some(name), _) => match file("host_sha256").and_then(|text| Host::parse("host", text).ok()) {
            Some(host) => {
                let slice = rounds::round_of_host(&host, pcpus as u32, each) / each.max(1);
                format!("slices of {} by the scheduler of {name}", Span(slice))
            }
            None => format!("the scheduler of {name}"),
        },
        (None, Some(slice_ns)) => {
            format!("slices of {} that the VMM ends", Span(Duration::from_nanos(slice_ns)))
        }
        (None, None) => "this host's scheduler".into(),
    };
    let machine = settings.text("machine").map_or("this host".into(), |name| format!("the simulated {name}"));
    let guests =
        if guests == 1 { format!("{vcpus} vCPUs") } else { format!("{guests} guests of {vcpus} vCPUs") };
    format!(
        "in ring {ring}, where waiters that spin {exits}, {scheduler}, {guests} on {pcpus} pCPUs of {machine}"
    )
}

/// The answer, with the assumptions in words, and by comparisons on machines like the simulated one, if they were tried.
fn text(
    summary: &Summary,
    assumptions: &[Assumption],
    assumed: &str,
    like: Option<&Summary>,
    path: &Path,
) -> String {
    let at = |name, other| summary.comparison(name, &setting(assumptions, other));
    let mut lines = vec![];
    for (name, guest) in COMPARED {
        let Some(gain) = at(name, None) else { continue };
        lines.push(sentence(gain, guest, assumed));
        for (index, it) in assumptions.iter().enumerate() {
            lines.push(format!("  {}: {}", it.words, otherwise(gain, at(name, Some(index)))));
        }
        if summary.simulated {
            let compared = like.and_then(|like| like.comparisons.iter().find(|it| it.name == name));
            let word = compared.and_then(|it| it.sensitivity.as_ref()).map(Sensitivity::word);
            let word = word.unwrap_or_else(|| NOT_YET.into());
            lines.push(format!("  on {} machines like the simulated one: {word}", LIKE.0));
        }
    }
    if lines.is_empty() {
        lines.push("No answer: no run has ended.".into());
    }
    lines.extend(surer(summary, like.is_some()).into_iter().map(|what| format!("Surer: {what}.")));
    lines.push(format!("Results: {0}, report: {0}/report.html", path.display()));
    lines.join("\n") + "\n"
}

/// The gain with an assumption otherwise, and whether that turns the answer round.
fn otherwise(gain: &Comparison, other: Option<&Comparison>) -> String {
    let Some((other, ratio)) = other.and_then(|it| Some((it, it.ratio.as_ref()?))) else {
        return NOT_YET.into();
    };
    let is_round = |ratio: &Estimate| {
        let asked = gain.ratio.as_ref().map_or(0.0, |asked| asked.hodges_lehmann.ln());
        asked * ratio.hodges_lehmann.ln() < 0.0
    };
    let judged = match (gain.verdict, other.verdict) {
        (_, Verdict::TooFewBlocks) => "too few blocks to tell",
        (_, Verdict::NotValid) => "too many runs are invalid to tell",
        (Verdict::Faster, Verdict::Slower) | (Verdict::Slower, Verdict::Faster) => {
            "this turns the answer round"
        }
        (asked, now) if asked == now => "the answer stays",
        (Verdict::Faster | Verdict::Slower, _) if is_round(ratio) => {
            "perhaps the other way round: too few runs to tell"
        }
        (Verdict::Faster | Verdict::Slower, _) => "no difference is shown then",
        _ => "a difference is shown then",
    };
    format!("{}: {judged}", figure(ratio))
}

/// The gain over another guest, with its interval, and what was assumed.
fn sentence(gain: &Comparison, other: &str, assumed: &str) -> String {
    let Some(ratio) = &gain.ratio else {
        return format!("No answer over {other}: there are no figures ({assumed}).");
    };
    let times = figure(ratio);
    let no_answer =
        |what: &str, why: &str| format!("{what} over {other}: {why}; they give {times} ({assumed}).");
    match gain.verdict {
        Verdict::NotValid => no_answer("No answer", "too many runs are invalid"),
        Verdict::TooFewBlocks => no_answer("No answer yet", "too few blocks"),
        Verdict::NoDifferenceShown => format!(
            "No difference is shown from {other}: with PV spinlocks a guest completes {times} as many sections per second, {assumed}."
        ),
        Verdict::Faster | Verdict::Slower => format!(
            "With PV spinlocks a guest completes {times} as many sections per second as {other}, {assumed}."
        ),
    }
}

/// "1.85 times (1.7 to 2.01)".
fn figure(ratio: &Estimate) -> String {
    let interval = ratio.interval.map_or(String::new(), |interval| {
        format!(" ({} to {}, 95 %)", significant(interval.low), significant(interval.high))
    });
    format!("{} times{interval}", significant(ratio.hodges_lehmann))
}

/// Ways to a surer answer; `is_like_tried` if machines like the simulated one were tried, too.
fn surer(summary: &Summary, is_like_tried: bool) -> Vec<String> {
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
    let (made, planned) = (summary.blocks, summary.outline.blocks);
    if made < planned {
        ways.push(format!("a longer --for ({made} of {planned} blocks were made)"));
        return ways;
    }
    if summary.simulated && !is_like_tried {
        ways.push("a longer --for, without --quick: machines like the simulated one are tried last".into());
    }
    let blocks = made.saturating_mul(TIMES_MORE);
    let open = summary.comparisons.iter().filter(|it| !it.verdict.is_difference());
    let half = |ratio: &Estimate| ratio.half_width().unwrap_or(f64::INFINITY);
    let vague = open.filter_map(|it| it.ratio.as_ref()).filter(|ratio| half(ratio) > NARROW);
    if let Some(ratio) = vague.max_by(|a, b| half(a).total_cmp(&half(b))) {
        let share = significance::smallest_difference(ratio, blocks);
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
    use crate::experiment::Experiment;
    use crate::measure::synthetic::{Shape, Sketch, World, settings};

    fn given(text: &str) -> Settings {
        settings(&Vec::from_iter(text.split(' ').filter_map(|word| word.split_once('='))))
    }

    fn asked(text: &str) -> Settings {
        completed(given(text)).unwrap()
    }

    /// The answer of a measured run where PV has `gain` times the throughput with slices of 3 ms, and `other` times with those of 12 ms.
    fn told(scatter: f64, blocks: u32, spoil: bool, [gain, other]: [f64; 2]) -> String {
        let arms = Sketch::new().arm("no PV", "tas").arm("nopvspin", "mcs").arm("PV", "qspinlock");
        let sketch = arms.compare("PV / no PV", "PV", "no PV").compare("PV / nopvspin", "PV", "nopvspin");
        let plan = sketch.axis("slice", &SLICES).plan(blocks);
        let truth = move |asked: haltkick_vmm::OurGuest<'_>| {
            let is_short = asked.run.rules.slice == Duration::from_millis(3);
            let times = if is_short { gain } else { other };
            if asked.ours.lock == "qspinlock" { 1e6 * times } else { 1e6 }
        };
        let mut records = World::new(1).truth(truth).shape(Shape::LogNormal(scatter)).records(&plan);
        // Lock-free runs that scatter are marked; this is about what is valid.
        records.iter_mut().for_each(|record| record.trusted = true);
        if spoil {
            records.iter_mut().for_each(|record| record.warn("busy-neighbour", "another process".into()));
        }
        let assumptions = assumptions(&asked("ring=3")).unwrap();
        let record = records.iter().find(|record| is_asked(record, &assumptions)).unwrap();
        let summary = Summary::new(&plan.outline, &records);
        text(&summary, &assumptions, &assumed(record), None, Path::new("there"))
    }

    #[test]
    fn an_answer_has_an_interval_a_surer_way_and_enough_valid_runs() {
        let text = told(0.2, 8, false, [1.0, 1.0]);
        assert!(text.lines().count() >= 4 && text.contains(" times (") && text.contains(", 95 %)"), "{text}");
        assert!(text.contains("Surer: --blocks 32, which would show "), "{text}");
        assert!(!text.contains("machines like"), "measured hosts have no guesses: {text}");
        // A comparison that is decided needs no more blocks, however wide its interval is.
        let decided = told(0.2, 8, false, [4.0, 4.0]);
        assert!(!decided.contains("Surer: --blocks"), "{decided}");
        assert!(text.ends_with("Results: there, report: there/report.html\n"), "{text}");
        let text = told(0.01, 8, true, [1.0, 1.0]);
        assert!(text.contains("No answer over ") && text.contains("runs are invalid: stop"), "{text}");
        assert!(told(0.01, 1, false, [1.0, 1.0]).contains("No answer yet over "));
    }

    #[test]
    fn an_answer_names_what_it_assumed_and_what_turns_it_round() {
        for (truth, judged) in [
            ([2.0, 0.5], "this turns the answer round"),
            ([0.5, 2.0], "this turns the answer round"),
            ([2.0, 3.0], "the answer stays"),
            ([1.0, 3.0], "a difference is shown then"),
            ([3.0, 1.0], "no difference is shown then"),
        ] {
            let text = told(0.0, 8, false, truth);
            let assumed = "in ring 3, where waiters that spin do not exit, slices of 3ms that the VMM ends, \
                           16 vCPUs on 2 pCPUs of this host";
            assert!(text.contains(assumed), "{text}");
            let is_tried = |line: &&str| line.starts_with("  with slices of 12ms (--slice 12ms): ");
            let tried: Vec<&str> = text.lines().filter(is_tried).collect();
            assert!(tried.len() == 2 && tried.iter().all(|line| line.contains(judged)), "{text}");
        }
    }

    #[test]
    fn a_busy_host_is_replaced_by_a_machine_with_its_cpus() {
        for (more, then) in [
            ("", "sched=vmm slice=3ms"),
            ("sched=host", "sched=host host=linux-7.3"),
            ("cpus=2-3 ring=3 slice=1ms", "ring=3 sched=vmm slice=1ms"),
        ] {
            let simulated = simulated(&given(&format!("ratio=4 {more}")), "icelake-2s", 8).unwrap();
            let words: Vec<_> = simulated.all_given().map(|(row, it)| format!("{}={it}", row.name)).collect();
            assert_eq!(words.join(" "), format!("engine=sim machine=icelake-2s ratio=4 cpus=0-7 {then}"));
        }
    }

    #[test]
    fn exits_of_the_file_are_tried_where_guests_spin_in_ring_0() {
        for (given, tried) in [
            ("engine=sim host=linux-7.3", "pause-exits on off, host linux-7.3 cfs-2019"),
            ("engine=sim host=linux-7.3 pause-exits=off", "pause-exits off on, host linux-7.3 cfs-2019"),
            // Intel's waiters exit in ring 0 only.
            ("engine=sim host=linux-7.3 ring=3", "host linux-7.3 cfs-2019"),
            ("ring=3 sched=host", "sched host vmm"),
            ("engine=sim slice=12ms", "slice 12ms 3ms"),
        ] {
            let each = assumptions(&asked(given)).unwrap();
            let each: Vec<_> =
                each.iter().map(|it| format!("{} {} {}", it.key, it.asked, it.other)).collect();
            assert_eq!(each.join(", "), tried, "{given}");
        }
        // Simulated answers leave the time of further blocks to machines like it.
        let is_precise = ["ring=3", "engine=sim slice=12ms"].map(asked).map(|asked| {
            let source = source(&asked, &assumptions(&asked).unwrap(), 1);
            Experiment::parse(source).unwrap().target_precision.is_some()
        });
        assert_eq!(is_precise, [true, false]);
    }
}
