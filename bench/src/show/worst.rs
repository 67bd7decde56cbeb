//! The answer of `haltkick worst`, in words and as a table. As a report, which needs no script: the ranked lines, and a map of the lock's
//! source, coloured by what a preemption costs at each line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anstyle::Style;
use haltkick_vmm::Image;
use haltkick_vmm::worst::Effect;
use maud::{Markup, html};
use serde_json::json;

use crate::analysis::worst::{Coverage, Heat, Parts, Row, Set, Worst, short};
use crate::show::report::{scrolled, whole};
use crate::show::table::{Field, Line, layout};
use crate::text::exit::Result;
use crate::text::output::to_json;
use crate::text::quantity::time_ns;
use crate::text::wrap::wrap;

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

/// The ranked rows. Below each stand its causes, the state of the lock, and the nearest point.
fn table(rows: &[Row]) -> String {
    let lines: Vec<Line> = rows.iter().map(|it| row(it).map(Field::new).into()).collect();
    let laid_out = layout(&HEAD.map(String::from), &lines, HEAD.len() - 1);
    let below = rows.iter().map(|row| format!("{:INDENT$}{}\n", "", causes(row)));
    let below = std::iter::once(String::new()).chain(below);
    laid_out.lines().zip(below).map(|(line, below)| format!("{line}\n{below}")).collect()
}

