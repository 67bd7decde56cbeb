//! Lines that call themselves records.

use std::path::Path;
use std::sync::OnceLock;

use haltkick_fuzzing::{Script, Target};
use haltkick_vmm::printable;
use serde_json::{Value, json};

use super::{good, record_of};
use crate::results::directory::parse_record;
use crate::show::record;
use crate::text::output::to_json;

pub(crate) const TARGET: Target = Target { name: "record", most_bytes: 64, seeds, execute };

fn records() -> &'static [Value; 2] {
    static RECORDS: OnceLock<[Value; 2]> = OnceLock::new();
    RECORDS.get_or_init(|| {
        [Ok(1e6), Err("none was run".into())].map(|lock_free| {
            let written = to_json(&record_of(&good(), lock_free)).expect("a record can be written");
            serde_json::from_str(&written).expect("and read")
        })
    })
}

/// A line as it is, and both records without a change.
fn seeds() -> Vec<Vec<u8>> {
    vec![[&[2], to_json(&records()[0]).expect("it was read").as_bytes()].concat(), vec![0], vec![1]]
}

/// A record of which values are exchanged, or any line, is refused, in one line, or shown, and written as it was read.
fn execute(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let line = match script.byte() {
        number @ (0 | 1) => {
            let mut value = records()[usize::from(number)].clone();
            while !script.is_over() {
                exchange(&mut value, &mut script);
            }
            value.to_string()
        }
        _ => String::from_utf8_lossy(script.rest()).into_owned(),
    };
    match parse_record(Path::new("runs.jsonl"), 1, &line) {
        Err(failure) => assert_eq!(failure.message, printable(&failure.message)),
        Ok(read) => {
            _ = record::record(&read);
            let written = to_json(&read).expect("what was read can be written");
            let again =
                parse_record(Path::new("runs.jsonl"), 1, &written).expect("what was written can be read");
            assert_eq!(to_json(&again), Ok(written));
        }
    }
}

/// Goes from the whole to a part of it as far as the script says, and exchanges that.
fn exchange(whole: &mut Value, script: &mut Script<'_>) {
    let mut part = whole;
    let kind = script.byte();
    for _ in 0..=kind & 7 {
        part = inside(part, script.byte().into());
    }
    match kind >> 3 {
        0..=7 => *part = json!(script.number()),
        8..=11 => *part = json!(-(script.number() as i64 >> 1)),
        12..=15 => *part = json!(script.number() as f64 / 256.0),
        16 => *part = json!(f64::from_bits(script.number() << 32)),
        17 => *part = Value::Null,
        18 => *part = json!(""),
        19 => *part = json!("\u{1b}[2J\n\u{9b}"),
        20 => *part = json!([]),
        21 => *part = json!({}),
        22 => *part = json!(true),
        23 => *part = json!([part.take()]),
        24..=26 => match part {
            Value::Array(parts) => parts.extend(parts.first().cloned()),
            Value::Object(fields) => drop(fields.remove(&fields.keys().next().cloned().unwrap_or_default())),
            Value::String(text) => text.push(char::from(script.byte())),
            _ => *part = Value::Null,
        },
        _ => match part {
            Value::Array(parts) => drop(parts.pop()),
            Value::Object(fields) => drop(fields.insert(script.byte().to_string(), json!(0))),
            Value::String(text) => text.truncate(0),
            Value::Number(number) => *part = json!(number.to_string()),
            _ => *part = json!(1),
        },
    }
}

/// One of the parts of a value, or itself, if it has none.
fn inside(value: &mut Value, which: usize) -> &mut Value {
    let parts = match &*value {
        Value::Array(values) => values.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if parts == 0 {
        return value;
    }
    match value {
        Value::Array(values) => &mut values[which % parts],
        Value::Object(fields) => fields.values_mut().nth(which % parts).expect("there are more"),
        whole => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_line_sends_no_commands_to_the_terminal() {
        execute("\u{2}{\"schema\": \"a\u{7f}\u{9b}b\", \"schema_version\": 1}".as_bytes());
    }

    #[test]
    fn exchanged_values_are_refused_or_read() {
        let read = |bytes: &[u8]| {
            let mut value = records()[0].clone();
            exchange(&mut value, &mut Script::new(bytes));
            parse_record(Path::new("runs.jsonl"), 1, &value.to_string()).is_ok()
        };
        let outcomes = (0..=u8::MAX).map(|which| read(&[2, which, which / 3, which / 7, 7]));
        let (good, bad): (Vec<_>, Vec<_>) = outcomes.partition(|good| *good);
        assert!(good.len() > 20 && bad.len() > 20, "{} and {}", good.len(), bad.len());
    }

    #[test]
    fn fuzz_record_any_line_is_refused_or_shown() {
        TARGET.run();
    }
}
