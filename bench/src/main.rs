//! `haltkick`: experiments with locks on overcommitted virtual CPUs.

mod analysis;
mod cli;
mod commands;
mod experiment;
mod host;
mod measure;
mod record;
mod results;
mod settings;
mod show;
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
