//! `haltkick`: experiments with locks on overcommitted virtual CPUs.

mod analysis;
mod cli;
mod commands;
mod csv;
mod experiment;
mod host;
mod legend;
mod plot;
mod print;
mod profile;
mod progress;
mod record;
mod report;
mod results;
mod run;
mod session;
mod settings;
mod svg;
#[cfg(test)]
mod synthetic;
mod table;
mod text;

use std::process::ExitCode;

use clap::Parser as _;

use cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let exit = commands::dispatch(cli.command).unwrap_or_else(|failure| {
        text::output::talk(&format!("haltkick: {failure}"));
        failure.exit
    });
    ExitCode::from(exit as u8)
}
