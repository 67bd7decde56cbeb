//! The answer of `haltkick flips`, in words.

use std::fmt::Write as _;

use anstyle::Style;

use crate::analysis::flips::{Alone, Flips, Point, Robustness, is_flipped};
use crate::analysis::statistics::Estimate;
use crate::text::wrap::wrap;

/// The answer first, then what it rests on.
pub(crate) fn text(answer: &Flips) -> String {
    let bold = Style::new().bold();
    let (arm, baseline) = (&answer.arm, &answer.baseline);
    let mut text = format!("{bold}{arm} over {baseline}: {}{bold:#}\n", verdict(answer));
    let count = |is: fn(&Point, &Point) -> bool| {
        answer.points.iter().filter(|point| is(&answer.nominal, point)).count()
    };
    let agree = count(|nominal, point| point.ratio.is_some() && point.verdict == nominal.verdict);
    let flip = count(is_flipped);
    let lines = [
        format!(
            "throughput on {}: {} (95 % interval over {} seeds)",
            answer.machine,
            ratio(answer.nominal.ratio.as_ref()),
            answer.seeds
        ),
        format!(
            "of {} machines like it: {agree} say the same, {flip} the opposite, {} neither; the ratio is {}",
            answer.points.len(),
            answer.points.len() - agree - flip,
            range(&answer.points)
        ),
    ];
    for line in lines.iter().flat_map(|line| wrap(line, 0)) {
        let _ = writeln!(text, "{line}");
    }
    for alone in &answer.alone {
        let is = if alone.flips { "flips it" } else { "does not flip it" };
        let line = format!("{} = {} alone {is}: {}", alone.key, alone.value, ratio(alone.ratio.as_ref()));
        wrap(&line, 2).iter().for_each(|line| _ = writeln!(text, "{line}"));
    }
    text
}

fn verdict(answer: &Flips) -> String {
    let word = answer.robustness.word();
    let at: Vec<String> = answer
        .alone
        .iter()
        .filter(|alone| alone.flips)
        .map(|Alone { key, value, .. }| format!("{key} = {value}"))
        .collect();
    match answer.robustness {
        Robustness::Flips if at.is_empty() => format!("{word} where several figures change together"),
        Robustness::Flips => format!("{word} at {}", at.join(", or at ")),
        Robustness::Robust | Robustness::Undetermined => word.into(),
    }
}

fn ratio(ratio: Option<&Estimate>) -> String {
    ratio.map_or_else(|| "no figure".into(), Estimate::as_ratio)
}

/// The least and the greatest of all.
fn range(points: &[Point]) -> String {
    let ratios = points.iter().filter_map(|point| point.ratio.as_ref()).map(|it| it.hodges_lehmann);
    let (least, greatest) =
        ratios.fold((f64::INFINITY, 0.0_f64), |(least, most), it| (least.min(it), most.max(it)));
    if greatest > 0.0 { format!("{least:.2} to {greatest:.2}") } else { "unknown".into() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn point(ratio: f64) -> Point {
        let each = [0.99, 0.995, 1.0, 1.005, 1.01].map(|share| share * ratio);
        Point::new(BTreeMap::new(), BTreeMap::new(), Estimate::of_positive(&each))
    }

    fn answer(robustness: Robustness, points: &[f64], alone: Vec<Alone>) -> String {
        let points = points.iter().map(|ratio| point(*ratio)).collect();
        let text = text(&Flips {
            schema: String::new(),
            schema_version: 1,
            arm: "a".into(),
            baseline: "b".into(),
            machine: "m".into(),
            seeds: 5,
            robustness,
            nominal: point(1.2),
            points,
            alone,
        });
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn the_first_line_is_the_answer() {
        let robust = answer(Robustness::Robust, &[1.1, 1.3], vec![]);
        assert!(robust.starts_with("a over b: robust\nthroughput on m: 1.2"), "{robust}");
        assert!(
            robust.contains("of 2 machines like it: 2 say the same, 0 the opposite, 0 neither"),
            "{robust}"
        );
        assert!(robust.contains("the ratio is 1.10 to 1.30"), "{robust}");
        let alone = |flips| Alone { key: "k".into(), value: "3".into(), ratio: None, flips };
        let flips = answer(Robustness::Flips, &[0.9], vec![alone(false), alone(true)]);
        assert!(flips.starts_with("a over b: flips at k = 3\n"), "{flips}");
        assert!(flips.contains("k = 3 alone does not flip it: no figure"), "{flips}");
        let together = answer(Robustness::Flips, &[0.9], vec![alone(false)]);
        assert!(
            together.starts_with("a over b: flips where several figures change together\n"),
            "{together}"
        );
    }
}
