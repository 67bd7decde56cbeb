//! Reading settings: a value by its row of the table, and guests, whose values are read in turn; and what schemas say of values.

use std::fmt::Display;
use std::str::FromStr;

use haltkick_vmm::Span;
use serde_json::{Map, Value as Json, json};

use super::choices::{self, Ratio};
use super::pause_loops::PauseLoops;
use super::row::{Bounds, Kind, Setting};
use super::{Value, Vm, in_range, table};
use crate::host::cpu_choice::CpuChoice;
use crate::text::quantity::MemorySize;

impl Setting {
    /// The parts of a value between slashes, each with its row: the first is this one's, others are of rows behind it.
    pub(super) fn parts<'a>(&'static self, text: &'a str) -> Result<Vec<(&'static Self, &'a str)>, String> {
        if table::behind(self.name).next().is_none() {
            return Ok(vec![(self, text)]);
        }
        let mut pieces = text.split('/').map(str::trim);
        let mut parts = vec![(self, pieces.next().unwrap_or_default())];
        for piece in pieces {
            let is_free = |row: &&Self| parts.iter().all(|(taken, _)| taken.name != row.name);
            let row = table::behind(self.name).filter(is_free).find(|row| row.read_alone(piece).is_ok());
            let wrong = || format!("'{piece}' cannot stand behind the slash: write {}", self.unit);
            parts.push((row.ok_or_else(wrong)?, piece));
        }
        Ok(parts)
    }

    /// Reads a value as it stands in a file, or behind a flag, with what follows it after slashes. Returns it as it would be written.
    pub(crate) fn read(&'static self, text: &str) -> Result<String, String> {
        let each = self.parts(text)?.into_iter().map(|(row, part)| row.read_alone(part));
        Ok(each.collect::<Result<Vec<_>, _>>()?.join("/"))
    }

    /// Returns the error of a value that was read, if a part of it is out of bounds.
    pub(crate) fn check(&'static self, value: &str) -> Result<(), String> {
        self.parts(value)?.into_iter().try_for_each(|(row, part)| match (&row.bounds, Value(part)) {
            (Bounds::Number(least, most), value) if matches!(row.kind, Kind::Ratio) => {
                in_range(value.to(), &(Ratio::whole(*least as u32)..=Ratio::whole(*most as u32)))
            }
            (Bounds::Number(least, most), value) => in_range(value.to(), &(*least..=*most)),
            (Bounds::Time(least, most), value) => in_range(value.to(), &(Span(*least)..=Span(*most))),
            (Bounds::None, _) => Ok(()),
        })
    }

    fn read_alone(&self, text: &str) -> Result<String, String> {
        Ok(match &self.kind {
            Kind::Name | Kind::Words => text.into(),
            Kind::Text if text.is_empty() => return Err("an empty text names nothing".into()),
            Kind::Text => text.into(),
            Kind::Flag if text.parse::<bool>().is_err() => {
                return Err(format!("'{text}' is neither true nor false"));
            }
            Kind::Flag => text.into(),
            Kind::Word(words) => {
                let words = words.offered();
                if !words.iter().any(|word| word.matches(text, false)) {
                    let names: Vec<&str> = words.iter().map(|word| word.get_name()).collect();
                    return Err(format!("'{text}' is not one of {}", names.join(", ")));
                }
                text.into()
            }
            Kind::Number => whole::<u32>(text)?.to_string(),
            Kind::LargeNumber => whole::<u64>(text)?.to_string(),
            Kind::Seed => seed(text)?.to_string(),
            Kind::Time => written::<Span>(text)?,
            Kind::Memory => written::<MemorySize>(text)?,
            Kind::Cpus => written::<CpuChoice>(text)?,
            Kind::Numa => choices::written_numa(choices::numa(text)?),
            Kind::Share => format!("{}%", choices::percent(text)?),
            Kind::Ratio => written::<Ratio>(text)?,
            Kind::Exponent => (f64::from(choices::exponent(text)?) / 100.0).to_string(),
            Kind::Arrivals => choices::arrivals(text)?.to_string(),
            Kind::SpinThreshold => match choices::spin_threshold(text)? {
                (time, 0) => Span(time).to_string(),
                _ => text.into(),
            },
            Kind::PauseLoops => written::<PauseLoops>(text)?,
            Kind::Quota => choices::written_quota(choices::quota(text)?),
            Kind::Fold => choices::written_fold(choices::fold(text)?),
            Kind::Deschedule => {
                choices::deschedule(text)?.map_or("none".into(), |it| choices::written_deschedule(&it))
            }
            Kind::Guests => guests(text)?.iter().map(Vm::to_string).collect::<Vec<_>>().join("; "),
        })
    }
}

/// Every setting, and what boots a kernel if those are `with_boot`, as a key of a file, with its help and what may stand there.
pub(crate) fn schemas(with_boot: bool) -> Map<String, Json> {
    let rows = table::named_rows().filter(|row| with_boot || !table::boots(row.name));
    rows.map(|setting| (setting.name.to_owned(), setting.schema())).collect()
}

