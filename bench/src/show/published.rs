//! Published figures next to ours, as text.

use anstyle::Style;

use crate::analysis::statistics::Estimate;
use crate::analysis::summary::{Reproduced, Summary, words};
use crate::experiment::published::Ours;
use crate::text::quantity::{percent, short, significant};
use crate::text::wrap::{lines, wrap};

/// Figures of these experiments, with the reasons where they are asked for.
pub(crate) fn published<'a>(summaries: impl IntoIterator<Item = &'a Summary>, with_reasons: bool) -> String {
    let bold = Style::new().bold();
    let mut text = String::new();
    for summary in summaries {
        for row in &summary.published {
            let [figures, conditions] = told(row);
            wrap(&figures, 2).iter().for_each(|line| text += &format!("{bold}{line}{bold:#}\n"));
            let reasons = with_reasons.then(|| reasons(&summary.outline.experiment, row));
            let below = std::iter::once(conditions).chain(reasons);
            below.flat_map(|words| lines(&words, 2, 2)).for_each(|line| text += &format!("{line}\n"));
        }
    }
    let legend = "Published and ours are ratios, or shares in percent, (low to high) is the 95 % interval. Control: where nothing \
        should differ, [as published]. Like: what is as it was there: L version of the lock, R ratio, A arrangement, W workload; \
        - it is not, ? nobody says. Agrees: the whole interval lies within the percentage of what was published. N blocks: about \
        as many would tell; a word without that would not change if the interval was narrower.";
    wrap(legend, 0).iter().fold(text + "\n", |text, line| text + line + "\n")
}

/// Two sentences: the published figure next to ours, and the conditions by which to judge them.
pub(crate) fn told(row: &Reproduced) -> [String; 2] {
    let (published, [there, here]) = (&row.published, figures(row));
    let of_both = |there: Option<String>, here: Option<String>| {
        format!("{} / {}", there.unwrap_or("?".into()), here.unwrap_or("-".into()))
    };
    let pcpus = of_both(published.pcpus.map(|it| it.to_string()), row.pcpus.map(|it| it.to_string()));
    let ratios = of_both(published.ratio.map(significant_short), row.ratio.map(significant_short));
    let control = published.control.as_ref().and_then(|control| control.value);
    let control = control.map_or(String::new(), |value| format!(" [{value}]"));
    let ours = ratio(row.control.as_ref());
    [
        format!("{}: published {there}, ours {here}: {}", published.name, row.agreement.word()),
        format!(
            "control {ours}{control}; there / here {pcpus} pCPUs, {ratios} vCPUs for each; like {}",
            row.like
        ),
    ]
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
fn figures(row: &Reproduced) -> [String; 2] {
    let each = |text: fn(f64) -> String| {
        row.published.value.iter().map(|it| text(*it)).collect::<Vec<_>>().join(", ")
    };
    match row.published.ours {
        Ours::Share { .. } => [each(percent), share(row.ours.as_ref())],
        Ours::Ratio { .. } | Ours::Slowdown { .. } => [each(significant) + "x", ratio(row.ours.as_ref())],
    }
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
