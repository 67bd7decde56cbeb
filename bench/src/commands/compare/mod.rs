//! `haltkick compare`: two directories, or two arms, cell by cell; a loss that is surely beyond the threshold is a
//! regression.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::analysis::rate::{self, Rate, estimate_ratio};
use crate::analysis::statistics::{Estimate, Verdict};
use crate::analysis::summary::{
    Comparison, Placed, Setting, comparison, corrected, first_of, too_many_of, words,
};
use crate::analysis::{consistency, significance};
use crate::cli::{CompareArgs, ComparisonFormat};
use crate::experiment::measure::Measure;
use crate::record::Record;
use crate::record::figures::Better;
use crate::record::place::{Place, Role, slug};
use crate::results::manifest::Manifest;
use crate::show::cases::{Cases, VerdictFormat};
use crate::show::table::{self, Compared, LeftOut};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::{nearest, output};

/// One side: a directory and perhaps one of its arms.
struct Side {
    path: PathBuf,
    arm: Option<String>,
    manifest: Manifest,
    records: Vec<Record>,
}

pub(crate) fn compare(args: &CompareArgs) -> Result<Exit> {
    let (a, b) = (side(&args.baseline)?, side(&args.candidate)?);
    let [x, y] = [&a, &b].map(|side| &side.manifest.outline.experiment);
    if x != y {
        return Err(Failure::usage(format!(
            "{} holds experiment '{x}' and {} holds '{y}': compare directories of the same experiment",
            a.path.display(),
            b.path.display()
        )));
    }
    let differences = differences(&a, &b, args.anyway)?;
    let compared = compare_sides(&a, &b, (&args.of, args.threshold), differences)?;
    let suite = format!("haltkick compare {} {}", args.baseline, args.candidate);
    show(&compared, &suite, args.format)?;
    Ok(compared.exit())
}

/// Returns the differences between two directories, which refuse a comparison unless `anyway` is set.
fn differences<'a>(a: &'a Side, b: &'a Side, anyway: bool) -> Result<Vec<String>> {
    if a.path == b.path {
        return Ok(vec![]);
    }
    let failed =
        |side: &'a Side| side.manifest.failed.iter().map(|run| &*run.cell_id).collect::<BTreeSet<_>>();
    let (failed_a, failed_b) = (failed(a), failed(b));
    let mut differences = consistency::differences(&a.records, &b.records);
    let cells_of_one = consistency::cells_of_one(&a.records, &b.records, [&failed_a, &failed_b]);
    differences.extend(other_programs(a, b));
    if a.arm.is_none() {
        differences.extend(cells_of_one);
    }
    let message = format!(
        "{} (first) and {} (second) cannot be compared: {}",
        a.path.display(),
        b.path.display(),
        differences.join("; ")
    );
    match differences.is_empty() {
        true => Ok(differences),
        false if anyway => {
            output::talk(&format!("warning: {}", message.replace("cannot be", "are")));
            Ok(differences)
        }
        false => Err(Failure::usage(format!("{message}; --anyway does"))),
    }
}

/// Returns the differences of two experiments with kernels: initial RAM disks that are not the same. Kernels may
/// differ, since they are compared.
fn other_programs(a: &Side, b: &Side) -> Vec<String> {
    let mut differences = Vec::new();
    for this in &a.manifest.kernels {
        let Some(that) = b.manifest.kernels.iter().find(|that| that.name() == this.name()) else { continue };
        if this.initrd_sha256 != that.initrd_sha256 {
            differences.push(format!("other initial RAM disks of {}", this.name()));
        }
        if this.kernel_sha256 != that.kernel_sha256 {
            output::talk(&format!("{}: the second has another kernel than the first", this.name()));
        }
    }
    differences
}

