//! `haltkick`: experiments with locks on overcommitted virtual CPUs.

mod attempts;
mod bench;
mod cli;
mod compare;
mod consistency;
mod cpulist;
mod csv;
mod deschedule;
mod directory;
mod disasm;
mod doctor;
mod duration;
mod exit;
mod experiment;
mod facts;
mod failure;
mod findings;
mod guest_image;
mod holm;
mod host;
mod interrupt;
mod launch;
mod legend;
mod likeness;
mod linux;
mod list;
mod manifest;
mod measure;
mod memory_size;
mod merge;
mod nearest;
mod noise;
mod origins;
mod output;
mod plan;
mod plot;
mod print;
mod probe;
mod profile;
mod progress;
mod quantity;
mod rate;
mod record;
mod report;
mod reproduce;
mod results;
mod run;
mod schema;
mod session;
mod settings;
mod several;
mod single;
mod statistics;
mod summary;
mod svg;
#[cfg(test)]
mod synthetic;
mod table;
mod text;
mod timestamp;
mod trace;
mod trust;

use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Command};
use exit::{Exit, Result};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let exit = dispatch(cli.command).unwrap_or_else(|failure| {
        output::talk(&format!("haltkick: {failure}"));
        failure.exit
    });
    ExitCode::from(exit as u8)
}

fn dispatch(command: Command) -> Result<Exit> {
    match command {
        Command::Run(args) => launch::run(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::Report(args) => results::again(&args),
        Command::Merge(args) => results::merge(&args),
        Command::Reproduce(args) => reproduce::reproduce(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::List(args) => list::list(&args),
        Command::Disasm(args) => disasm::disasm(&args),
        Command::Schema(args) => schema::print(args.format),
        Command::Completions { shell } => schema::completions(shell),
        Command::Man { dir } => schema::man(dir.as_deref()),
    }
}
