//! Words that one can no longer type, and what to do instead. Flags that a command has not, and where they are: in another command, or as
//! a setting of its own.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _, Error};

use haltkick_vmm::{ARMS, Image};

use super::Cli;
use crate::settings::table;

/// The page for people, whose table has the words in their order, of which a command is the first one, and what to do instead.
const PAGE: &str = include_str!("../../../docs/not-here.md");

/// The rows of the page's table.
fn gone() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "))
}

/// A sentence that names the new way, if `arguments`, which were not understood, ask for something that is gone.
pub(crate) fn instead(arguments: &[String]) -> Option<String> {
    // `--export latex`, `--export latex=FILE` and `--export=latex` are one thing.
    let arguments: Vec<&str> = arguments.iter().flat_map(|it| it.split('=')).collect();
    let command = arguments.iter().find(|argument| !argument.starts_with('-'));
    let asks = |words: &str| {
        let mut rest = arguments.iter();
        let is_command = |word: &str| word.starts_with('-') || command == Some(&word);
        words.split(' ').next().is_some_and(is_command)
            && words.split(' ').all(|word| rest.any(|argument| *argument == word))
    };
    let (words, instead) = gone().find(|(words, _)| asks(words))?;
    Some(format!("`{words}` is gone: {instead}"))
}

/// A sentence about a variable of the environment, if `name` once was the default of a setting. Ignored silently it would change figures.
pub(crate) fn variable(name: &str) -> Option<String> {
    let key = name.strip_prefix("HALTKICK_")?.to_lowercase().replace('_', "-");
    let is_gone = key == "defaults" || table::all().any(|it| it.name == key && !table::boots(it.name));
    is_gone.then(|| format!("{name} is gone: write an experiment file, and unset {name}"))
}

/// A sentence that says where the flag is that a command does not know.
pub(crate) fn elsewhere(error: &Error, arguments: &[String]) -> Option<String> {
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return None;
    };
    let cli = Cli::command();
    let command = arguments.iter().find_map(|word| cli.find_subcommand(word))?;
    let this = command.get_name();
    if has(command, "lock") && is_lock(flag) {
        return Some(format!("`haltkick {this}` takes a lock as a flag: --lock {flag}"));
    }
    let name = flag.strip_prefix("--")?;
    if name == "set" {
        let mut given = arguments.iter().skip_while(|word| !word.starts_with("--set"));
        let first = given.next()?;
        let pair = first.strip_prefix("--set=").or_else(|| given.next().map(String::as_str))?;
        let (key, value) = pair.split_once('=')?;
        return has(command, key)
            .then(|| format!("`haltkick {this}` takes settings as flags: --{key} {value}"));
    }
    if has(command, "set") && table::find(name).is_some() {
        return Some(format!("`haltkick {this}` takes settings of runs as --set {name}=VALUE"));
    }
    let others = cli.get_subcommands().filter(|other| has(other, name));
    let others: Vec<String> = others.map(|other| format!("`haltkick {}`", other.get_name())).collect();
    (!others.is_empty()).then(|| format!("`haltkick {this}` has no --{name}: {} has", others.join(" or ")))
}

/// Whether this is the name of a lock, perhaps with its form or its layout.
fn is_lock(word: &str) -> bool {
    let is_it = |name: &str| name.split('/').next() == word.split(['+', '/']).next();
    Image::embedded().locks.iter().any(|lock| is_it(&lock.name)) || ARMS.iter().any(|arm| is_it(arm.name))
}

fn has(command: &Command, flag: &str) -> bool {
    let mut longs =
        command.get_arguments().flat_map(|it| it.get_long_and_visible_aliases().unwrap_or_default());
    longs.any(|long| long == flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_page_is_understood() {
        assert_eq!(PAGE.lines().filter(|line| line.starts_with("| `")).count(), gone().count());
    }
}
