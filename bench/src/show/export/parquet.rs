//! The long form as Apache Parquet: typed columns, of which readers take those that they want.

use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::Result as Written;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use crate::show::long::{Long, LongRow};
use crate::text::exit::{Failure, Result};

pub(super) fn write(long: &Long<'_>) -> Result<Vec<u8>> {
    file(long).map_err(|error| Failure::internal(format!("runs as Parquet: {error}")))
}

/// One row group: some thousand runs are some megabytes.
fn file(long: &Long<'_>) -> Written<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut writer =
        SerializedFileWriter::new(&mut bytes, schema(long)?, Arc::new(WriterProperties::default()))?;
    let mut group = writer.next_row_group()?;
    text(&mut group, long, |_| &long.outline.experiment)?;
    for axis in 0..long.outline.axes.len() {
        text(&mut group, long, |row| row.setting[axis])?;
    }
    text(&mut group, long, |row| row.arm)?;
    text(&mut group, long, |row| &row.role)?;
    text(&mut group, long, |row| row.cell_id)?;
    column::<Int64Type>(&mut group, long, |row| Some(i64::from(row.block)))?;
    column::<Int64Type>(&mut group, long, |row| i64::try_from(row.order_index).ok())?;
    text(&mut group, long, |row| row.run_id)?;
    text(&mut group, long, |row| &row.host)?;
    column::<BoolType>(&mut group, long, |row| Some(row.trusted))?;
    text(&mut group, long, |row| row.metric.as_ref())?;
    column::<DoubleType>(&mut group, long, |row| row.value)?;
    group.close()?;
    writer.close()?;
    Ok(bytes)
}

/// The columns in their order. Each may be null, though only values are.
fn schema(long: &Long<'_>) -> Written<Arc<Type>> {
    let field = |name: &str| {
        let (physical, logical) = match name {
            "block" | "order_index" => (Physical::INT64, None),
            "trusted" => (Physical::BOOLEAN, None),
            "value" => (Physical::DOUBLE, None),
            _ => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let builder = Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
        builder.with_logical_type(logical).build().map(Arc::new)
    };
    let fields = long.columns().map(field).collect::<Written<Vec<_>>>()?;
    Type::group_type_builder("runs").with_fields(fields).build().map(Arc::new)
}

fn text<'r>(
    group: &mut SerializedRowGroupWriter<'_, &mut Vec<u8>>,
    long: &'r Long<'_>,
    of: impl Fn(&'r LongRow<'_>) -> &'r str,
) -> Written<()> {
    column::<ByteArrayType>(group, long, |row| Some(ByteArray::from(of(row))))
}

/// Writes the next column: its values, and for each row whether it has one.
fn column<'r, T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, &mut Vec<u8>>,
    long: &'r Long<'_>,
    of: impl Fn(&'r LongRow<'_>) -> Option<T::T>,
) -> Written<()> {
    let all: Vec<Option<T::T>> = long.rows.iter().map(of).collect();
    let present: Vec<i16> = all.iter().map(|value| i16::from(value.is_some())).collect();
    let values: Vec<T::T> = all.into_iter().flatten().collect();
    let mut column = group.next_column()?.expect("the schema has as many columns as are written");
    column.typed::<T>().write_batch(&values, Some(&present), None)?;
    column.close()
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::RowAccessor as _;

    use super::*;
    use crate::measure::synthetic::{Scratch, Sketch, World};

    #[test]
    fn what_is_written_reads_back_with_its_types() {
        let plan = Sketch::new().axis("ratio", &["1", "8"]).arm("a", "tas").plan(2);
        let records = World::new(1).records(&plan);
        let long = Long::new(&plan.outline, &records);
        let file = {
            let scratch = Scratch::new("parquet");
            std::fs::create_dir_all(scratch.path()).unwrap();
            let path = scratch.path().join("runs.parquet");
            std::fs::write(&path, write(&long).unwrap()).unwrap();
            SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap()
        };
        let names: Vec<String> = file
            .metadata()
            .file_metadata()
            .schema()
            .get_fields()
            .iter()
            .map(|field| field.name().to_owned())
            .collect();
        assert_eq!(names, long.columns().collect::<Vec<_>>());
        let at = |name: &str| names.iter().position(|column| column == name).unwrap();
        let rows: Vec<_> = file.get_row_iter(None).unwrap().map(|row| row.unwrap()).collect();
        assert_eq!(rows.len(), long.rows.len());
        for (row, expected) in rows.iter().zip(&long.rows) {
            assert_eq!(row.get_string(at("ratio")).unwrap(), expected.setting[0]);
            assert_eq!(row.get_bool(at("trusted")).unwrap(), expected.trusted);
            assert_eq!(row.get_long(at("block")).unwrap(), i64::from(expected.block));
            assert_eq!(row.get_double(at("value")).ok(), expected.value);
        }
        assert!(rows.iter().all(|row| row.get_string(at("metric")).is_ok_and(|metric| !metric.is_empty())));
    }
}
