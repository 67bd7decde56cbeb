//! `haltkick schema`: the JSON Schema of each file format, and `haltkick completions`, `haltkick man`.

use std::fs;
use std::path::Path;

use clap::CommandFactory as _;

use crate::analysis::summary::Summary;
use crate::cli::{Cli, SchemaOf};
use crate::commands::compare::Compared;
use crate::commands::doctor::Examination;
use crate::commands::reproduce::Reproduction;
use crate::commands::run::linux::LinuxRecord;
use crate::record::Record;
use crate::record::failure::FailureRecord;
use crate::results::manifest::Manifest;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

pub(crate) fn print(of: SchemaOf) -> Result<Exit> {
    let schema = match of {
        SchemaOf::Run => schemars::schema_for!(Record),
        SchemaOf::Failure => schemars::schema_for!(FailureRecord),
        SchemaOf::Linux => schemars::schema_for!(LinuxRecord),
        SchemaOf::Manifest => schemars::schema_for!(Manifest),
        SchemaOf::Summary => schemars::schema_for!(Summary),
        SchemaOf::Comparison => schemars::schema_for!(Compared),
        SchemaOf::Reproduction => schemars::schema_for!(Reproduction),
        SchemaOf::Doctor => schemars::schema_for!(Examination),
    };
    let json = serde_json::to_string_pretty(&schema)
        .map_err(|error| Failure::internal(format!("the schema as JSON: {error}")))?;
    output::data(&format!("{json}\n"))?;
    Ok(Exit::Done)
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "haltkick", &mut script);
    output::data(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

pub(crate) fn man(directory: Option<&Path>) -> Result<Exit> {
    match directory {
        None => output::data(&String::from_utf8_lossy(&page(Cli::command())?))?,
        Some(directory) => write_pages(directory)?,
    }
    Ok(Exit::Done)
}

fn write_pages(directory: &Path) -> Result<()> {
    let failed =
        |error| Failure::usage(format!("{}: {error}: choose a writable directory", directory.display()));
    fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), directory).map_err(failed)?;
    Ok(())
}

fn page(command: clap::Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(|error| Failure::internal(format!("the man page: {error}")))?;
    Ok(page)
}
