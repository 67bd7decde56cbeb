//! `haltkick schema`: the JSON Schema of each file format.

#[cfg(feature = "schema")]
use {
    crate::analysis::summary::Summary, crate::analysis::worst::Worst, crate::commands::doctor::Examination,
    crate::commands::list::Listing, crate::commands::reproduce::Reproduction, crate::record::Record,
    crate::record::failure::FailureRecord, crate::results::live::View, crate::results::manifest::Manifest,
    crate::show::table::Compared,
};

use crate::cli::SchemaOf;
use crate::experiment;
use crate::text::exit::{Exit, Result};
use crate::text::output;

pub(crate) fn print(of: SchemaOf) -> Result<Exit> {
    output::data(&output::to_indented_json(&schema(of)?)?)?;
    Ok(Exit::Done)
}

#[cfg(feature = "schema")]
fn schema(of: SchemaOf) -> Result<schemars::Schema> {
    Ok(match of {
        SchemaOf::Experiment => experiment::schema::schema().try_into().expect("it is an object"),
        SchemaOf::Run => schemars::schema_for!(Record),
        SchemaOf::Failure => schemars::schema_for!(FailureRecord),
        SchemaOf::Manifest => schemars::schema_for!(Manifest),
        SchemaOf::Summary => schemars::schema_for!(Summary),
        SchemaOf::Comparison => schemars::schema_for!(Compared),
        SchemaOf::Worst => schemars::schema_for!(Worst),
        SchemaOf::Reproduction => schemars::schema_for!(Reproduction),
        SchemaOf::Top => schemars::schema_for!(View),
        SchemaOf::Doctor => schemars::schema_for!(Examination),
        SchemaOf::List => schemars::schema_for!(Listing),
    })
}

/// The schema of experiment files, which is made from the table of settings. Others are made from types, for a tenth of the build.
#[cfg(not(feature = "schema"))]
fn schema(of: SchemaOf) -> Result<serde_json::Value> {
    if matches!(of, SchemaOf::Experiment) {
        return Ok(experiment::schema::schema());
    }
    Err(crate::text::exit::Failure::lacking(
        "this build has the schema of experiment files alone; a release has all, as has `cargo build --release --package haltkick \
         --features schema`",
    ))
}