fn compare_sides(
    a: &Side,
    b: &Side,
    (of, threshold): (&[Measure], f64),
    differences: Vec<String>,
) -> Result<Compared> {
    if a.arm.is_some() != b.arm.is_some() {
        return Err(Failure::usage("name an arm on both sides (DIR:ARM), or on neither"));
    }
    let measures =
        if of.is_empty() { consistency::measures(&a.manifest.outline, &a.records) } else { of.to_vec() };
    let limit = 1.0 - threshold;
    let mut cells: Vec<Cell> = measures.iter().flat_map(|of| cells_of(a, b, of, limit)).collect();
    let outline = &a.manifest.outline;
    cells.sort_by_key(|Cell { shown, .. }| {
        (outline.rank(&shown.setting), outline.arms.iter().position(|arm| *arm == shown.arm))
    });
    let failed = failed_of_either([a, b]);
    if cells.is_empty() && failed.is_empty() {
        let (a, b) = (a.path.display(), b.path.display());
        return Err(Failure::usage(format!("{a} and {b} have no cell in common: nothing to compare")));
    }
    let (p_values, least): (Vec<_>, Vec<_>) = cells.iter().map(|cell| (cell.p_value, cell.least)).unzip();
    let told = cells.iter().filter(|cell| cell.is_told).count();
    let (invalid, lost): (Vec<_>, Vec<_>) =
        cells.iter().enumerate().filter_map(|(i, cell)| Some((i, cell.lost.clone()?))).unzip();
    if !lost.is_empty() {
        output::talk(&format!(
            "warning: more than 29 % of the runs of {} of {} cells are invalid: {}; the warnings in runs.jsonl say why",
            lost.len(),
            cells.len(),
            first_of(&lost)
        ));
    }
    let regressions = significance::holm(&p_values, significance::LEVEL);
    let is_untold = |i: &usize| cells[*i].is_told && p_values[*i].is_none() && !invalid.contains(i);
    let untold: Vec<usize> = (0..cells.len()).filter(is_untold).collect();
    let mut shown = corrected(cells.into_iter().map(|cell| (cell.shown, cell.p_of_difference)).collect());
    for cell in &regressions {
        // A cell that has surely lost more than the threshold differs. If it collapsed, there is no interval to take the word from.
        let has_more = shown[*cell].ratio.as_ref().is_some_and(|ratio| ratio.hodges_lehmann > 1.0);
        shown[*cell].verdict = if has_more { Verdict::Faster } else { Verdict::Slower };
    }
    Ok(Compared {
        schema: "haltkick.comparison".into(),
        schema_version: 1,
        threshold,
        differences,
        cells: shown,
        told,
        can_tell: !significance::holm(&least, significance::LEVEL).is_empty(),
        regressions,
        invalid,
        untold,
        p_values,
        are_paired: are_paired(a, b),
        left_out: failed.iter().map(|it| it.sentence.clone()).collect(),
        failed,
    })
}

/// The side that a directory's path means, perhaps with an arm behind a colon.
fn side(text: &str) -> Result<Side> {
    let (path, arm) = match text.rsplit_once(':') {
        Some((path, arm)) if !Path::new(text).exists() => (PathBuf::from(path), Some(arm.to_owned())),
        _ => (PathBuf::from(text), None),
    };
    let manifest = Manifest::read(&path)?;
    let records = consistency::last_attempts(&manifest.records(&path)?);
    if let Some(arm) = &arm
        && !manifest.outline.arms.contains(arm)
    {
        let arms: Vec<&str> = manifest.outline.arms.iter().map(String::as_str).collect();
        return Err(Failure::usage(format!("{}: {}", path.display(), nearest::unknown("arm", arm, &arms))));
    }
    Ok(Side { path, arm, manifest, records })
}

/// Each arm of B against the same arm of A, or one arm against one: within blocks if both are in one directory. Other runs are not
/// paired: the two ran at different times.
fn cells_of(a: &Side, b: &Side, of: &Measure, limit: f64) -> Vec<Cell> {
    // The direction that both sides call better.
    let better = consistency::better(of, &a.records);
    let better = better.filter(|it| consistency::better(of, &b.records) == Some(*it));
    let (below, above) = (Placed::sort(&a.records), Placed::sort(&b.records));
    let asked = Asked { of, better, limit, are_paired: are_paired(a, b), below, above };
    let places = b.records.iter().filter_map(|record| record.place.as_ref());
    let is_asked =
        |place: &&Place| place.role == Role::Arm && b.arm.as_ref().is_none_or(|arm| *arm == place.arm);
    let arms: BTreeSet<(&Setting, &str)> =
        places.filter(is_asked).map(|place| (&place.setting, place.arm.as_str())).collect();
    let cell = |(setting, arm)| asked.cell(setting, [arm, a.arm.as_deref().unwrap_or(arm)]);
    arms.into_iter().filter_map(cell).collect()
}

