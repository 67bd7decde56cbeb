//! `haltkick`: experiments with locks on overcommitted virtual CPUs.

mod attempts;
mod cli;
mod commands;
mod consistency;
mod csv;
mod directory;
mod experiment;
mod findings;
mod holm;
mod host;
mod legend;
mod likeness;
mod manifest;
mod merge;
mod plot;
mod print;
mod profile;
mod progress;
mod rate;
mod record;
mod report;
mod run;
mod session;
mod settings;
mod statistics;
mod summary;
mod svg;
#[cfg(test)]
mod synthetic;
mod table;
mod text;
mod trust;

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
