//! A setting with the values that it is to have, one after the other, as `--vary` gives them.

use std::path::Path;
use std::str::FromStr;

use haltkick_vmm::FILE_PREFIX;

use super::contents::{Patch, check_cells};
use super::keys;
use crate::settings::{Kind, table};

/// A setting and its values: `lock=ticket,mcs`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Vary {
    /// Its name in files.
    pub(super) key: &'static str,
    pub(super) values: Vec<String>,
}

impl Vary {
    pub(crate) fn count(&self) -> usize {
        self.values.len()
    }

    /// The first value alone.
    pub(crate) fn first(&self) -> Self {
        Self { key: self.key, values: self.values[..1].to_vec() }
    }

    /// Whether the last value is a file that a guest is made of: a lock object, or what boots.
    pub(crate) fn ends_in_file(&self) -> bool {
        let is_object = self.values.last().is_some_and(|value| value.starts_with(FILE_PREFIX));
        keys::FILES.contains(&self.key) || is_object
    }
}

impl FromStr for Vary {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (key, values) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| format!("'{text}' is no KEY=VALUE,..., such as lock=ticket,mcs"))?;
        let key = named(key)?;
        let is_of_cmdline = key == keys::CMDLINE;
        if is_of_cmdline && values.contains(',') && !values.contains(';') {
            return Err(format!(
                "{key}: a semicolon separates values, since words of a command line may have commas in them: {values:?} is one"
            ));
        }
        let separator = if is_of_cmdline || values.contains(';') { ';' } else { ',' };
        let values: Vec<String> = values
            .split(separator)
            .map(|value| value.trim().to_owned())
            // No words are a command line, too.
            .filter(|value| is_of_cmdline || !value.is_empty())
            .collect();
        check_cells(values.len())?;
        if let Some(path) = path_with_comma(&values).filter(|_| separator == ',') {
            return Err(format!(
                "{path} has a comma in its name, which separates values: write semicolons between all values, as in \
                 '{key}={FILE_PREFIX}a,b.o;{FILE_PREFIX}c.o'"
            ));
        }
        for (i, value) in values.iter().enumerate() {
            read(key, value, separator)?;
            if values[..i].contains(value) {
                return Err(format!("{value} stands there twice"));
            }
        }
        if values.is_empty() { Err(format!("{key} has no values")) } else { Ok(Self { key, values }) }
    }
}

/// A path that commas take apart: there is such a file, and none by the name of its first part.
fn path_with_comma(values: &[String]) -> Option<String> {
    let whole = |from: usize| (from + 2..=values.len()).map(move |to| values[from..to].join(","));
    let bare = |value: &str| value.strip_prefix(FILE_PREFIX).unwrap_or(value).to_owned();
    let is_apart = |from: &usize| !Path::new(&bare(&values[*from])).is_file();
    let mut paths = (0..values.len()).filter(is_apart).flat_map(whole).map(|path| bare(&path));
    paths.find(|path| Path::new(path).is_file())
}

/// A setting that can be varied, or what boots a kernel, by its name.
fn named(key: &str) -> std::result::Result<&'static str, String> {
    if let Some(key) = keys::BOOT.iter().find(|known| **known == key) {
        return Ok(key);
    }
    let known = [&table::names(), keys::BOOT].concat();
    let setting = table::find(key).ok_or_else(|| table::unknown("setting", key, &known))?;
    match setting.kind {
        Kind::Guests => {
            Err("several guests are varied in an experiment file: see docs/experiment-files.md".into())
        }
        _ => Ok(setting.name),
    }
}

/// Whether `value` can be one of `key`.
fn read(key: &str, value: &str, separator: char) -> std::result::Result<(), String> {
    let Some(setting) = table::find(key) else { return Patch::default().set(key, value, None) };
    let checked = setting.read(value).and_then(|value| setting.check(&value));
    let has_commas = matches!(setting.kind, Kind::Deschedule | Kind::Cpus);
    checked.map_err(|error| match separator {
        ',' if has_commas => format!("{error} (a semicolon separates values that have commas in them)"),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::Scratch;

    #[test]
    fn values_that_cannot_be_are_refused_with_the_reason() {
        for (text, expected) in [
            ("lock", "'lock' is no KEY=VALUE,..."),
            ("lokc=tas", "unknown setting 'lokc': did you mean 'lock'?"),
            ("ratio=1,1", "1 stands there twice"),
            ("ratio=,", "ratio has no values"),
            ("slice=1", "'1' has no unit"),
            ("slice=1us", "1us is out of range"),
            ("vm=lock=tas", "several guests are varied in an experiment file"),
            ("kernle=a", "unknown setting 'kernle': did you mean 'kernel'?"),
            ("nopvspin=yes", "'nopvspin' must be true or false"),
            ("cmdline=a,b", "cmdline: a semicolon separates values"),
            ("kernel=,", "kernel has no values"),
        ] {
            let error = text.parse::<Vary>().unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_file_with_a_comma_is_told_of_and_read_behind_semicolons() {
        let scratch = Scratch::new("vary-commas");
        let file = |name: &str| {
            scratch.put(name, "");
            scratch.path().join(name).display().to_string()
        };
        let [one, two, plain] = ["a,b.o", "c,d,e", "f.o"].map(file);
        let read = |text: String| text.parse::<Vary>();
        for (key, path, text) in [
            ("lock", &one, format!("lock=file:{one},file:{plain}")),
            ("lock", &one, format!("lock=mcs,file:{plain},file:{one}")),
            ("kernel", &two, format!("kernel={plain},{two}")),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(&format!("{path} has a comma in its name")), "{key}: {error}");
            assert!(error.contains("semicolons between all values"), "{error}");
        }
        let both = read(format!("lock=file:{one};file:{plain}")).unwrap();
        assert_eq!(both.values, [format!("file:{one}"), format!("file:{plain}")]);
        assert!(both.ends_in_file() && !read("lock=file:a.o,mcs".into()).unwrap().ends_in_file());
        assert_eq!(both.first().values, [format!("file:{one}")]);
    }
}