/// Whether the two are arms of one directory, whose runs are compared within blocks.
fn are_paired(a: &Side, b: &Side) -> bool {
    a.arm.is_some() && a.path == b.path
}

struct Cell {
    shown: Comparison,
    /// The p-value of its difference, as a summary corrects them.
    p_of_difference: Option<f64>,
    /// The chance of a loss as great as the limit says, and the least that it could have been with as many runs; none of too few runs.
    p_value: Option<f64>,
    least: Option<f64>,
    /// Whether it is known if more or less of it is better.
    is_told: bool,
    /// How many of its runs are invalid, and where it is, if the cell is invalid for that.
    lost: Option<String>,
}

/// The measure, the better direction of it, what is kept of it if just the threshold is lost, whether runs are paired within
/// blocks, and on one host, or are two groups, and the runs of A and of B.
struct Asked<'a> {
    of: &'a Measure,
    better: Option<Better>,
    limit: f64,
    are_paired: bool,
    below: Placed<'a>,
    above: Placed<'a>,
}

impl Asked<'_> {
    /// The cell of an arm of B and one of A, if A has that at this setting, and either prints the figure: arms need not print all
    /// figures that others do.
    fn cell(&self, setting: &Setting, arms: [&str; 2]) -> Option<Cell> {
        type Runs = [(Option<Rate>, bool)];
        let [above, below] = [(&self.above, arms[0]), (&self.below, arms[1])]
            .map(|(side, arm)| side.rates(self.of, setting, arm));
        if below.is_empty() || above.iter().chain(&below).all(|(rate, _)| rate.is_none()) {
            return None;
        }
        // Whether the runs are valid, by what they are, and the rates of either side.
        let (validity, above, below) = if self.are_paired {
            let pairs = self.above.pairs(self.of, arms.map(|arm| (setting, arm, false)));
            let (above, below): (Vec<_>, Vec<_>) = pairs.iter().filter_map(|pair| pair.rates).unzip();
            (vec![("pairs", pairs.iter().map(|pair| pair.is_valid).collect())], above, below)
        } else {
            let valid = |runs: &Runs| runs.iter().map(|(_, is_valid)| *is_valid).collect::<Vec<_>>();
            let rates = |runs: &Runs| runs.iter().filter_map(|(rate, _)| *rate).collect::<Vec<_>>();
            (vec![("runs of A", valid(&below)), ("runs of B", valid(&above))], rates(&above), rates(&below))
        };
        let (estimate, per_block, p_of_difference) = if self.are_paired {
            let ratios = ratios(&above, &below);
            (rate::estimate(&ratios), rate::values(&ratios), rate::p_of_difference(&ratios))
        } else {
            (estimate_ratio(&above, &below), vec![], rate::p_of_two_groups(&above, &below))
        };
        let lost = validity.iter().find_map(|(what, valid)| {
            let lost = too_many_of(valid)?;
            Some(format!("{lost} {what} of {}{}", arms[0], words(" at ", setting)))
        });
        let shown = comparison("B/A", setting, arms, estimate, per_block);
        let verdict = if lost.is_some() { Verdict::NotValid } else { shown.verdict };
        let (p_value, least) = if lost.is_some() { (None, None) } else { self.p_values(&above, &below) };
        Some(Cell {
            shown: Comparison { of: self.of.clone(), verdict, ..shown },
            p_of_difference,
            p_value,
            least,
            is_told: self.better.is_some(),
            lost,
        })
    }

    /// The chance of the loss, and the least that it could have been. A lock that collapsed has no figure and yet a chance: half a section
    /// is more than its runs can have done, and ranks need no more. Where more than half of the baseline's runs completed no section it is
    /// unknown what can be lost.
    fn p_values(&self, above: &[Rate], below: &[Rate]) -> (Option<f64>, Option<f64>) {
        let (above, below) = match self.better.filter(|_| rate::are_seen(below)) {
            Some(Better::More) => (above, below),
            Some(Better::Less) => (below, above),
            None => return (None, None),
        };
        let (p_value, least) = if self.are_paired {
            let ratios = rate::values(&ratios(above, below));
            (significance::p_of_pairs(&ratios, self.limit), significance::least_p_of_pairs(ratios.len()))
        } else {
            let (above, below) = (rate::values(above), rate::values(below));
            let least = significance::least_p_of_groups(above.len(), below.len());
            (significance::p_of_groups(&above, &below, self.limit), least)
        };
        (p_value, p_value.and(least))
    }
}