/// The causes of the loss, the state of the lock, and the nearest point.
fn causes(row: &Row) -> String {
    let Parts { idle, vmm, guest } = row.parts;
    let told = [("lock", &row.state), ("nearest point", &row.place.nearest_point)];
    let told = told.into_iter().filter_map(|(name, told)| Some(format!(" | {name}: {}", told.as_ref()?)));
    format!("idle {idle:.1}, VMM {vmm:.1}, spin and lock {guest:.1}{}", told.collect::<String>())
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
pub(crate) fn replayed(place: &str, parts: Parts, effect: &Effect, state: Option<&str>) -> String {
    let (Parts { idle, vmm, guest }, lost) = (parts, parts.sum());
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
    parts: Parts,
    effect: &Effect,
    state: Option<&str>,
    same: bool,
) -> Result<String> {
    let json = json!({
        "lost": parts.sum(),
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

const MAP_STYLE: &str = include_str!("worst/page.css");
const ROWS: usize = 15;
/// Lines shown before and after those that have code.
const AROUND: usize = 3;
const SHADES: f64 = 9.0;

/// The page of `answer`, with a map of all instructions of the lock's functions.
pub(crate) fn page(answer: &Worst, map: &[Heat]) -> String {
    let form = if answer.pv { ", pv on" } else { "" };
    let title = format!("{}{form}: what a preemption costs", answer.lock);
    let most = map.iter().filter_map(|heat| heat.lost).fold(0.0, f64::max);
    let content = html! {
        p.finding { (verdict(answer)) "." }
        ul { @for note in notes(answer) { li { (note) } } }
        @for broken in &answer.broken {
            p.broken { b { "Broken " } "at " (broken.place.lines()) ": " (broken.what) " (" (broken.replay) ")" }
        }
        h2 { "The worst lines" }
        (scrolled("The worst lines", &ranked(&answer.rows)))
        @if !answer.sets.is_empty() { h2 { "Several at once" } @for found in &answer.sets { pre { (set(found)) } } }
        h2 { "Map of the source" }
        (key(most))
        (files(map, most))
    };
    whole(&title, MAP_STYLE, &content)
}

/// The table of the terminal, with links into the map.
fn ranked(rows: &[Row]) -> Markup {
    html! {
        table.ranked {
            thead { tr { @for head in HEAD.into_iter().chain(["causes"]) { th scope="col" { (head) } } } }
            tbody { @for row in rows.iter().take(ROWS) { tr {
                @let cells = self::row(row);
                @for figure in &cells[..HEAD.len() - 1] { td { (figure) } }
                // Its line is a link into the map.
                @let (lines, text) = (row.place.lines(), &cells[HEAD.len() - 1]);
                td.text {
                    @if let Some(line) = &row.place.line { a href={ "#" (line) } { (lines) } } @else { (lines) }
                    (text.strip_prefix(lines.as_str()).unwrap_or(text))
                }
                td.text { (causes(row)) }
            } } }
        }
    }
}

fn key(most: f64) -> Markup {
    let shades = SHADES as usize;
    html! {
        p.key {
            @for shade in 0..=shades {
                span class={ "swatch s" (shade) } { @if shade == 0 { "0" } @else if shade == shades { (format!("{most:.1}")) } @else { "\u{a0}" } }
            }
            " times the absence, in the worst situation of the line. "
            span.swatch.unreached { "hatched" } " was not executed. Without a figure: executed, and no other vCPU can notice a difference, \
            or not tried. A line opens to its instructions."
        }
    }
}

/// Instructions of a source line, or of code without lines.
type OfLine<'a> = Vec<&'a Heat>;

fn files(map: &[Heat], most: f64) -> Markup {
    let mut lines: BTreeMap<&str, BTreeMap<usize, OfLine<'_>>> = BTreeMap::new();
    let mut bare: BTreeMap<&str, OfLine<'_>> = BTreeMap::new();
    for heat in map {
        match heat.place.line.as_deref().and_then(|line| line.rsplit_once(':')) {
            Some((file, line)) => {
                lines.entry(file).or_default().entry(line.parse().unwrap_or(0)).or_default().push(heat)
            }
            None => bare.entry(&heat.place.function).or_default().push(heat),
        }
    }
    let mut files: Vec<_> =
        lines.into_iter().map(|(file, lines)| (worst(lines.values().flatten()), file, lines)).collect();
    // The worst file first; files without a figure last, and folded.
    files.sort_by(|a, b| b.0.total_cmp(&a.0));
    html! {
        @for (worst, file, lines) in &files {
            details.source open[*worst > f64::NEG_INFINITY] { summary { h3 { (file) } } (file_map(file, lines, most)) }
        }
        @for (function, code) in &bare { section.source { h3 { (function) } div.code { @for heat in code { (instruction(heat, most)) } } } }
    }
}

/// The largest loss at some instructions.
fn worst<'a>(code: impl Iterator<Item = &'a &'a Heat>) -> f64 {
    code.filter_map(|heat| heat.lost).fold(f64::NEG_INFINITY, f64::max)
}

fn file_map(file: &str, lines: &BTreeMap<usize, OfLine<'_>>, most: f64) -> Markup {
    let text: Vec<&str> = Image::embedded_source(file).map(|text| text.lines().collect()).unwrap_or_default();
    let around =
        |line: &usize| line.saturating_sub(AROUND).max(1)..=(line + AROUND).min(text.len().max(*line));
    let shown: BTreeSet<usize> = lines.keys().flat_map(around).collect();
    html! {
        div.code role="region" aria-label=(file) tabindex="0" {
            @for number in &shown {
                @if shown.first() != Some(number) && !shown.contains(&(number - 1)) { div.gap { "\u{22ee}" } }
                @let source = text.get(number - 1).copied().unwrap_or_default();
                @match lines.get(number) {
                    Some(code) => (line((file, *number), source, code, most)),
                    None => div.line { span.figure {} span.number { (number) } code { (source) } },
                }
            }
        }
    }
}

fn line((file, number): (&str, usize), source: &str, code: &[&Heat], most: f64) -> Markup {
    let is_reached = code.iter().any(|heat| heat.is_reached);
    let lost = code.iter().filter_map(|heat| heat.lost).max_by(f64::total_cmp);
    let mut by_frame: BTreeMap<&[String], OfLine<'_>> = BTreeMap::new();
    code.iter().for_each(|heat| by_frame.entry(&heat.place.inlined_into).or_default().push(heat));
    html! {
        details.line id=(format!("{file}:{number}")) {
            summary class=(class(is_reached, lost, most)) { span.figure { (figure(lost)) } span.number { (number) } code { (source) } }
            @for (frames, code) in by_frame {
                @if !frames.is_empty() { div.frame { "inlined into " (frames.join(", ")) } }
                @for heat in code { (instruction(heat, most)) }
            }
        }
    }
}

fn instruction(heat: &Heat, most: f64) -> Markup {
    html! {
        div class={ "instruction " (class(heat.is_reached, heat.lost, most)) } {
            span.figure { (figure(heat.lost)) } span.number { (format!("{:x}", heat.address)) } code { (heat.place.instruction) }
        }
    }
}

fn figure(lost: Option<f64>) -> String {
    lost.map(|lost| format!("{:.1}", if lost.abs() < 0.05 { 0.0 } else { lost })).unwrap_or_default()
}

fn class(is_reached: bool, lost: Option<f64>, most: f64) -> String {
    match lost {
        _ if !is_reached => "unreached".into(),
        None => "s0".into(),
        Some(lost) => format!("s{}", (lost / most.max(0.1) * SHADES).round().clamp(0.0, SHADES)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::worst::SourcePlace;

    fn heat(line: &str, address: u64, lost: Option<f64>, is_reached: bool) -> Heat {
        let place = SourcePlace {
            line: Some(line.into()),
            instruction: "mov <a>, b".into(),
            ..SourcePlace::default()
        };
        Heat { address, place, is_reached, lost }
    }

    #[test]
    fn a_line_has_the_colour_of_its_worst_instruction() {
        const FILE: &str = "guest/locks/src/qspinlock/pv.rs";
        let map = [
            heat(&format!("{FILE}:70"), 1, Some(0.1), true),
            heat(&format!("{FILE}:70"), 2, Some(8.0), true),
            heat(&format!("{FILE}:72"), 3, None, true),
            heat(&format!("{FILE}:200"), 4, None, false),
            heat("guest/locks/src/qspinlock/domain.rs:93", 5, None, true),
            heat("guest/locks/src/qspinlock/word.rs:95", 6, Some(9.0), true),
        ];
        let page = files(&map, 8.0).into_string();
        for (class, lost, number) in [("s9", "8.0", 70), ("s0", "", 72), ("unreached", "", 200)] {
            let line = format!(
                "<summary class=\"{class}\"><span class=\"figure\">{lost}</span><span class=\"number\">{number}</span>"
            );
            assert!(page.contains(&line), "{line} is not in {page}");
        }
        let source = Image::embedded_source(FILE).unwrap().lines().nth(69).unwrap();
        assert!(page.contains(source.trim().split(['<', '&', '"']).next().unwrap()), "{page}");
        assert!(page.contains("mov &lt;a&gt;, b") && !page.contains("mov <a>"), "escaped");
        let heads =
            ["open><summary><h3>", "word.rs</h3>", "pv.rs</h3>", "source\"><summary><h3>", "domain.rs</h3>"];
        let order = heads.map(|head| page.find(head).expect(head));
        assert!(order.is_sorted(), "the worst file comes first: {order:?}");
        assert_eq!(page.matches("\u{22ee}").count(), 1, "what lies between is left out");
    }
}
