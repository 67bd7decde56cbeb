//! `haltkick predict`: how well simulated runs predict real ones of the same experiment.

use std::path::Path;

use haltkick_vmm::machines::Machine;

use crate::analysis::attempts;
use crate::analysis::prediction::{Prediction, Side};
use crate::analysis::summary::Summary;
use crate::cli::{Format, PredictArgs};
use crate::commands::report;
use crate::show::table;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

pub(crate) fn predict(args: &PredictArgs) -> Result<Exit> {
    let (real, _, mut failed) = side(&args.real, false)?;
    let x = &real.summary.outline.experiment;
    let mut simulated = Vec::new();
    for path in &args.simulated {
        let (of_path, is_null, failed_here) = side(path, true)?;
        failed = failed.or(failed_here);
        let y = &of_path.summary.outline.experiment;
        let (name, of_real) = (path.display(), args.real.display());
        if x != y {
            return Err(Failure::usage(format!(
                "{of_real} holds experiment '{x}' and {name} holds '{y}': simulate the experiment that was measured"
            )));
        }
        if Prediction::new(&real, &of_path).cells.is_empty() {
            return Err(Failure::usage(format!(
                "{of_real} and {name} have no cell with an efficiency in common"
            )));
        }
        simulated.push((name.to_string(), is_null, of_path));
    }
    let Some(prediction) = Prediction::worst(&real, &simulated) else {
        return Err(Failure::usage(
            "all simulated machines have socket-ns 0: give a directory of one in which lines cost something",
        ));
    };
    match args.format {
        Format::Table => output::data(&table::prediction(&prediction, args.all))?,
        Format::Json => {
            output::data(&output::to_indented_json(&prediction)?)?;
        }
    }
    Ok(failed.unwrap_or(Exit::Done))
}

/// The figures of a directory, all of whose runs have to be simulated, or none; and whether lines of other cores cost nothing there.
/// And how a comparison ends that lacks runs which failed, if there are any.
fn side(path: &Path, simulated: bool) -> Result<(Side, bool, Option<Exit>)> {
    let (manifest, records) = report::read(path)?;
    for (_, failure) in manifest.failed_cells() {
        output::talk(&format!("warning: {}: {failure}", path.display()));
    }
    if let Some(record) = records.iter().find(|record| record.settings.is_simulated() != simulated) {
        let expected = if simulated { "simulated runs" } else { "real runs" };
        return Err(Failure::usage(format!(
            "{} holds a run with engine {}: {expected} belong there (haltkick predict REAL SIMULATED)",
            path.display(),
            record.settings.engine()
        )));
    }
    let records = attempts::last(&records);
    let file = records.first().and_then(|record| record.machine_text());
    let machine = file.and_then(|text| Machine::parse("settings.machine", text).ok());
    let is_null = machine.is_some_and(|machine| machine.costs.line.socket_ps == 0);
    Ok((Side::new(Summary::new(&manifest.outline, &records), &records), is_null, manifest.ending_of_failed()))
}
