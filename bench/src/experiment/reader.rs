//! Reading tables of an experiment file, so that every complaint knows line and column.

use std::fmt;

use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::contents::{Arm, Axis, Patch, PointValues, Quick, check_cells};
use super::outline::{OutlineComparison, OutlineControl};
use super::robust::POINTS;
use super::source::{At, FORMAT, Source};
use crate::experiment::measure::Measure;
use crate::settings::{Vm, table};
use crate::text::exit::{Failure, Result};
use crate::text::nearest;

/// One table of the file, with complaints that know where it is. It has no keys but those of its schema.
pub(super) struct Reader<'a> {
    pub(super) source: &'a Source,
    table: &'a DeTable<'a>,
    at: At,
    schema: &'a Json,
}

type Node<'a> = Spanned<DeValue<'a>>;

impl<'a> Reader<'a> {
    /// The whole file, if its format is the one that is read here.
    pub(super) fn top(source: &'a Source, tree: &'a Spanned<DeTable<'a>>, schema: &'a Json) -> Result<Self> {
        let top = Self { source, table: tree.get_ref(), at: tree.span(), schema };
        top.format()?;
        top.with_known_keys()
    }

    fn with_known_keys(self) -> Result<Self> {
        if let Some(keys) = self.schema["properties"].as_object() {
            self.finish(&keys.keys().map(String::as_str).collect::<Vec<_>>())?;
        }
        Ok(self)
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Node<'a>> {
        self.table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    /// Keys and values in the order of the file.
    pub(super) fn entries(&self) -> Vec<(&'a str, At, &'a Node<'a>)> {
        let mut entries: Vec<_> =
            self.table.iter().map(|(key, value)| (key.get_ref().as_ref(), key.span(), value)).collect();
        entries.sort_by_key(|(_, at, _)| at.start);
        entries
    }

    pub(super) fn complain(&self, at: &At, message: impl fmt::Display) -> Failure {
        self.source.complain(Some(at), message)
    }

    pub(super) fn complain_here(&self, message: impl fmt::Display) -> Failure {
        self.complain(&self.at, message)
    }

    fn finish(&self, known: &[&str]) -> Result<()> {
        match self.entries().into_iter().find(|(key, ..)| !known.contains(key)) {
            None => Ok(()),
            Some((key, at, _)) => Err(self.complain(&at, table::unknown("key", key, known))),
        }
    }

    fn format(&self) -> Result<()> {
        let Some(node) = self.get("format") else {
            return Err(self
                .source
                .complain(None, format!("no 'format': begin the file with format = {FORMAT}")));
        };
        match scalar(node.get_ref()).and_then(|text| text.parse::<i64>().ok()) {
            Some(FORMAT) => Ok(()),
            _ => Err(self
                .complain(&node.span(), format!("another format than {FORMAT}, the one this version reads"))),
        }
    }

    /// The value of `key` as `read` understands it; one that it does not must be `what`.
    fn read<T>(
        &self,
        key: &str,
        what: &str,
        read: impl FnOnce(&'a DeValue<'a>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(node) = self.get(key) else { return Ok(None) };
        let wrong = || self.complain(&node.span(), format!("'{key}' must be {what}"));
        read(node.get_ref()).map(Some).ok_or_else(wrong)
    }

    /// The place of the value of `key`; without one that of the table.
    fn at_of(&self, key: &str) -> At {
        self.get(key).map_or_else(|| self.at.clone(), Spanned::span)
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<String>> {
        let text = |value: &DeValue<'_>| Some(value.as_str()?.to_owned()).filter(|text| !text.is_empty());
        self.read(key, "a text in quotes", text)
    }

    pub(super) fn required_text(&self, key: &str) -> Result<String> {
        self.text(key)?.ok_or_else(|| self.complain(&self.at, format!("'{key}' is missing here")))
    }

    fn names(&self, key: &str) -> Result<Option<Vec<(String, At)>>> {
        let name = |node: &Node<'_>| Some((node.get_ref().as_str()?.to_owned(), node.span()));
        self.read(key, "a list of names", |value| {
            value.as_array().filter(|names| !names.is_empty())?.iter().map(name).collect()
        })
    }

    pub(super) fn parsed<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> std::result::Result<T, String>,
    ) -> Result<Option<T>> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        parse(&text).map(Some).map_err(|error| self.complain(&self.at_of(key), format!("{key}: {error}")))
    }

    /// A whole number from the range that the schema tells.
    pub(super) fn number(&self, key: &str) -> Result<Option<u32>> {
        let bound = |name: &str| self.schema["properties"][key][name].as_u64();
        let range = bound("minimum").unwrap_or(0)..=bound("maximum").unwrap_or(u64::from(u32::MAX));
        let what = format!("a whole number from {} to {}", range.start(), range.end());
        self.read(key, &what, |value| {
            let number = value.as_integer().and_then(|_| scalar(value)?.parse::<u64>().ok());
            u32::try_from(number.filter(|number| range.contains(number))?).ok()
        })
    }

    /// A figure above 0, or a list of them.
    pub(super) fn figures(&self, key: &str) -> Result<Option<Vec<f64>>> {
        let figure =
            |value: &DeValue<'_>| scalar(value)?.parse().ok().filter(|it: &f64| *it > 0.0 && it.is_finite());
        self.read(key, "a number above 0", |value| match value {
            DeValue::String(_) => None,
            DeValue::Array(each) if each.is_empty() => None,
            DeValue::Array(each) => each.iter().map(|each| figure(each.get_ref())).collect(),
            one => figure(one).map(|figure| vec![figure]),
        })
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool> {
        Ok(self.read(key, "true or false", |value| value.as_bool())?.unwrap_or(false))
    }

    pub(super) fn table(&self, key: &str) -> Result<Option<Reader<'a>>> {
        let table = self.read(key, &format!("a table: write [{key}]"), |value| value.as_table())?;
        let schema = &self.schema["properties"][key];
        let below = |table| Reader { table, at: self.at_of(key), schema, ..*self }.with_known_keys();
        table.map(below).transpose()
    }

    pub(super) fn tables(&self, key: &str) -> Result<Vec<Reader<'a>>> {
        let tables = |value: &'a DeValue<'a>| -> Option<Vec<_>> {
            let table = |node: &'a Node<'a>| Some((node.get_ref().as_table()?, node.span()));
            value.as_array()?.iter().map(table).collect()
        };
        let what = format!("a list of tables: write [[{key}]]");
        let tables = self.read(key, &what, tables)?.unwrap_or_default();
        check_cells(tables.len()).map_err(|error| self.complain(&self.at_of(key), error))?;
        let schema = &self.schema["properties"][key]["items"];
        let below = |(table, at)| Reader { table, at, schema, ..*self }.with_known_keys();
        tables.into_iter().map(below).collect()
    }

