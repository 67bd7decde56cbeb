//! Reading the `[[published]]` rows of an experiment file, and `[publication]`, what they have in common.

use super::contents::{Axis, Experiment};
use super::published::{At, Nothing, Ours, Published};
use super::reader::Reader;
use crate::record::place::BESIDE;
use crate::text::exit::Result;
use crate::text::nearest;
use crate::text::quantity::percentage;

/// Unless a row says otherwise, ours must lie within this share of the published figure.
const WITHIN: f64 = 0.25;

impl Experiment {
    /// Reads the rows, now that arms, axes and comparisons are known. A row has the keys of `[publication]` that it does not give itself.
    pub(super) fn read_published(&self, top: &Reader<'_>) -> Result<Vec<Published>> {
        let common = top.table("publication")?;
        let mut published: Vec<Published> = vec![];
        for row in top.tables("published")? {
            let read = row.published(common.as_ref(), &self.varying())?;
            let is_known = published.iter().any(|other| other.name == read.name);
            let twice = is_known.then(|| format!("two [[published]] are called '{}'", read.name));
            if let Some(message) = twice.or_else(|| self.without_a_figure(&read)) {
                return Err(row.complain_here(message));
            }
            published.push(read);
        }
        Ok(published)
    }

    /// Why `row` picks not one figure of ours.
    pub(super) fn without_a_figure(&self, row: &Published) -> Option<String> {
        let control = row.control.as_ref().map(|it| (&it.compare, &it.at));
        let (compared, mut points): (_, Vec<(&str, &At)>) = match &row.ours {
            Ours::Ratio { compare, at } => (Some((compare, at)), vec![]),
            Ours::Slowdown { arm, at, over } => (None, vec![(arm.as_str(), at), (arm.as_str(), over)]),
            Ours::Share { arm, at, .. } => (None, vec![(arm.as_str(), at)]),
        };
        for (name, at) in compared.into_iter().chain(control) {
            let Some(comparison) = self.comparisons.iter().find(|it| it.name == *name) else {
                let names: Vec<&str> = self.comparisons.iter().map(|it| it.name.as_str()).collect();
                return Some(nearest::unknown("comparison", name, &names));
            };
            points.extend([(comparison.arm.as_str(), at), (comparison.baseline.as_str(), at)]);
        }
        points.into_iter().find_map(|(arm, at)| self.without_a_point(arm, at))
    }

    fn without_a_point(&self, arm: &str, at: &At) -> Option<String> {
        let varying = self.varying();
        if let Some(open) = varying.iter().find(|axis| axis.values.len() > 1 && !at.contains_key(&axis.key)) {
            return Some(format!("{} is open: several points of the grid have that figure", open.key));
        }
        let first = arm.split(BESIDE).next().unwrap_or(arm);
        let Some(found) = self.arms.iter().find(|it| it.name == first) else {
            let names: Vec<&str> = self.arms.iter().map(|it| it.name.as_str()).collect();
            return Some(nearest::unknown("arm", first, &names));
        };
        let at: Vec<_> = at.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        (!found.stands_at(&at)).then(|| format!("arm '{first}' does not stand at that point"))
    }
}

impl Reader<'_> {
    fn published(&self, common: Option<&Reader<'_>>, axes: &[Axis]) -> Result<Published> {
        let reader = |key: &str| match common {
            Some(common) if self.get(key).is_none() && common.get(key).is_some() => common,
            _ => self,
        };
        let text = |key: &str| reader(key).required_text(key);
        let number = |key: &str| -> Result<Option<f64>> { Ok(reader(key).figures(key)?.map(|of| of[0])) };
        let point = |key: &str| -> Result<At> { Ok(self.point_of(key, axes)?.into_iter().collect()) };
        let ours = match (self.text("compare")?, self.text("share")?) {
            (Some(compare), None) => Ours::Ratio { compare, at: point("at")? },
            (None, Some(share)) => {
                Ours::Share { share, among: self.text("among")?, arm: text("arm")?, at: point("at")? }
            }
            (None, None) => Ours::Slowdown { arm: text("arm")?, at: point("at")?, over: point("over")? },
            (Some(_), Some(_)) => return Err(self.complain_here("a row has 'compare' or 'share'")),
        };
        let control = |table: Reader<'_>| -> Result<Nothing> {
            let at = table.point_of("at", axes)?.into_iter().collect();
            let value = table.figures("value")?.map(|of| of[0]);
            Ok(Nothing { compare: table.required_text("compare")?, at, value })
        };
        let like = text("like")?;
        let is_letter = |(letter, there)| [there, '-', '?'].contains(&letter);
        if like.chars().count() != 3 || !like.chars().zip("LAW".chars()).all(is_letter) {
            return Err(self.complain_here("like: write three letters, such as LAW, L-W or L?-"));
        }
        Ok(Published {
            name: text("name")?,
            source: text("source")?,
            figure: text("figure")?,
            value: self.figures("value")?.ok_or_else(|| self.complain_here("'value' is missing here"))?,
            within: self.parsed("within", percentage)?.unwrap_or(WITHIN),
            machine: text("machine")?,
            pcpus: number("pcpus")?.map(|pcpus| pcpus as u32),
            ratio: number("ratio")?,
            needs_pcpus: self.number("needs-pcpus")?.unwrap_or(0),
            ours,
            control: self.table("control")?.map(control).transpose()?,
            like,
            why: text("why")?,
            page: text("page")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use crate::experiment::overrides::Overrides;
    use crate::experiment::source::BUILT_IN;
    use crate::measure::synthetic::built_in;

    #[test]
    fn every_row_picks_one_figure_that_its_experiment_has() {
        let mut names = BTreeSet::new();
        for (name, _) in BUILT_IN {
            let mut experiment = built_in(name);
            experiment.apply(&Overrides { quick: true, ..Overrides::default() }).unwrap();
            for row in &experiment.published {
                assert_eq!(experiment.without_a_figure(row), None, "{}: with --quick", row.name);
                assert!(row.control.is_some() || experiment.control.is_some(), "{}: no control", row.name);
                let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(&row.page);
                assert!(page.is_file(), "{}: {} is missing", row.name, row.page);
                assert!(names.insert(row.name.clone()), "two rows are called {}", row.name);
            }
        }
        assert!(names.len() > 60, "{names:?}");
    }
}
