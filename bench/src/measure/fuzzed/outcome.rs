//! Outcomes of guests that have written anything.

use std::path::Path;
use std::time::Duration;

use haltkick_fuzzing::{Script, Target};
use haltkick_vmm::{ByActivity, HintCheck, Outcome, TicksHistogram, WorkSpeed};

use super::{good, record_of};
use crate::record::Record;
use crate::results::directory::parse_record;
use crate::show::record;
use crate::text::output::to_json;

pub(crate) const TARGET: Target = Target { name: "outcome", most_bytes: 512, seeds, execute };

/// Its index of fairness was read as another number than had been written.
const LAST_DIGIT: [u8; 3] = [3, 10, 44];

fn seeds() -> Vec<Vec<u8>> {
    vec![LAST_DIGIT.to_vec()]
}

/// Any figures that a guest is the source of: a record that can be written, read again, and shown.
fn execute(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let outcome = hostile(&mut script);
    let lock_free = match script.number() {
        0 => Err("none was run".into()),
        per_second => Ok(per_second as f64),
    };
    let record = record_of(&outcome, lock_free);
    let written = to_json(&record).expect("a record can be written");
    let read: Record = parse_record(Path::new("runs.jsonl"), 1, &written).expect("and read");
    assert_eq!(to_json(&read), Ok(written));
    _ = record::record(&read);
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

#[cfg(test)]
mod tests {
    #[test]
    fn fuzz_outcome_of_any_guest_makes_a_record() {
        super::TARGET.run();
    }
}
