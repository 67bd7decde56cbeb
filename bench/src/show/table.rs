//! Figures as a table of at most 100 columns.

mod columns;
mod compared;
mod notes;

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use columns::{header, lines, names_at};

use crate::analysis::statistics::{Estimate, Verdict};
use crate::analysis::summary::{ArmCost, Comparison, Row, Setting, Summary, Trials, words};
use crate::record::figures::{CPU_BYTES, LOCK_BYTES, PAIRS};
use crate::record::place::Role;
use crate::show::published;
use crate::text::quantity::significant;
use crate::text::wrap::wrap;

pub(crate) use columns::{shown, value};
pub(crate) use compared::{Compared, LeftOut, cells, comparisons};
pub(crate) use notes::Detail;

const HEADING: Style = Style::new().bold();
const FAINT: Style = Style::new().dimmed();
const FASTER: Style = AnsiColor::Green.on_default();
const SLOWER: Style = AnsiColor::Red.on_default();

const GAP: &str = "  ";

#[derive(Clone)]
pub(crate) struct Field {
    pub(crate) text: String,
    style: Style,
}

pub(crate) type Line = Vec<Field>;

impl Field {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), style: Style::new() }
    }

    /// The class on a page of what has this style in a terminal.
    pub(crate) fn class(&self) -> Option<&'static str> {
        let classes = [(FASTER, "faster"), (SLOWER, "slower"), (FAINT, "faint")];
        classes.into_iter().find_map(|(style, class)| (style == self.style).then_some(class))
    }
}

/// The whole summary: rows, comparisons, and as much below them as `detail` says.
pub(crate) fn summary(summary: &Summary, detail: Detail) -> String {
    let mut text = format!("{HEADING}{}{HEADING:#}\n", summary.outline.title);
    wrap(&extent_line(summary), 0).iter().for_each(|line| _ = writeln!(text, "{line}"));
    text.push('\n');
    let (columns, lines) = figures(summary, detail);
    text += &layout(&columns, &lines, names_at(summary));
    further_comparisons(summary).iter().for_each(|line| _ = writeln!(text, "{line}"));
    if !summary.lock_costs.is_empty() {
        let costs = layout(&LOCK_COSTS.map(String::from), &lock_costs(summary), 0);
        _ = write!(text, "\n{costs}");
    }
    trials(summary).iter().for_each(|line| _ = writeln!(text, "{line}"));
    if !summary.published.is_empty() {
        _ = write!(text, "\n{}", published::published([summary], detail == Detail::Verbose));
    }
    notes::notes(summary, &columns, detail).iter().for_each(|line| _ = writeln!(text, "{line}"));
    text
}

/// How much was measured, and how to read it.
pub(crate) fn extent_line(summary: &Summary) -> String {
    let (extent, seeds) = (extent(summary), over_seeds(summary));
    format!("{extent}; estimates are Hodges-Lehmann's, +- and (low to high) their 95 % intervals{seeds}")
}

/// Limit of the intervals of simulated runs.
pub(crate) fn over_seeds(summary: &Summary) -> &'static str {
    if summary.simulated { " over seeds only, without the model's own error" } else { "" }
}

/// The A/A pair, where there is one: its figures, and what they say.
pub(crate) fn control(summary: &Summary) -> Option<String> {
    let control = summary.control.as_ref()?;
    let (setting, [ratio, verdict]) = (words(", ", &control.setting), told(control));
    Some(format!("A/A pair ({}{setting}): {}, {}", control.arm, ratio.text, verdict.text))
}

/// How much was measured, and where.
pub(crate) fn extent(summary: &Summary) -> String {
    let pcpus: Vec<String> = summary.pcpus().iter().map(usize::to_string).collect();
    format!("{} on {} pCPUs", summary.extent(), pcpus.join(" or "))
}

/// The table proper, per setting and arm: its columns and its lines.
fn figures(summary: &Summary, detail: Detail) -> (Vec<String>, Vec<Line>) {
    // A line between settings, unless each is a single line.
    let lines = match summary.outline.arms.len() {
        0 | 1 => groups(summary).concat(),
        _ => groups(summary).join(&Line::new()),
    };
    match detail {
        Detail::Verbose => (header(summary), lines),
        Detail::Brief | Detail::Quick => columns::fitting(header(summary), lines),
    }
}

