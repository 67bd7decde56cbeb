//! The commands of `haltkick`: a file for each.

mod answer;
mod bench;
mod bisect;
mod check;
mod compare;
mod doctor;
mod dry_run;
pub(crate) mod first_process;
mod guest_image;
pub(crate) mod interrupt;
mod judge;
mod list;
mod report;
mod reproduce;
mod run;
mod schema;
mod top;
mod worst;

use crate::cli::Command;
use crate::text::exit::{Exit, Result};

pub(crate) fn dispatch(command: Command) -> Result<Exit> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Sweep(args) => bench::sweep(&args),
        Command::Worst(args) => worst::worst(&args),
        Command::Answer(args) => answer::answer(&args),
        Command::Check(args) => check::check(&args),
        Command::Judge(args) => judge::judge(&args),
        Command::Bisect(args) => bisect::bisect(&args),
        Command::Top(args) => top::top(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::Report(args) => report::again(&args),
        Command::Merge(args) => report::merge(&args),
        Command::Reproduce(args) => reproduce::reproduce(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::List(args) => list::list(&args),
        Command::Schema { format } => schema::print(format),
        Command::Completions { shell } => schema::completions(shell),
        Command::Man { dir } => schema::man(dir.as_deref()),
    }
}
