//! `haltkick completions` and `haltkick man`: what shells and manuals say of the command line.

use std::fs;
use std::path::Path;

use clap::CommandFactory as _;

use crate::cli::Cli;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

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
