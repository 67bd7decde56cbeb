//! The answer of `haltkick worst`, in words and as a table.

mod page;

use std::fmt::Write as _;

use anstyle::Style;
use haltkick_vmm::worst::Effect;
use serde_json::json;

use crate::analysis::worst::{Coverage, Parts, Row, Set, Worst, short};
use crate::text::exit::Result;
use crate::text::output::to_json;
use crate::text::quantity::time_ns;
use crate::text::wrap::wrap;

pub(crate) use page::page;

/// Unreached lines that are named; the others are counted.
const UNREACHED_SHOWN: usize = 6;

/// The answer, with `top` rows at most.
pub(crate) fn text(answer: &Worst, top: usize) -> String {
    let bold = Style::new().bold();
    let form = if answer.pv { ", pv on" } else { "" };
    let mut text = format!("{bold}{}{form}: {}{bold:#}\n", answer.lock, verdict(answer));
    for line in notes(answer).iter().flat_map(|line| wrap(line, 0)) {
        let _ = writeln!(text, "{line}");
    }
    for broken in &answer.broken {
        let at = broken.place.lines();
        let _ = writeln!(text, "BROKEN by a preemption at {at} ({}): {}", broken.place.function, broken.what);
        let _ = writeln!(text, "  {}; --replay {}", broken.situation.words(), broken.replay);
    }
    if !answer.rows.is_empty() {
        text += &table(&answer.rows[..top.min(answer.rows.len())]);
    }
    answer.sets.iter().for_each(|found| text += &set(found));
    text
}

/// A set of preemptions, in lines.
pub(super) fn set(set: &Set) -> String {
    let (count, lost) = (set.members.len(), set.lost);
    let apart = set.apart().map_or(String::new(), |apart| format!(", and {apart:.1} in runs of their own"));
    let mut text = format!(
        "the worst {count} preemptions found cost {lost:.1} times one absence{apart} (--replay {})\n",
        set.replay
    );
    for member in &set.members {
        let alone = member.alone.map_or("never reached".into(), |lost| format!("{lost:.1}"));
        let (lines, function) = (member.place.lines(), &member.place.function);
        let situation = member.situation.words();
        let _ = writeln!(text, "  vCPU {} at {lines}  {function}  {situation}; alone: {alone}", member.vcpu);
    }
    text
}

fn verdict(answer: &Worst) -> String {
    let count = answer.broken.len();
    match (count, answer.rows.first()) {
        (1.., _) => format!("{count} preemptions broke it"),
        (0, Some(row)) if !row.beyond_noise => match answer.rows.iter().find(|row| row.in_doubt) {
            Some(row) => format!(
                "no preemption is shown to cost more than the noise; at {} it may: more seeds can tell (--samples)",
                row.place.lines()
            ),
            None => "no preemption is shown to cost more than the noise".into(),
        },
        (0, Some(row)) => format!(
            "the worst preemption found costs {:.1} times its length, at {}",
            row.lost.hodges_lehmann,
            row.place.line.as_ref().map_or_else(|| row.place.function.clone(), |_| row.place.lines())
        ),
        (0, None) => "nothing was tried".into(),
    }
}

fn notes(answer: &Worst) -> Vec<String> {
    let with = if answer.takes_pcpu { "one pCPU gone with its vCPU for" } else { "one vCPU off for" };
    let off = format!("{with} {}", time_ns(answer.for_us * 1e3));
    let mut notes = vec![format!(
        "{} of {} seeds on {} with {} pCPUs and {} vCPUs; {} attempts: {off}, followed for {}",
        answer.seeds,
        answer.seeds_asked,
        answer.machine,
        answer.pcpus,
        answer.vcpus,
        answer.attempts,
        time_ns(answer.horizon_us * 1e3)
    )];
    if !answer.is_complete {
        notes.push("it was ended early: what was not tried yet may be worse".into());
    }
    if let Some(placebo) = &answer.placebo {
        notes.push(format!(
            "noise: an exit alone costs {:.2} to {:.2} (95 % of {} controls); a preemption at a random moment costs {:.2}, as far as it hits the lock",
            placebo.band[0], placebo.band[1], placebo.n, answer.expected
        ));
    }
    notes.push(coverage(&answer.coverage));
    notes
}

