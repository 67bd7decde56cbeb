//! The settings as flags of the command line.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser as _, ValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

use haltkick_vmm::FILE_PREFIX;

use super::row::Kind;
use super::{Setting, Settings, table};

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        let of_group = |(heading, rows): &(&'static str, &'static [Setting])| {
            let heading = *heading;
            rows.iter()
                .filter(|row| row.qualifies.is_none())
                .map(move |setting| flag(setting).help_heading(heading))
        };
        // A file is a value of the lock like any other name; the flag is for those who look for it.
        let object = Arg::new(OBJECT)
            .long(OBJECT)
            .value_name("FILE")
            .help("The lock in this object file or source, written for the interface include/haltkick.h: the same as `--lock file:FILE`")
            .help_heading("Lock")
            .hide_short_help(true)
            .conflicts_with("lock")
            .value_parser(clap::value_parser!(PathBuf));
        command.args(table::TABLE.iter().flat_map(of_group)).arg(object)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut settings = Self::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        let refuse = |message: String| Error::raw(ErrorKind::ValueValidation, format!("{message}\n"));
        for setting in table::named_rows().filter(|row| !table::boots(row.name)) {
            // Each flag gives one guest of several.
            if let Some(given) = matches.get_many::<String>(setting.name) {
                let given: Vec<&str> = given.map(String::as_str).collect();
                self.set(setting.name, &given.join("; ")).map_err(refuse)?;
            }
        }
        let object =
            matches.get_one::<PathBuf>(OBJECT).map(|file| format!("{FILE_PREFIX}{}", file.display()));
        object.map_or(Ok(()), |lock| self.set("lock", &lock)).map_err(refuse)
    }
}

const OBJECT: &str = "lock-object";

fn flag(setting: &'static Setting) -> Arg {
    let action = if matches!(setting.kind, Kind::Guests) { ArgAction::Append } else { ArgAction::Set };
    let flag = Arg::new(setting.name)
        .long(setting.flag.unwrap_or(setting.name))
        .value_name(setting.unit)
        .help(setting.short_help.map_or_else(|| setting.help_text(), str::to_owned))
        .long_help(setting.help_text())
        .hide_short_help(setting.short_help.is_none())
        .hide_possible_values(true)
        .action(action)
        .value_parser(parser(setting));
    let flag = if setting.flag.is_some() { flag.visible_alias(setting.name) } else { flag };
    match setting.instead_of {
        Some(other) => flag.conflicts_with(other),
        None => flag,
    }
}

fn parser(setting: &'static Setting) -> ValueParser {
    match setting.kind {
        // Completions and complaints list the words.
        Kind::Word(words) if table::behind(setting.name).next().is_none() => {
            PossibleValuesParser::new(words.offered()).try_map(|word| setting.read(&word)).into()
        }
        _ => ValueParser::new(|text: &str| setting.read(text)),
    }
}
