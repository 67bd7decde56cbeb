//! Comparisons on a simulated machine next to those on machines like it, where the experiment has them.

use std::collections::BTreeMap;

use haltkick_vmm::machines::Machine;

use super::placed::{Placed, settings};
use super::{Comparison, Setting, Summary, comparisons};
use crate::analysis::robust::{Point, Robustness, Sensitivity, robustness, suspect};
use crate::experiment::outline::Outline;
use crate::record::Record;
use crate::settings::machines::{is_like, of_likes};

const KEY: &str = "machine";

/// The records of machines like others, if there are any, and the outline and the records without them.
pub(super) fn apart(outline: &Outline, records: &[Record]) -> Option<(Outline, Vec<Record>, Vec<Record>)> {
    let has_likes = |axis: &crate::experiment::outline::OutlineAxis| {
        axis.key == KEY && axis.values.iter().any(|value| is_like(value))
    };
    if !outline.axes.iter().any(has_likes) {
        return None;
    }
    let mut own = outline.clone();
    let of_machines = own.axes.iter_mut().filter(|axis| axis.key == KEY);
    of_machines.for_each(|axis| axis.values.retain(|value| !is_like(value)));
    let is_of_like = |record: &&Record| machine_of(record).is_some_and(is_like);
    let (likes, rest): (Vec<&Record>, Vec<&Record>) = records.iter().partition(is_of_like);
    Some((own, rest.into_iter().cloned().collect(), likes.into_iter().cloned().collect()))
}

fn machine_of(record: &Record) -> Option<&str> {
    Some(record.place.as_ref()?.setting.get(KEY)?.as_str())
}

/// Says of each comparison on what it depends. `likes` are records of machines like those of `records`.
pub(super) fn tell(summary: &mut Summary, outline: &Outline, records: &[Record], likes: &[Record]) {
    let placed = Placed::sort(likes);
    let of_likes = comparisons(outline, &settings(outline, &placed), &placed);
    let named = records.iter().chain(likes).filter_map(|record| Some((machine_of(record)?, record)));
    let parsed = named.filter_map(|(name, record)| Some((name, record.machine_text()?)));
    let texts: BTreeMap<&str, &str> = parsed.collect();
    let machine = |name: &str| Machine::parse(name, texts.get(name)?).ok();
    let machines: BTreeMap<&str, Machine> =
        texts.keys().filter_map(|name| Some((*name, machine(name)?))).collect();
    for comparison in &mut summary.comparisons {
        comparison.sensitivity = of_comparison(comparison, outline, &of_likes, &machines);
    }
}

fn of_comparison(
    comparison: &Comparison,
    outline: &Outline,
    likes: &[Comparison],
    machines: &BTreeMap<&str, Machine>,
) -> Option<Sensitivity> {
    let name = comparison.setting.get(KEY)?;
    let values = outline.axes.iter().filter(|axis| axis.key == KEY).flat_map(|axis| &axis.values);
    let asked = values.filter(|value| of_likes(value) == Some(name)).count();
    let without = |setting: &Setting| {
        let mut setting = setting.clone();
        setting.remove(KEY).map(|machine| (machine, setting))
    };
    let (_, rest) = without(&comparison.setting)?;
    let is_of_it = |like: &&Comparison| {
        let at = without(&like.setting);
        like.name == comparison.name
            && at.is_some_and(|(machine, setting)| of_likes(&machine) == Some(name) && setting == rest)
    };
    let point = |it: &Comparison| {
        let machine = machines.get(it.setting.get(KEY)?.as_str())?;
        let figures = machine.guesses().into_iter().map(|guess| (guess.key, guess.value)).collect();
        let choices = machine.chosen().into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        Some(Point::new(figures, choices, it.ratio.clone()))
    };
    let nominal = point(comparison)?;
    let points: Vec<Point> = likes.iter().filter(is_of_it).filter_map(point).collect();
    let robustness = match robustness(&nominal, &points) {
        // No finding: the correction took it back, or it was not simulated on all machines.
        Robustness::Robust if !comparison.verdict.is_difference() || points.len() < asked => {
            Robustness::Undetermined
        }
        other => other,
    };
    let flips_at = match robustness {
        Robustness::Flips => suspect(&nominal, &points).map(|(key, value)| format!("{key} = {value}")),
        Robustness::Robust | Robustness::Undetermined => None,
    };
    Some(Sensitivity { robustness, flips_at, points: points.len() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::findings::findings;
    use crate::measure::synthetic::{Shape, Sketch, World};
    use crate::record::figures::{ACQUISITIONS, THROUGHPUT};
    use crate::settings::machines;

    const MACHINES: [&str; 5] =
        ["nehalem-2s", "nehalem-2s~1/4", "nehalem-2s~2/4", "nehalem-2s~3/4", "nehalem-2s~4/4"];

    /// Two arms in six blocks on a machine and on four like it, with the ratio of the arms on each.
    fn summary(ratios: [f64; 5]) -> Summary {
        let sketch = Sketch::two().axis("machine", &MACHINES).axis("engine", &["sim"]).axis("ratio", &["1"]);
        let plan = sketch.compared().plan(6);
        let mut records = World::new(1).truth(|_| 1e5).shape(Shape::LogNormal(0.01)).records(&plan);
        for record in &mut records {
            let place = record.placed();
            let number = MACHINES.iter().position(|name| *name == place.setting["machine"]).unwrap();
            let factor = if place.arm == "b" { ratios[number] } else { 1.0 };
            record.settings.set("machine_sha256", MACHINES[number]);
            record.files = [(MACHINES[number].into(), machines::find(MACHINES[number]).unwrap().text)].into();
            for name in [ACQUISITIONS, THROUGHPUT] {
                let value = (record.amount(name) * factor).floor();
                record.figures.set(name, value);
            }
            record.trusted = true;
        }
        Summary::new(&plan.outline, &records)
    }

    #[test]
    fn only_what_holds_on_all_machines_is_a_finding() {
        let told = |ratios| {
            let summary = summary(ratios);
            assert_eq!(summary.comparisons.len(), 1, "machines like it have no rows of their own");
            assert!(summary.rows.iter().all(|row| row.setting["machine"] == "nehalem-2s"));
            assert_eq!(summary.outline.axes[0].values, ["nehalem-2s"]);
            let sensitivity = summary.comparisons[0].sensitivity.clone().expect("it was asked for");
            assert_eq!(sensitivity.points, 4);
            (sensitivity, findings(&summary).remove(0).text)
        };
        let (robust, text) = told([1.5, 1.4, 1.6, 1.2, 1.5]);
        assert_eq!(robust.word(), "robust");
        assert!(text.contains("faster, up to 1."), "{text}");
        let (flips, text) = told([1.5, 1.4, 1.6, 0.7, 1.5]);
        assert!(flips.word().starts_with("flips at "), "{}", flips.word());
        assert!(!text.contains("faster") && text.contains("1 flips or is undetermined"), "{text}");
        let (undetermined, text) = told([1.5, 1.4, 1.6, 1.0, 1.5]);
        assert_eq!(undetermined.word(), "undetermined");
        assert!(!text.contains("faster") && text.contains("1 flips or is undetermined"), "{text}");
    }
}
