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
