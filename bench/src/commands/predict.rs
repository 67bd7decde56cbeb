//! `haltkick predict`: how well simulated runs predict real ones of the same experiment.

use std::path::Path;

use crate::analysis::attempts;
use crate::analysis::prediction::{Prediction, Side};
use crate::analysis::summary::Summary;
use crate::cli::{Format, PredictArgs};
use crate::commands::report;
use crate::record::Record;
use crate::show::table;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

/// How `config.engine` names the simulated machine.
const SIMULATED: &str = "sim";

pub(crate) fn predict(args: &PredictArgs) -> Result<Exit> {
    let (real, simulated) = (side(&args.real, false)?, side(&args.simulated, true)?);
    let (x, y) = (&real.summary.outline.experiment, &simulated.summary.outline.experiment);
    if x != y {
        return Err(Failure::usage(format!(
            "{} holds experiment '{x}' and {} holds '{y}': simulate the experiment that was measured",
            args.real.display(),
            args.simulated.display()
        )));
    }
    let prediction = Prediction::new(&real, &simulated);
    if prediction.cells.is_empty() {
        let (real, simulated) = (args.real.display(), args.simulated.display());
        return Err(Failure::usage(format!(
            "{real} and {simulated} have no cell with an efficiency in common"
        )));
    }
    match args.format {
        Format::Table => output::data(&table::prediction(&prediction, args.all))?,
        Format::Json => {
            let json = serde_json::to_string_pretty(&prediction)
                .map_err(|error| Failure::internal(format!("the prediction as JSON: {error}")))?;
            output::data(&format!("{json}\n"))?;
        }
    }
    Ok(Exit::Done)
}

/// The figures of a directory, all of whose runs have to be simulated, or none.
fn side(path: &Path, simulated: bool) -> Result<Side> {
    let (manifest, records) = report::read::<Record>(path)?;
    if let Some(record) = records.iter().find(|record| (record.config.engine == SIMULATED) != simulated) {
        let expected = if simulated { "simulated runs" } else { "real runs" };
        return Err(Failure::usage(format!(
            "{} holds a run with engine {}: {expected} belong there (haltkick predict REAL SIMULATED)",
            path.display(),
            record.config.engine
        )));
    }
    let records = attempts::last(&records);
    Ok(Side::new(Summary::new(&manifest.outline, &records), &records))
}
