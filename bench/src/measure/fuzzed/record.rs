//! Lines that call themselves records.

use std::path::Path;

use haltkick_fuzzing::Target;
use haltkick_vmm::printable;

use super::{good, record_of};
use crate::record::Record;
use crate::results::directory::parse_record;
use crate::show::record;
use crate::text::output::to_json;

pub(crate) const TARGET: Target = Target { name: "record", most_bytes: 256, seeds, execute };

fn seeds() -> Vec<Vec<u8>> {
    let record = |lock_free| to_json(&record_of(&good(), lock_free)).expect("a record can be written");
    [Ok(1e6), Err("none was run".into())].map(|lock_free| record(lock_free).into_bytes()).into()
}

/// Any line is refused, in one line, or shown, and written as it was read.
fn execute(bytes: &[u8]) {
    let line = String::from_utf8_lossy(bytes);
    match parse_record::<Record>(Path::new("runs.jsonl"), 1, &line) {
        Err(failure) => assert_eq!(failure.message, printable(&failure.message)),
        Ok(read) => {
            _ = record::record(&read);
            let written = to_json(&read).expect("what was read can be written");
            let again = parse_record::<Record>(Path::new("runs.jsonl"), 1, &written)
                .expect("what was written can be read");
            assert_eq!(to_json(&again), Ok(written));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn commands_to_a_terminal_in_a_line_are_not_passed_on_when_it_is_refused() {
        super::execute("{\"schema\": \"a\u{7f}\u{9b}b\", \"schema_version\": 1}".as_bytes());
    }

    #[test]
    fn fuzz_record_any_line_is_refused_or_shown() {
        super::TARGET.run();
    }
}
