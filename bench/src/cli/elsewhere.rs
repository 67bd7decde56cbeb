//! Flags that a command has not, and where they are: in another command, or as a setting of its own.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _, Error};

use super::Cli;
use crate::settings::table;

/// A sentence that says where the flag is that a command does not know.
pub(crate) fn instead(error: &Error, arguments: &[String]) -> Option<String> {
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return None;
    };
    let name = flag.strip_prefix("--")?;
    let cli = Cli::command();
    let command = arguments.iter().find_map(|word| cli.find_subcommand(word))?;
    let this = command.get_name();
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

fn has(command: &Command, flag: &str) -> bool {
    let mut longs =
        command.get_arguments().flat_map(|it| it.get_long_and_visible_aliases().unwrap_or_default());
    longs.any(|long| long == flag)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn a_flag_of_another_command_is_told_where_it_is() {
        for (line, told) in [
            (
                "sweep --vary ratio=1,2 --set window=1ms",
                Some("`haltkick sweep` takes settings as flags: --window 1ms"),
            ),
            ("run --set=hold=2us", Some("`haltkick run` takes settings as flags: --hold 2us")),
            (
                "bench overcommit --ratio 4",
                Some("`haltkick bench` takes settings of runs as --set ratio=VALUE"),
            ),
            ("run --vary ratio=1,2", Some("`haltkick run` has no --vary: `haltkick sweep` has")),
            ("run --set nothing=1", None),
            ("run --nothing", None),
            ("run", None),
        ] {
            let words: Vec<String> = line.split(' ').map(String::from).collect();
            let error =
                Cli::try_parse_from(std::iter::once("haltkick".to_owned()).chain(words.clone())).err();
            let instead = error.and_then(|error| instead(&error, &words));
            assert_eq!(instead.as_deref(), told, "{line}");
        }
    }
}
