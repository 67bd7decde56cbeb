//! Fuzz targets of the code that is executed on arbitrary bytes between an outcome and its record on disk.

use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use haltkick_fuzzing::{Script, Target};
use haltkick_vmm::{
    AnyOutcome, ByActivity, Guest, HintCheck, Known, Outcome, Run, TicksHistogram, WorkSpeed, printable,
};
use serde_json::{Value, json};

use super::fill::{Origin, record as recorded};
use super::synthetic::{found, outcome_of};
use crate::host::identity::Host;
use crate::record::Record;
use crate::results::directory::parse_record;
use crate::show::record;
use crate::text::exit::Result;
use crate::text::output::to_json;

/// A host of which all is known: what is not known, it is asked for each record why.
static ORIGIN: LazyLock<Origin> = LazyLock::new(|| {
    let some = |text: &str| Some(text.to_owned());
    let host = Host {
        host_id: some("0123456789ab"),
        kernel: some("6.1"),
        cpu_model: some("a CPU"),
        kvm_module: some("kvm_intel"),
        nested: Some(false),
        haltkick_version: "0.1.0".into(),
    };
    Origin::new(SystemTime::UNIX_EPOCH, host, Err("nobody looks".into()))
});

fn asked() -> Run {
    let guests = vec![Guest { vcpus: 3, ..Guest::default() }];
    Run { cpus: vec![0, 1], guests, ..Run::default() }
}

/// The outcome of a run that went as it should.
pub(crate) fn good() -> Outcome {
    outcome_of(asked().our(0), 1e6)
}

pub(crate) fn record_of(outcome: &Outcome, lock_free: Known<f64>) -> Record {
    let run = asked();
    let outcomes = vec![AnyOutcome::Ours(Box::new(outcome.clone()))];
    let found = found(&run, outcome.window, outcomes);
    recorded(run.our(0), outcome, &found, &ORIGIN, None, &lock_free.map(|per_second| vec![per_second]))
}

pub(crate) const OUTCOME: Target =
    Target { name: "outcome", most_bytes: 512, seeds: outcomes, execute: execute_outcome };

/// Its index of fairness was read as another number than had been written.
const LAST_DIGIT: [u8; 3] = [3, 10, 44];
/// The sums of its counts go beyond all numbers.
const MOST_OF_ALL: [u8; 64] = [u8::MAX; 64];

fn outcomes() -> Vec<Vec<u8>> {
    vec![LAST_DIGIT.to_vec(), MOST_OF_ALL.to_vec()]
}

/// Any figures that a guest is the source of: a record that can be written, read again, and shown.
fn execute_outcome(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let outcome = hostile(&mut script);
    let lock_free = match script.number() {
        0 => Err("none was run".into()),
        per_second => Ok(per_second as f64),
    };
    let written = to_json(&record_of(&outcome, lock_free)).expect("a record can be written");
    assert_eq!(rewritten(&parse(&written).expect("and read")), written);
}

fn parse(line: &str) -> Result<Record> {
    parse_record(Path::new("runs.jsonl"), 1, line)
}

/// Writes a record, after showing it.
fn rewritten(read: &Record) -> String {
    _ = record::record(read);
    to_json(read).expect("what was read can be written")
}

fn hostile(script: &mut Script<'_>) -> Outcome {
    let mut outcome = good();
    for vcpu in &mut outcome.vcpus {
        vcpu.acquisitions = script.number();
        vcpu.run_ns = Some(script.number() % (1 << 40));
    }
    outcome.window = Duration::from_nanos(1 + script.number() % (1 << 40));
    outcome.start_up = Duration::from_nanos(script.number());
    (outcome.reads, outcome.tsc_steps_back, outcome.work_rate) =
        (script.number(), script.number(), script.number());
    outcome.wait = histogram(script);
    outcome.hold = histogram(script);
    outcome.unlock = histogram(script);
    outcome.times = vec![("anything".into(), histogram(script))];
    outcome.pending_waits = Ok((0..script.byte() % 4).map(|_| script.number()).collect());
    outcome.lock_events = vec![("pv_kick_unlock".into(), script.number())];
    outcome.lost_ns = Some(ByActivity { holder: script.number(), ..ByActivity::default() });
    outcome.lock_cpu = Some(Duration::from_nanos(script.number()));
    let over_promised = script.number() as f64 / 16.0;
    outcome.work =
        vec![Some(WorkSpeed { over_promised, pieces: script.number() as u32 }); outcome.vcpus.len()];
    let [samples, moved_while_marked, still_while_unmarked] = [0; 3].map(|_: u64| script.number());
    let hint = HintCheck { samples, moved_while_marked, still_while_unmarked, ..HintCheck::default() };
    outcome.hint = Some(hint);
    outcome
}

/// One that adds up or does not: counts, sum and largest value are the guest's.
fn histogram(script: &mut Script<'_>) -> TicksHistogram {
    let mut histogram = TicksHistogram::empty();
    for _ in 0..script.byte() % 4 {
        let bucket = script.number() as usize % histogram.buckets.len();
        histogram.buckets[bucket] = u64::from(script.number() as u32) * 3;
    }
    (histogram.max, histogram.sum) = (script.number(), script.number());
    histogram
}

pub(crate) const RECORD: Target =
    Target { name: "record", most_bytes: 64, seeds: lines, execute: execute_record };

static RECORDS: LazyLock<[Value; 2]> = LazyLock::new(|| {
    [Ok(1e6), Err("none was run".into())].map(|lock_free| {
        let written = to_json(&record_of(&good(), lock_free)).expect("a record can be written");
        serde_json::from_str(&written).expect("and read")
    })
});

/// Both records without a change, a line as it is, and one with commands for the terminal.
fn lines() -> Vec<Vec<u8>> {
    let commands = "{\"schema\": \"a\u{7f}\u{9b}b\", \"schema_version\": 1}";
    let line = |text: &str| [&[2], text.as_bytes()].concat();
    vec![line(&RECORDS[0].to_string()), vec![0], vec![1], line(commands)]
}

/// A record of which values are exchanged, or any line, is refused, in one line, or shown, and written as it was read.
fn execute_record(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let line = match script.byte() {
        number @ (0 | 1) => {
            let mut value = RECORDS[usize::from(number)].clone();
            while !script.is_over() {
                exchange(&mut value, &mut script);
            }
            value.to_string()
        }
        _ => String::from_utf8_lossy(script.rest()).into_owned(),
    };
    match parse(&line) {
        Err(failure) => assert_eq!(failure.message, printable(&failure.message)),
        Ok(read) => {
            let written = rewritten(&read);
            assert_eq!(rewritten(&parse(&written).expect("what was written can be read")), written);
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
        24 => *part = json!(part.to_string()),
        _ => match part {
            Value::Array(parts) if kind & 8 == 0 => parts.extend(parts.first().cloned()),
            Value::Array(parts) => drop(parts.pop()),
            Value::Object(fields) => drop(fields.remove(&fields.keys().next().cloned().unwrap_or_default())),
            _ => *part = Value::Null,
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
    #[test]
    fn fuzz_outcome_of_any_guest_makes_a_record() {
        super::OUTCOME.run();
    }

    #[test]
    fn fuzz_record_any_line_is_refused_or_shown() {
        super::RECORD.run();
    }
}