    /// All keys that are settings.
    pub(super) fn settings(&self) -> Result<Patch> {
        let mut patch = Patch::default();
        for (key, key_at, node) in self.entries() {
            let Some(setting) = table::find(key) else { continue };
            let value = self.scalar(node)?;
            if let Some(other) = setting.instead_of.filter(|other| patch.place(other).is_some()) {
                return Err(self.complain(&key_at, stands_against(key, other)));
            }
            patch
                .set(key, &value, Some(key_at))
                .map_err(|error| self.complain(&node.span(), format!("{key}: {error}")))?;
        }
        Ok(patch)
    }

    pub(super) fn scalar(&self, node: &Node<'_>) -> Result<String> {
        scalar(node.get_ref())
            .ok_or_else(|| self.complain(&node.span(), "a number, or a text in quotes, is expected here"))
    }

    pub(super) fn vm(&self) -> Result<Vm> {
        let mut vm = Vm::default();
        for (key, key_at, node) in self.entries() {
            let value = self.scalar(node)?;
            if value.contains([',', ';']) {
                return Err(self.complain(&node.span(), "a comma or semicolon, which no name or value has"));
            }
            vm.set(key, &value).map_err(|error| self.complain(&key_at, error))?;
        }
        Ok(vm)
    }

    pub(super) fn axes(&self) -> Result<Vec<Axis>> {
        self.entries().into_iter().map(|(key, at, node)| self.axis(key, &at, node)).collect()
    }

    pub(super) fn axis(&self, key: &str, at: &At, node: &'a Node<'a>) -> Result<Axis> {
        let values = node.get_ref().as_array().filter(|values| !values.is_empty());
        let values =
            values.ok_or_else(|| self.complain(at, format!("'{key}' must be a list, such as [1, 2]")))?;
        check_cells(values.len()).map_err(|error| self.complain(at, error))?;
        let mut axis = Axis { key: key.into(), values: vec![] };
        for node in values {
            let value = self.scalar(node)?;
            let read = Patch::default().set(key, &value, None);
            read.map_err(|error| self.complain(&node.span(), error))?;
            if axis.values.iter().any(|(known, _)| *known == value) {
                return Err(self.complain(&node.span(), format!("{value} stands in the list twice")));
            }
            axis.values.push((value, Some(node.span())));
        }
        Ok(axis)
    }