fn coverage(coverage: &Coverage) -> String {
    let Coverage { instructions, executed, points, situations, tried, unreached } = coverage;
    let mut text = format!(
        "{executed} of {instructions} instructions were executed, {points} of them can be noticed by others; {tried} of their \
         {situations} situations were tried"
    );
    if !unreached.is_empty() {
        let _ = write!(text, "; {} lines were not reached: ", unreached.len());
        text +=
            &unreached.iter().take(UNREACHED_SHOWN).map(|line| short(line)).collect::<Vec<_>>().join(", ");
        if unreached.len() > UNREACHED_SHOWN {
            text += ", ...";
        }
    }
    text
}

const HEAD: [&str; 11] =
    ["", "lost", "95 %", "n", "held out", "longest wait", "blocked", "heals", "share", "expected", "where"];
/// Columns of the second line of a row.
const INDENT: usize = 6;

fn table(rows: &[Row]) -> String {
    let mut cells = vec![HEAD.map(String::from)];
    cells.extend(rows.iter().map(row));
    let widths: Vec<usize> = (0..HEAD.len() - 1)
        .map(|column| cells.iter().map(|row| row[column].len()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    let below = std::iter::once(String::new()).chain(rows.iter().map(below));
    for (row, below) in cells.iter().zip(below) {
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(text, "{cell:>width$}  ");
        }
        let _ = writeln!(text, "{}", row[HEAD.len() - 1]);
        text += &below;
    }
    text
}

/// Second line of a row: causes, state, the nearest point.
fn below(row: &Row) -> String {
    let mut text = format!("{:INDENT$}{}", "", causes(row));
    for (name, told) in [("lock", &row.state), ("nearest point", &row.place.nearest_point)] {
        if let Some(told) = told {
            let _ = write!(text, " | {name}: {told}");
        }
    }
    text + "\n"
}

/// Causes of the loss in words.
fn causes(row: &Row) -> String {
    let Parts { idle, vmm, guest } = row.parts;
    format!("idle {idle:.1}, VMM {vmm:.1}, spin and lock {guest:.1}")
}

fn row(row: &Row) -> [String; 11] {
    let interval = row.lost.interval.map_or("?".into(), |it| format!("{:.1} to {:.1}", it.low, it.high));
    let mark = if row.beyond_noise { "" } else { "~" };
    [
        row.rank.to_string(),
        format!("{mark}{:.2}", row.lost.hodges_lehmann),
        interval,
        row.lost.n.to_string(),
        row.held_out.map_or("?".into(), |lost| format!("{lost:.1}")),
        time_ns(row.longest_wait_us.max(0.0) * 1e3),
        time_ns(row.blocked_us.max(0.0) * 1e3),
        row.heals_us.map_or("no".into(), |us| time_ns(us * 1e3)),
        format!("{:.2} %", row.exposure * 100.0),
        format!("{:.3}", row.expected),
        format!(
            "{}  {}  [{}]  {}",
            row.place.lines(),
            row.place.function,
            row.place.instruction,
            row.situation()
        ),
    ]
}

/// One preemption that was done again.
pub(crate) fn replayed(
    place: &str,
    (lost, parts): (f64, Parts),
    effect: &Effect,
    state: Option<&str>,
) -> String {
    let Parts { idle, vmm, guest } = parts;
    let least = if effect.censored { "at least " } else { "" };
    format!(
        "{place}\nlost: {least}{lost:.3} times its length; {} fewer sections; longest wait {}, without it {}; heals after {}\n\
         idle {idle:.3}, VMM {vmm:.3}, spin and lock {guest:.3}; lock: {}\n",
        effect.fewer_entries,
        time_ns(effect.longest_wait_ns[0] as f64),
        time_ns(effect.longest_wait_ns[1] as f64),
        effect.heals_ns.map_or("no time that was seen".into(), |ns| time_ns(ns as f64)),
        state.unwrap_or("not known"),
    )
}

/// The result of a replay for machines, as JSON.
pub(crate) fn replayed_json(
    (lost, parts): (f64, Parts),
    effect: &Effect,
    state: Option<&str>,
    same: bool,
) -> Result<String> {
    let json = json!({
        "lost": lost,
        "parts": parts,
        "state": state,
        "is_lower_bound": effect.censored,
        "fewer_entries": effect.fewer_entries,
        "longest_wait_us": effect.longest_wait_ns.map(|ns| ns as f64 / 1e3),
        "blocked_us": effect.blocked_ns.map(|ns| ns as f64 / 1e3),
        "heals_us": effect.heals_ns.map(|ns| ns as f64 / 1e3),
        "fingerprint": format!("{:016x}", effect.fingerprint),
        "is_same": same,
    });
    Ok(to_json(&json)? + "\n")
}