fn ratios(above: &[Rate], below: &[Rate]) -> Vec<Rate> {
    above.iter().zip(below).map(|(above, below)| above.over(*below)).collect()
}

/// The cells with failed runs on either side, A and B: those of its arm, if a side is one arm.
fn failed_of_either(sides: [&Side; 2]) -> Vec<LeftOut> {
    let of_side = |(side, letter): (&Side, char)| {
        let exit = side.manifest.ending_of_failed().unwrap_or(Exit::NoProgress);
        let of_cell = |(cell_id, failure): (&str, String)| {
            let records = sides.iter().flat_map(|side| &side.records);
            let mut places = records.filter_map(|record| record.place.as_ref());
            let place = places.find(|place| place.cell_id == cell_id);
            LeftOut {
                is_of_b: letter == 'B',
                cell_id: cell_id.to_owned(),
                sentence: format!("{letter}: {failure}"),
                place: place.map(|place| (place.setting.clone(), place.arm.clone())),
                exit,
            }
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

/// The cells as tests, which a regression fails.
fn cases(compared: &Compared) -> Cases {
    let mut cases = Cases::default();
    for (index, cell) in compared.cells.iter().enumerate() {
        let at: Vec<String> = cell.setting.iter().map(|(key, value)| format!(" {key}={value}")).collect();
        let name = format!("{}/{}{} {}", cell.arm, cell.baseline, at.concat(), String::from(cell.of.clone()));
        let failed = compared.failed.iter().filter(|it| it.is_of(cell)).max_by_key(|it| it.is_of_b);
        let ratio = cell.ratio.as_ref().map_or("no figures".into(), Estimate::as_ratio);
        if let Some(failed) = failed.filter(|_| !compared.regressions.contains(&index)) {
            failed.note(&mut cases, &name);
            continue;
        }
        match compared.p_values.get(index) {
            _ if compared.regressions.contains(&index) => {
                cases.failed(&name, &format!("it has lost: {ratio}"))
            }
            _ if compared.invalid.contains(&index) => {
                cases.skipped(&name, "too many of its runs are invalid")
            }
            Some(Some(_)) if compared.can_tell => cases.passed(&name),
            Some(Some(_)) => cases.skipped(&name, "too few runs to tell a regression"),
            _ => cases.skipped(&name, "figures are missing, or it is not known whether more of it is better"),
        }
    }
    let without_cell = compared.failed.iter().filter(|it| !compared.cells.iter().any(|cell| it.is_of(cell)));
    without_cell.for_each(|it| it.note(&mut cases, &it.cell_id));
    cases
}

fn show(compared: &Compared, suite: &str, format: ComparisonFormat) -> Result<()> {
    match format {
        ComparisonFormat::Ktap => cases(compared).print(suite, VerdictFormat::Ktap).map(|_| ()),
        ComparisonFormat::Junit => cases(compared).print(suite, VerdictFormat::Junit).map(|_| ()),
        ComparisonFormat::Table => output::data(&table::comparisons(compared)),
        ComparisonFormat::Json => output::data(&output::to_indented_json(compared)?),
    }
}