    pub(super) fn point(&self) -> Result<PointValues> {
        self.settings()?;
        let values = self.entries().into_iter().map(|(key, _, node)| Ok((key.into(), self.scalar(node)?)));
        Ok(PointValues(values.collect::<Result<_>>()?, self.at.clone()))
    }

    pub(super) fn arm(&self) -> Result<Arm> {
        let name = self.required_text("name")?;
        let mut patch = self.settings()?;
        patch.places.insert("name".into(), self.get("name").map(Spanned::span));
        Ok(Arm { name, patch, only: vec![] })
    }

    /// Reads the values of axes below `key`; empty without it.
    pub(super) fn point_of(&self, key: &str, axes: &[Axis]) -> Result<Vec<(String, String)>> {
        let Some(table) = self.table(key)? else { return Ok(vec![]) };
        let known: Vec<&str> = axes.iter().map(|axis| axis.key.as_str()).collect();
        table.finish(&known)?;
        table.values_of(axes)
    }

    pub(super) fn comparison(&self, arms: &[&str]) -> Result<OutlineComparison> {
        Ok(OutlineComparison {
            of: self.measure()?,
            name: self.required_text("name")?,
            arm: self.reference("arm", arms)?,
            baseline: self.reference("baseline", arms)?,
        })
    }

    pub(super) fn measure(&self) -> Result<Measure> {
        let Some(word) = self.text("of")? else { return Ok(Measure::default()) };
        Measure::try_from(word).map_err(|error| self.complain(&self.at_of("of"), error))
    }

    pub(super) fn reference(&self, key: &str, arms: &[&str]) -> Result<String> {
        let name = self.required_text(key)?;
        if arms.contains(&name.as_str()) {
            return Ok(name);
        }
        Err(self.complain(&self.at_of(key), nearest::unknown("arm", &name, arms)))
    }

    pub(super) fn control(&self, arms: &[&str], axes: &[Axis]) -> Result<OutlineControl> {
        let axis_keys = axes.iter().map(|axis| axis.key.as_str());
        self.finish(&std::iter::once("arm").chain(axis_keys).collect::<Vec<_>>())?;
        let setting = self.values_of(axes)?.into_iter().collect();
        Ok(OutlineControl { arm: self.reference("arm", arms)?, setting })
    }

    /// The values that this table has for keys of `axes`; each must be one that its axis takes.
    fn values_of(&self, axes: &[Axis]) -> Result<Vec<(String, String)>> {
        let mut setting = vec![];
        for axis in axes {
            let Some(node) = self.get(&axis.key) else { continue };
            let value = self.scalar(node)?;
            if !axis.values.iter().any(|(known, _)| *known == value) {
                let message = format!(
                    "{} = {value} is in no [grid] or [[point]], so that there is no such cell",
                    axis.key
                );
                return Err(self.complain(&node.span(), message));
            }
            setting.push((axis.key.clone(), value));
        }
        Ok(setting)
    }

    pub(super) fn robust(&self) -> Result<(u32, At)> {
        Ok((self.number("points")?.unwrap_or(POINTS), self.at.clone()))
    }

    pub(super) fn quick(&self) -> Result<Quick> {
        Ok(Quick {
            blocks: self.number("blocks")?,
            axes: self.table("grid")?.map(|table| table.axes()).transpose()?.unwrap_or_default(),
            arms: self.names("arms")?,
            patch: self.settings()?,
        })
    }
}

/// Two settings say one thing.
pub(super) fn stands_against(key: &str, other: &str) -> String {
    let thing = if ["vm", "guests"].contains(&key) { "guests" } else { "vCPUs" };
    format!("{key} stands against {other}: both say how many {thing} there are")
}

/// The text of a number, of what is true or false, or of a text in quotes.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(integer) => {
            let digits = integer.as_str().replace('_', "");
            match integer.radix() {
                10 => Some(digits),
                radix => i128::from_str_radix(&digits, radix).ok().map(|number| number.to_string()),
            }
        }
        DeValue::Float(float) => Some(float.as_str().replace('_', "")),
        DeValue::Boolean(flag) => Some(flag.to_string()),
        _ => None,
    }
}