/// Rows that the table has: of arms, or where guests vary of all guests.
pub(crate) fn arms(summary: &Summary) -> Vec<&Row> {
    let rows = if summary.together.is_empty() { &summary.rows } else { &summary.together };
    rows.iter().filter(|row| row.role != Role::Control).collect()
}

/// The lines of each setting.
fn groups(summary: &Summary) -> Vec<Vec<Line>> {
    let rows = arms(summary);
    let groups = rows.chunk_by(|a, b| a.setting == b.setting);
    let of_group = |group: &[&Row]| {
        group.iter().enumerate().flat_map(|(at, row)| lines(summary, row, at == 0)).collect()
    };
    groups.map(of_group).collect()
}

/// Fields that say the setting of a row, in the first line of that setting alone.
pub(crate) fn of_axes(summary: &Summary, setting: &Setting, vcpus: u32, is_first: bool) -> Line {
    let axes = summary.outline.axes.iter().map(|axis| setting.get(&axis.key).cloned().unwrap_or_default());
    let vcpus = (!summary.outline.tells_vcpus()).then(|| vcpus.to_string());
    axes.chain(vcpus).map(|text| Field::new(if is_first { text } else { String::new() })).collect()
}

/// The field of the first comparison, by this figure of kernels or by none, in the line of an arm at a setting.
fn of_headline(summary: &Summary, setting: &Setting, arm: &str, figure: Option<&str>) -> Option<Field> {
    let first = summary.outline.comparisons.first()?;
    let is_of_line = |it: &&Comparison| {
        it.name == first.name && it.arm == arm && it.setting == *setting && it.of.figure() == figure
    };
    let found = summary.comparisons.iter().find(is_of_line).map(told);
    Some(found.map_or(Field::new(""), |[ratio, _]| ratio))
}

/// The ratio of a comparison, and its verdict in words, both with what is known of its dependence on guesses.
fn told(comparison: &Comparison) -> [Field; 2] {
    let guesses = comparison.sensitivity.as_ref();
    let robust = guesses.map_or(String::new(), |it| format!(" {}", it.robustness.word()));
    let on_others =
        guesses.map_or(String::new(), |it| format!(", {} ({} machines like it)", it.word(), it.points));
    let style = match comparison.verdict {
        _ if comparison.depends_on_guesses() => FAINT,
        Verdict::Faster => FASTER,
        Verdict::Slower => SLOWER,
        Verdict::NoDifferenceShown | Verdict::TooFewBlocks => Style::new(),
        Verdict::NotValid => FAINT,
    };
    let ratio = format!("{} {}{robust}", comparison.as_ratio(), mark(comparison));
    let verdict = format!("{}{on_others}", comparison.verdict.word(&comparison.of));
    [ratio, verdict].map(|text| Field { text, style })
}

/// The sign of its verdict; where no difference is shown, with the least that could have been.
fn mark(comparison: &Comparison) -> String {
    let sign = comparison.verdict.mark();
    let half = comparison.ratio.as_ref().and_then(Estimate::half_width);
    match half.filter(|_| comparison.verdict == Verdict::NoDifferenceShown) {
        Some(half) => format!("{sign}{}%", short_percent(half)),
        None => sign.into(),
    }
}

/// Comparisons beyond the first, which has a column of its own, and those of which it is known whether they depend on guesses.
fn further_comparisons(summary: &Summary) -> Vec<String> {
    let first = summary.outline.comparisons.first().map(|it| it.name.as_str());
    let is_further = |it: &&Comparison| Some(it.name.as_str()) != first || it.sensitivity.is_some();
    let line = |it: &Comparison| {
        let [ratio, verdict] = told(it);
        format!("{}{}: {}, {}", it.name, words(", ", &it.setting), ratio.text, verdict.text)
    };
    summary.comparisons.iter().filter(is_further).map(line).collect()
}

fn plus_minus(estimate: &Estimate) -> String {
    estimate.half_width().map_or(String::new(), |half| format!(" +-{:>4} %", short_percent(half)))
}

