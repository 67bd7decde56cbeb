//! Reads a user's defaults from variables of the environment, and from a file.

use std::env;
use std::path::{Path, PathBuf};

use super::defaults::{Defaults, UserDefault, variable};
use super::reader::Reader;
use super::source::Source;
use crate::settings::table;
use crate::text::exit::{Failure, Result};

/// The variable that names another file, or with nothing in it none.
const FILE: &str = "HALTKICK_DEFAULTS";

/// Defaults of the user who runs this.
pub(crate) fn of_user() -> Result<Defaults> {
    let mut each = of_environment()?;
    if let Some(path) = file()? {
        each.extend(of_file(&path)?);
    }
    Defaults::new(each)
}

fn of_environment() -> Result<Vec<UserDefault>> {
    let mut each = Vec::new();
    for setting in table::all() {
        for name in std::iter::once(setting.name).chain(setting.flag) {
            let variable = variable(name);
            let value = match env::var(&variable) {
                Ok(value) if !value.is_empty() => value,
                Ok(_) | Err(env::VarError::NotPresent) => continue,
                Err(error) => return Err(Failure::usage(format!("{variable}: {error}"))),
            };
            refuse_guests(setting.name).map_err(|error| Failure::usage(format!("{variable}: {error}")))?;
            each.push(UserDefault { key: setting.name.into(), value, origin: variable });
        }
    }
    Ok(each)
}

/// Several guests belong to what is measured.
fn refuse_guests(key: &str) -> std::result::Result<(), &'static str> {
    if key == "vm" || key == "guests" {
        Err("several guests are no default: give them to a command or in an experiment")
    } else {
        Ok(())
    }
}

/// The file, if there is one.
fn file() -> Result<Option<PathBuf>> {
    if let Some(named) = env::var_os(FILE) {
        return Ok((!named.is_empty()).then(|| named.into()));
    }
    let path = |base: PathBuf| base.join("haltkick/defaults.toml");
    // As the XDG Base Directory Specification has it: a relative path is as good as none.
    let config = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|base| base.is_absolute());
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
    Ok(config.or_else(home).map(path).filter(|path| path.exists()))
}

fn of_file(path: &Path) -> Result<Vec<UserDefault>> {
    let source = Source::read(path, "make it readable")?;
    let tree = source.tree()?;
    let top = Reader::new(&source, tree.get_ref(), tree.span());
    top.format()?;
    top.finish(&["format", "settings"])?;
    let Some(mut table) = top.table("settings")? else { return Ok(vec![]) };
    table.patch()?;
    let each = table.entries().into_iter().map(|(key, at, node)| {
        let setting = table::named(key).map_err(|error| source.complain(Some(&at), error))?;
        refuse_guests(setting.name).map_err(|error| source.complain(Some(&at), error))?;
        let (line, _) = source.line_and_column(&at);
        let origin = format!("{}, line {line}", source.origin);
        Ok(UserDefault { key: setting.name.into(), value: table.scalar(node)?, origin })
    });
    each.collect()
}
