//! Schema of each setting in experiment files, made from the table alone.

use serde_json::{Map, Value as Json, json};

use super::row::{Bounds, Kind, Setting};
use super::table;

/// Every setting as a key of a file, with its help and what may stand there.
pub(crate) fn settings() -> Map<String, Json> {
    table::named_rows().map(|setting| (setting.name.to_owned(), setting.schema())).collect()
}

impl Setting {
    /// Returns the schema of its value in a file: a text in quotes, or a whole number.
    fn schema(&self) -> Json {
        let mut schema = match &self.kind {
            Kind::Name => text("."),
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