fn short_percent(share: f64) -> String {
    let percent = share * 100.0;
    // Too few blocks, or a host too noisy, to say anything: the digits would say as little.
    if percent > 999.0 {
        return ">999".into();
    }
    if percent < 9.95 { format!("{percent:.1}") } else { format!("{percent:.0}") }
}

/// Characters in the widest field of each column.
fn widths(header: &[String], lines: &[Line]) -> Vec<usize> {
    let of_column = |(at, name): (usize, &String)| {
        let of_lines = lines.iter().filter_map(|line| line.get(at)).map(|field| field.text.chars().count());
        of_lines.fold(name.chars().count(), usize::max)
    };
    header.iter().enumerate().map(of_column).collect()
}

/// Columns as wide as their widest field; the one at `names_at` is set to the left.
pub(crate) fn layout(header: &[String], lines: &[Line], names_at: usize) -> String {
    let widths = widths(header, lines);
    let mut text = String::new();
    let header: Vec<Field> = header.iter().map(|name| Field { text: name.clone(), style: HEADING }).collect();
    for line in std::iter::once(&header).chain(lines) {
        let mut columns = Vec::new();
        for (i, (field, width)) in line.iter().zip(&widths).enumerate() {
            let padded = if i == names_at {
                format!("{:<width$}", field.text)
            } else {
                format!("{:>width$}", field.text)
            };
            columns.push(format!("{style}{padded}{style:#}", style = field.style));
        }
        let _ = writeln!(text, "{}", columns.join(GAP).trim_end());
    }
    text.push('\n');
    text
}

pub(crate) const LOCK_COSTS: [&str; 6] =
    ["uncontended, TSC cycles a pair", "patched", "table", "compiled in", "bytes/lock", "bytes/vCPU"];

/// The uncontended cost of each lock: a line for each arm.
pub(crate) fn lock_costs(summary: &Summary) -> Vec<Line> {
    let line = |cost: &ArmCost| {
        let cycles =
            |name| cost.figures.get(name)?.estimate.as_ref().map(|it| significant(it.hodges_lehmann));
        let bytes = |name| cost.figures.get(name).map(|it| format!("{:.0}", it.median));
        let figures = PAIRS.map(cycles).into_iter().chain([LOCK_BYTES, CPU_BYTES].map(bytes));
        let fields = figures.map(|text: Option<String>| text.unwrap_or_else(|| "-".into()));
        std::iter::once(cost.arm.clone()).chain(fields).map(Field::new).collect()
    };
    summary.lock_costs.iter().map(line).collect()
}

/// A sentence for each comparison whose verdicts are counted.
pub(crate) fn trials(summary: &Summary) -> Vec<String> {
    let percent = |share: f64| significant(share * 100.0);
    let sentence = |trials: &Trials| {
        format!(
            "{}{}: {} trials of {} blocks: {} faster, {} slower; {} % show a difference (95 % interval {} to {} %)",
            trials.name,
            words(", ", &trials.setting),
            trials.trials,
            trials.blocks_per_trial,
            trials.faster,
            trials.slower,
            percent(trials.share),
            percent(trials.share_low),
            percent(trials.share_high),
        )
    };
    summary.trials.iter().map(sentence).collect()
}

/// The table proper, for other programs: without padding.
pub(crate) struct Grid {
    pub(crate) header: Vec<String>,
    /// The column of the arm's name; those before it are settings.
    pub(crate) names_at: usize,
    /// The lines of each setting.
    pub(crate) groups: Vec<Vec<Line>>,
    /// Notes below the table: signs, further comparisons, the A/A pair, warnings.
    pub(crate) notes: Vec<String>,
}

pub(crate) fn grid(summary: &Summary) -> Grid {
    let mut groups = groups(summary);
    for field in groups.iter_mut().flatten().flatten() {
        field.text = field.text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    let mut notes = signs(summary);
    notes.extend(further_comparisons(summary));
    notes.extend(control(summary));
    notes.extend(summary.warnings.iter().map(|warning| format!("warning: {warning}")));
    Grid { header: header(summary), names_at: names_at(summary), groups, notes }
}

/// Explains columns, rows and signs whose names do not say what they mean.
pub(crate) fn signs(summary: &Summary) -> Vec<String> {
    notes::signs(summary, &header(summary))
}