impl Setting {
    /// Returns the schema of its value in a file: a text in quotes, or a whole number.
    fn schema(&self) -> Json {
        let mut schema = match &self.kind {
            Kind::Name => text("."),
            Kind::Text | Kind::Words => json!({ "type": "string", "minLength": 1 }),
            Kind::Flag => json!({ "type": "boolean" }),
            Kind::Word(words) => {
                let words = words.offered();
                let names: Vec<&str> = words.iter().flat_map(|word| word.get_name_and_aliases()).collect();
                json!({ "enum": names })
            }
            Kind::Number => self.number(u64::from(u32::MAX)),
            Kind::LargeNumber => self.number(u64::MAX),
            Kind::Seed => self.number((1 << 53) - 1),
            Kind::Time => text(r"^[0-9]*\.?[0-9]+ *(ns|us|µs|ms|s|m|h)$"),
            Kind::Memory => text("^[0-9]+ *(KiB|MiB|GiB|K|M|G)$"),
            Kind::Share => text("^[0-9]{1,3} *%$"),
            Kind::Cpus | Kind::Numa | Kind::Arrivals => json!({ "type": ["string", "integer"] }),
            Kind::Exponent | Kind::Ratio => json!({ "type": ["string", "number"] }),
            Kind::SpinThreshold
            | Kind::PauseLoops
            | Kind::Quota
            | Kind::Fold
            | Kind::Deschedule
            | Kind::Guests => text("."),
        };
        let told = schema.as_object_mut().expect("each is an object");
        told.insert("description".into(), self.help_text().into());
        if table::behind(self.name).next().is_some() {
            let pattern = told.get("pattern").and_then(Json::as_str).unwrap_or(".*$").trim_end_matches('$');
            told.insert("pattern".into(), format!("{pattern}(/.+)?$").into());
        }
        schema
    }

    /// A whole number, in quotes or not, of at most `most` unless the bounds say less.
    fn number(&self, most: u64) -> Json {
        let (least, most) = match self.bounds {
            Bounds::Number(least, bound) => (least, bound),
            Bounds::None | Bounds::Time(..) => (0, most),
        };
        json!({ "type": ["integer", "string"], "minimum": least, "maximum": most, "pattern": "^[0-9]+$" })
    }
}

fn text(pattern: &str) -> Json {
    json!({ "type": "string", "pattern": pattern })
}

/// A text as what is read from it would be written.
fn written<T: FromStr<Err = String> + Display>(text: &str) -> Result<String, String> {
    Ok(text.parse::<T>()?.to_string())
}

impl Vm {
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        if key == "name" {
            self.name = Some(value.into());
        } else {
            let row = table::find(key).ok_or_else(|| table::unknown("setting of a guest", key, &names()))?;
            let of_run =
                |what: String| Err(format!("{what} belongs to the run: give it as --{key}, for all guests"));
            if !row.of_guest {
                return of_run(key.to_owned());
            }
            if row.parts(value)?.iter().any(|(part, _)| part.is_of_run()) {
                return of_run(row.read(value)?);
            }
            self.settings.set(key, value)?;
        }
        Ok(())
    }
}

impl FromStr for Vm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut vm = Self::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| {
                format!("'{pair}' is no KEY=VALUE, such as lock=ticket; no file here has a comma in its name")
            })?;
            vm.set(key.trim(), value.trim())?;
        }
        Ok(vm)
    }
}

fn names() -> Vec<&'static str> {
    let of_guest = table::named_rows().filter(|setting| setting.of_guest).map(|setting| setting.name);
    std::iter::once("name").chain(of_guest).collect()
}

/// Several, as one value of an experiment file: separated by semicolons.
pub(super) fn guests(text: &str) -> Result<Vec<Vm>, String> {
    let vms: Vec<Vm> = text.split(';').map(str::parse).collect::<Result<_, _>>()?;
    if vms.len() > 26 {
        Err(format!("{} guests are more than the 26 that can be told apart", vms.len()))
    } else {
        Ok(vms)
    }
}

/// A seed that every JSON reader keeps: at most 2^53 - 1.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    const LARGEST: u64 = (1 << 53) - 1;
    let seed = whole(text)?;
    if seed > LARGEST {
        return Err(format!("{seed} is out of range: {LARGEST} at most, which every JSON reader keeps"));
    }
    Ok(seed)
}

fn whole<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error| format!("'{text}' is no whole number: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_behind_a_value_goes_with_it() {
        let mut below = super::super::Settings::default();
        below.set("hold", "5us/20%").unwrap();
        assert_eq!(below.given("hold-jitter").map(Value::text), Some("20%"));
        assert_eq!(below.all_given().map(|(_, value)| value.to_string()).collect::<Vec<_>>(), ["5us/20%"]);
        let mut above = super::super::Settings::default();
        above.set("hold", "1us").unwrap();
        assert_eq!(above.over(&below).given("hold-jitter"), None);
        for (wrong, said) in [("1us/", "TIME[/SHARE]"), ("1us/2%/3%", "'3%'"), ("/2%", "no duration")] {
            let refused = below.set("hold", wrong).unwrap_err();
            assert!(refused.contains(said), "{refused}");
        }
        assert!(below.set("hold-jitter", "20%").unwrap_err().contains("write hold as TIME[/SHARE]"));
    }
}
