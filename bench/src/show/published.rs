//! Published figures next to ours, as text.

use std::fmt::Write as _;

use anstyle::Style;

use crate::analysis::statistics::Estimate;
use crate::analysis::summary::{Reproduced, Summary, words};
use crate::experiment::published::Ours;
use crate::text::quantity::{percent, short, significant};
use crate::text::wrap::{lines, wrap};

/// The table of experiments that have such figures: one row per figure, with the reasons below it where they are asked for.
pub(crate) fn published<'a>(summaries: impl IntoIterator<Item = &'a Summary>, with_reasons: bool) -> String {
    let bold = Style::new().bold();
    let mut text = format!(
        "{bold}{:<12} {:<24} {:<31} {:>8} {:>10} {:>5}{bold:#}\n",
        "published", "ours", "control", "pCPUs", "ratio", "like"
    );
    for summary in summaries {
        for row in &summary.published {
            text += &entry(row);
            if with_reasons {
                lines(&reasons(&summary.outline.experiment, row), 2, 2)
                    .iter()
                    .for_each(|line| text += &format!("{line}\n"));
            }
        }
    }
    text + &legend()
}

fn legend() -> String {
    let legend = "published and ours are ratios, or shares in percent, (low to high) is the 95 % interval; control: where \
        nothing should differ, [as published]; pCPUs, and ratio, vCPUs for each of them: there / here. like: what is as it was \
        there: L version of the lock, R ratio, A arrangement, W workload; - it is not, ? nobody says. agrees: the whole \
        interval lies within the percentage of what was published. N blocks: about as many would tell; a word without that \
        would not change if the interval was narrower.";
    wrap(legend, 0).iter().fold(String::from("\n"), |text, line| text + line + "\n")
}

fn entry(row: &Reproduced) -> String {
    let (bold, published) = (Style::new().bold(), &row.published);
    let mut text = String::new();
    for line in wrap(&format!("{}: {}", published.name, row.agreement.word()), 2) {
        let _ = writeln!(text, "\n{bold}{line}{bold:#}");
    }
    let [value, ours] = figures(row);
    let control = control(row);
    let of_both = |there: Option<String>, here: Option<String>| {
        format!("{} / {}", there.unwrap_or("?".into()), here.unwrap_or("-".into()))
    };
    let pcpus = of_both(published.pcpus.map(|it| it.to_string()), row.pcpus.map(|it| it.to_string()));
    let ratios = of_both(published.ratio.map(significant_short), row.ratio.map(significant_short));
    let _ = writeln!(text, "{value:<12} {ours:<24} {control:<31} {pcpus:>8} {ratios:>10} {:>5}", row.like);
    text
}

/// The measurements there and here, why the two are alike or not, and the sources.
pub(crate) fn reasons(experiment: &str, row: &Reproduced) -> String {
    let published = &row.published;
    let setting = words(", ", &row.setting);
    format!(
        "{}; {}. Ours: experiment {experiment}{setting}{}, to agree within {} %. {} See {}. Published: {}.",
        published.figure,
        published.machine,
        of(&published.ours),
        significant_short(published.within * 100.0),
        published.why,
        published.page,
        published.source
    )
}

/// The published figure and ours.
pub(crate) fn figures(row: &Reproduced) -> [String; 2] {
    let each = |text: fn(f64) -> String| {
        row.published.value.iter().map(|it| text(*it)).collect::<Vec<_>>().join(", ")
    };
    match row.published.ours {
        Ours::Share { .. } => [each(percent), share(row.ours.as_ref())],
        Ours::Ratio { .. } | Ours::Slowdown { .. } => [each(significant) + "x", ratio(row.ours.as_ref())],
    }
}

/// Our control, and the published one.
pub(crate) fn control(row: &Reproduced) -> String {
    let published = row.published.control.as_ref().and_then(|control| control.value);
    ratio(row.control.as_ref()) + &published.map_or(String::new(), |value| format!(" [{value}]"))
}

/// The share that ours is, in words; empty for ratios.
fn of(ours: &Ours) -> String {
    let Ours::Share { share, among, .. } = ours else { return String::new() };
    match (share.as_str(), among) {
        (event, Some(among)) => format!(", {event} over {among}"),
        ("lock-cpu", None) => ", CPU time in acquiring and releasing locks".into(),
        (_, None) => ", time waiting for the write lock".into(),
    }
}

/// Without zeros behind the point.
fn significant_short(value: f64) -> String {
    short(&significant(value))
}

fn ratio(estimate: Option<&Estimate>) -> String {
    estimate.map_or("no figure".into(), Estimate::as_ratio)
}

fn share(estimate: Option<&Estimate>) -> String {
    estimate.map_or("no figure".into(), |it| it.told(percent, |end| significant(end * 100.0)))
}
