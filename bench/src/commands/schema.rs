//! `haltkick schema`: the JSON Schema of each file format.

use crate::analysis::prediction::Prediction;
use crate::analysis::summary::Summary;
use crate::analysis::worst::Worst;
use crate::cli::SchemaOf;
use crate::commands::compare::Compared;
use crate::commands::doctor::Examination;
use crate::commands::list::Listing;
use crate::commands::reproduce::Reproduction;
use crate::experiment;
use crate::record::Record;
use crate::record::failure::FailureRecord;
use crate::record::linux::LinuxRecord;
use crate::results::live::View;
use crate::results::manifest::Manifest;
use crate::text::exit::{Exit, Result};
use crate::text::output;

pub(crate) fn print(of: SchemaOf) -> Result<Exit> {
    let schema = match of {
        SchemaOf::Experiment => experiment::schema::schema().try_into().expect("it is an object"),
        SchemaOf::Run => schemars::schema_for!(Record),
        SchemaOf::Failure => schemars::schema_for!(FailureRecord),
        SchemaOf::Linux => schemars::schema_for!(LinuxRecord),
        SchemaOf::Manifest => schemars::schema_for!(Manifest),
        SchemaOf::Summary => schemars::schema_for!(Summary),
        SchemaOf::Comparison => schemars::schema_for!(Compared),
        SchemaOf::Prediction => schemars::schema_for!(Prediction),
        SchemaOf::Worst => schemars::schema_for!(Worst),
        SchemaOf::Reproduction => schemars::schema_for!(Reproduction),
        SchemaOf::Top => schemars::schema_for!(View),
        SchemaOf::Doctor => schemars::schema_for!(Examination),
        SchemaOf::List => schemars::schema_for!(Listing),
    };
    output::data(&output::to_indented_json(&schema)?)?;
    Ok(Exit::Done)
}
