//! Numbers by name, as records write them: whole ones without a decimal point.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(transparent)]
pub(crate) struct Numbers<V>(BTreeMap<String, V>);

/// Figures by name; null: this run cannot tell.
pub(crate) type Figures = Numbers<Option<f64>>;

pub(crate) type Counts = Numbers<f64>;

impl<V: Copy + Into<Option<f64>>> Numbers<V> {
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied().and_then(Into::into)
    }

    pub(crate) fn set(&mut self, name: impl Into<String>, value: impl Into<V>) {
        self.0.insert(name.into(), value.into());
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, V)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

impl<V> FromIterator<(String, V)> for Numbers<V> {
    fn from_iter<T: IntoIterator<Item = (String, V)>>(numbers: T) -> Self {
        Self(numbers.into_iter().collect())
    }
}

/// Whole numbers up to this are kept by every reader of JSON.
const MOST_WHOLE: f64 = (1_u64 << 53) as f64;

/// A number that is whole, where all readers keep it whole, or any.
fn number(value: f64) -> Value {
    let is_whole = value.fract() == 0.0 && value.abs() < MOST_WHOLE;
    // A negative zero would become a positive one.
    let is_kept = value != 0.0 || value.is_sign_positive();
    if is_whole && is_kept { json!(value as i64) } else { json!(value) }
}

impl<V: Copy + Into<Option<f64>>> Serialize for Numbers<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = |value: V| Into::<Option<f64>>::into(value).map(number);
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, number(*value))))
    }
}

#[cfg(feature = "schema")]
mod schema {
    use schemars::{JsonSchema, Schema, SchemaGenerator};
    use serde_json::{Map, Value, json};

    use super::{Counts, Figures};
    use crate::record::figures::FIGURES;

    impl JsonSchema for Figures {
        fn schema_name() -> std::borrow::Cow<'static, str> {
            "Figures".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            let told = |about: &str, unit: &str| json!({ "description": format!("{about} Unit: {unit}."), "type": ["number", "null"] });
            let rows =
                |is_family: bool| FIGURES.iter().filter(move |row| row.name.contains('*') == is_family);
            let exact: Map<String, Value> =
                rows(false).map(|row| (row.name.into(), told(row.about, row.unit.word()))).collect();
            let families: Map<String, Value> = rows(true)
                .map(|row| (format!("^{}$", row.name.replace('*', ".+")), told(row.about, row.unit.word())))
                .collect();
            schemars::json_schema!({
                "type": "object",
                "properties": exact,
                "patternProperties": families,
                "additionalProperties": { "type": ["number", "null"] },
            })
        }
    }

    impl JsonSchema for Counts {
        fn schema_name() -> std::borrow::Cow<'static, str> {
            "Counts".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            schemars::json_schema!({ "type": "object", "additionalProperties": { "type": "number" } })
        }
    }
}
