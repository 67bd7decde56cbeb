//! `haltkick schema`: the JSON Schema of each file format. `haltkick completions` and `haltkick man`: what shells and manuals say of the
//! command line.

use std::fs;
use std::path::Path;

use clap::CommandFactory as _;

use crate::cli::{Cli, SchemaOf};
use crate::experiment;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

pub(crate) fn print(of: SchemaOf) -> Result<Exit> {
    output::data(&output::to_indented_json(&schema(of)?)?)?;
    Ok(Exit::Done)
}

#[cfg(feature = "schema")]
fn schema(of: SchemaOf) -> Result<schemars::Schema> {
    Ok(match of {
        SchemaOf::Experiment => experiment::schema::schema().try_into().expect("it is an object"),
        SchemaOf::Run => schemars::schema_for!(crate::record::Record),
        SchemaOf::Failure => schemars::schema_for!(crate::record::FailureRecord),
        SchemaOf::Manifest => schemars::schema_for!(crate::results::manifest::Manifest),
        SchemaOf::Summary => schemars::schema_for!(crate::analysis::summary::Summary),
        SchemaOf::Comparison => schemars::schema_for!(crate::show::table::Compared),
        SchemaOf::Worst => schemars::schema_for!(crate::analysis::worst::Worst),
        SchemaOf::Reproduction => schemars::schema_for!(crate::commands::reproduce::Reproduction),
        SchemaOf::Top => schemars::schema_for!(crate::results::live::View),
        SchemaOf::Doctor => schemars::schema_for!(crate::commands::doctor::Examination),
        SchemaOf::List => schemars::schema_for!(crate::commands::list::Listing),
    })
}

/// The schema of experiment files, which is made from the table of settings. Others are made from types, for a tenth of the build.
#[cfg(not(feature = "schema"))]
fn schema(of: SchemaOf) -> Result<serde_json::Value> {
    if matches!(of, SchemaOf::Experiment) {
        return Ok(experiment::schema::schema());
    }
    Err(Failure::lacking(
        "this build has the schema of experiment files alone; a release has all, as has `cargo build --release --package haltkick \
         --features schema`",
    ))
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "haltkick", &mut script);
    output::data(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

pub(crate) fn man(directory: Option<&Path>) -> Result<Exit> {
    if let Some(directory) = directory {
        let made = fs::create_dir_all(directory);
        made.and_then(|()| clap_mangen::generate_to(Cli::command(), directory)).map_err(|error| {
            Failure::usage(format!("{}: {error}: choose a writable directory", directory.display()))
        })?;
        return Ok(Exit::Done);
    }
    let mut page = Vec::new();
    let made = clap_mangen::Man::new(Cli::command()).render(&mut page);
    made.map_err(|error| Failure::internal(format!("the man page: {error}")))?;
    output::data(&String::from_utf8_lossy(&page))?;
    Ok(Exit::Done)
}
