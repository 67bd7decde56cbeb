//! The long form as one JSON array, an object for each value.

use serde_json::{Map, Value, json};

use crate::show::long::Long;

pub(super) fn write(long: &Long<'_>) -> String {
    let columns = long.outline.setting_columns();
    let rows = long.rows.iter().map(|row| {
        let of_settings = columns.iter().zip(row.setting.iter());
        let mut object: Map<String, Value> =
            of_settings.map(|(column, value)| (column.clone(), field(column, value))).collect();
        let rest = json!({
            "experiment": long.outline.experiment,
            "arm": row.arm,
            "role": row.role,
            "cell_id": row.cell_id,
            "block": row.block,
            "order_index": row.order_index,
            "run_id": row.run_id,
            "host": row.host,
            "trusted": row.trusted,
            "metric": row.metric,
            "value": row.value,
        });
        let Value::Object(rest) = rest else { unreachable!("it is written as one") };
        object.extend(rest);
        format!("  {}", Value::Object(object))
    });
    format!("[\n{}\n]\n", rows.collect::<Vec<_>>().join(",\n"))
}

/// A value as written, or nanoseconds as a number.
fn field(column: &str, value: &str) -> Value {
    if column.ends_with("_ns") { value.parse::<u64>().map_or(Value::Null, Value::from) } else { value.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Sketch, World};
    use crate::show::long::COLUMNS;

    #[test]
    fn every_value_has_all_columns_and_null_for_the_unknown() {
        let plan = Sketch::new().axis("ratio", &["1", "8"]).arm("a \"b\"", "tas").plan(2);
        let records = World::new(1).records(&plan);
        let long = Long::new(&plan.outline, &records);
        let rows: Vec<Map<String, Value>> = serde_json::from_str(&write(&long)).unwrap();
        assert_eq!(rows.len(), long.rows.len());
        for (row, expected) in rows.iter().zip(&long.rows) {
            assert_eq!(row.len(), COLUMNS.len() + 2, "{row:?}");
            assert!(["experiment", "ratio"].iter().chain(&COLUMNS).all(|column| row.contains_key(*column)));
            assert_eq!(
                (row["value"].as_f64(), row["trusted"].as_bool()),
                (expected.value, Some(expected.trusted))
            );
        }
        assert!(
            rows.iter().any(|row| row["value"].is_null()) && rows.iter().any(|row| row["arm"] == "a \"b\"")
        );
    }
}
