//! Runs that failed on either side, and have no records: what is compared is not all that there is to know.

use super::Side;
use super::cell::Setting;
use crate::analysis::summary::Comparison;
use crate::record::names::slug;
use crate::show::cases::Cases;
use crate::text::exit::Exit;

/// A cell with failed runs on one side.
#[derive(Debug)]
pub(super) struct LeftOut {
    pub(super) is_of_b: bool,
    pub(super) cell_id: String,
    /// The failure in a sentence.
    pub(super) sentence: String,
    /// Setting and arm, if any run of it is recorded on either side.
    place: Option<(Setting, String)>,
    /// The end of a comparison that lacks it.
    pub(super) exit: Exit,
}

impl LeftOut {
    /// Whether runs of `cell` failed.
    pub(super) fn is_of(&self, cell: &Comparison) -> bool {
        self.place.as_ref().is_some_and(|(setting, arm)| {
            cell.setting == *setting && [&cell.arm, &cell.baseline].contains(&arm)
        })
    }

    /// Notes the test that it is: the candidate's failure is one, the baseline's leaves nothing to compare with.
    pub(super) fn note(&self, cases: &mut Cases, name: &str) {
        match self.is_of_b {
            true => cases.failed(name, &self.sentence),
            false => cases.skipped(name, &self.sentence),
        }
    }
}

/// The cells with failed runs on either side, A and B: those of its arm, if a side is one arm.
pub(super) fn of_either(sides: [&Side; 2]) -> Vec<LeftOut> {
    let of_side = |(side, letter): (&Side, char)| {
        let exit = side.manifest.ending_of_failed().unwrap_or(Exit::NoProgress);
        let of_cell = |(cell_id, failure): (&str, String)| LeftOut {
            is_of_b: letter == 'B',
            cell_id: cell_id.to_owned(),
            sentence: format!("{letter}: {failure}"),
            place: place_of(&sides, cell_id),
            exit,
        };
        let failed = side.manifest.failed_cells().into_iter();
        failed.filter(|(cell_id, _)| is_of_arm(side, cell_id)).map(of_cell).collect::<Vec<_>>()
    };
    sides.into_iter().zip(['A', 'B']).flat_map(of_side).collect()
}

/// Whether a cell is one of the arm that is compared, whose name its id begins with.
fn is_of_arm(side: &Side, cell_id: &str) -> bool {
    let Some(arm) = side.arm.as_deref().map(slug) else { return true };
    cell_id.strip_prefix(&arm).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

fn place_of(sides: &[&Side; 2], cell_id: &str) -> Option<(Setting, String)> {
    let mut placed = sides.iter().flat_map(|side| &side.records).filter_map(|record| record.place.as_ref());
    let place = placed.find(|place| place.cell_id == cell_id)?;
    Some((place.setting.clone(), place.arm.clone()))
}
