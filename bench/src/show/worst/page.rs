//! The report: the ranked lines, and a map of the lock's source, coloured by what a preemption costs at each line. It needs no script.

use std::collections::BTreeMap;

use haltkick_vmm::Image;
use maud::{DOCTYPE, Markup, html};

use super::{causes, notes, set, verdict};
use crate::analysis::worst::{Heat, Row, Worst};
use crate::show::report::{head, scrolled};

const MAP_STYLE: &str = include_str!("page.css");
/// Rows of the page's table.
const ROWS: usize = 15;
/// Lines shown before and after those that have code.
const AROUND: usize = 2;
/// Lines between two stretches of code that are left out if there are more.
const MOST_BETWEEN: usize = 6;
/// Shades of colour.
const SHADES: f64 = 9.0;

/// The page of `answer`, with a map of all instructions of the lock's functions.
pub(crate) fn page(answer: &Worst, map: &[Heat]) -> String {
    let form = if answer.pv { ", pv on" } else { "" };
    let title = format!("{}{form}: what a preemption costs", answer.lock);
    let most = map.iter().filter_map(|heat| heat.lost).fold(0.0, f64::max);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            (head(&title, MAP_STYLE))
            body { main {
                h1 { (title) }
                p.finding { (verdict(answer)) "." }
                ul { @for note in notes(answer) { li { (note) } } }
                @for broken in &answer.broken {
                    p.broken { b { "Broken " } "at " (broken.place.lines()) ": " (broken.what) " (" (broken.replay) ")" }
                }
                h2 { "The worst lines" }
                (scrolled("The worst lines", &table(&answer.rows)))
                @if !answer.sets.is_empty() { h2 { "Several at once" } @for found in &answer.sets { pre { (set(found)) } } }
                h2 { "Map of the source" }
                (key(most))
                (files(map, most))
            } }
        }
    };
    page.into_string() + "\n"
}

fn table(rows: &[Row]) -> Markup {
    html! {
        table.ranked {
            thead { tr { @for head in ["", "lost", "95 %", "held out", "where", "situation", "lock just before", "nearest point", "causes"] {
                th scope="col" { (head) }
            } } }
            tbody { @for row in rows.iter().take(ROWS) { tr {
                td { (row.rank) }
                td { @if !row.beyond_noise { "~" } (format!("{:.1}", row.lost.hodges_lehmann)) }
                td { @if let Some(it) = row.lost.interval { (format!("{:.1} to {:.1}", it.low, it.high)) } @else { "?" } }
                td { @if let Some(lost) = row.held_out { (format!("{lost:.1}")) } @else { "?" } }
                td.text {
                    @if let Some(line) = &row.place.line { a href={ "#" (line) } { (row.place.lines()) } } @else { (row.place.lines()) }
                    small { (row.place.function) }
                }
                td.text { (row.situation()) }
                td.text { (row.state.as_deref().unwrap_or("not known")) }
                td.text { (row.place.nearest_point.as_deref().unwrap_or("")) }
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
    // The worst file first; files without a figure last, folded.
    files.sort_by(|a, b| b.0.total_cmp(&a.0));
    let cold = files.split_off(files.partition_point(|file| file.0 > f64::NEG_INFINITY));
    html! {
        @for (_, file, lines) in &files { section.source { h3 { (file) } (file_map(file, lines, most)) } }
        @if !cold.is_empty() {
            details { summary { "Files without a figure: " (cold.len()) }
                @for (_, file, lines) in &cold { section.source { h3 { (file) } (file_map(file, lines, most)) } }
            }
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
    let stretches = stretches(lines.keys().copied(), text.len());
    html! {
        div.code role="region" aria-label=(file) tabindex="0" {
            @for (index, stretch) in stretches.into_iter().enumerate() {
                @if index > 0 { div.gap { "\u{22ee}" } }
                @for number in stretch {
                    @let source = text.get(number.wrapping_sub(1)).copied().unwrap_or_default();
                    @match lines.get(&number) {
                        Some(code) => (line((file, number), source, code, most)),
                        None => div.line { span.figure {} span.number { (number) } code { (source) } },
                    }
                }
            }
        }
    }
}

/// Ranges of lines to show, for lines that have code.
fn stretches(coded: impl Iterator<Item = usize>, length: usize) -> Vec<std::ops::RangeInclusive<usize>> {
    let mut stretches: Vec<std::ops::RangeInclusive<usize>> = Vec::new();
    for line in coded {
        let (start, end) = (line.saturating_sub(AROUND).max(1), (line + AROUND).min(length.max(line)));
        match stretches.last_mut() {
            Some(last) if start <= *last.end() + MOST_BETWEEN => *last = *last.start()..=end,
            _ => stretches.push(start..=end),
        }
    }
    stretches
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

/// Style of a line or an instruction.
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
        let line = |number: u32| {
            let at =
                page.find(&format!("<span class=\"number\">{number}</span>")).expect("the line is shown");
            let start = page[..at].rfind("<summary class=\"").expect("it opens");
            page[start + 16..].split('"').next().unwrap().to_owned()
        };
        assert_eq!([line(70), line(72), line(200)], ["s9", "s0", "unreached"]);
        let source = Image::embedded_source(FILE).unwrap().lines().nth(69).unwrap();
        assert!(page.contains(source.trim().split(['<', '&', '"']).next().unwrap()), "{page}");
        assert!(page.contains("mov &lt;a&gt;, b") && !page.contains("mov <a>"), "escaped");
        let heads = ["word.rs</h3>", "pv.rs</h3>", "Files without a figure: 1", "domain.rs</h3>"];
        let order = heads.map(|head| page.find(head).expect(head));
        assert!(order.is_sorted(), "the worst file comes first: {order:?}");
        assert_eq!(page.matches("\u{22ee}").count(), 1, "what lies between is left out");
    }
}
