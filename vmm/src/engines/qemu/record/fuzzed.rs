//! Lines that call themselves the record of a guest under QEMU.

use std::time::Instant;

use haltkick_fuzzing::Target;

use super::{Said, take_down};
use crate::guest::memory::Memory;

pub(crate) const TARGET: Target = Target { name: "qemu", most_bytes: 64, seeds, execute };

const WORDS: [&str; 12] = [
    "word ",
    "vcpu ",
    "control ",
    "oracle ",
    "entries ",
    "failed ",
    "panic ",
    "close ",
    "kick ",
    "tsc_khz ",
    "ffffffffffffffff ",
    "18446744073709551615 ",
];

thread_local! {
    static MEMORY: Memory = Memory::new(5 << 20, 2, 0, 0).expect("a small guest's memory");
}

fn seeds() -> Vec<Vec<u8>> {
    let lines =
        ["word vcpu 0 8 1", "word control 0 10 2a", "failed panic 1", "tsc_khz 2000000", "error so it goes"];
    lines.iter().map(|line| line.as_bytes().to_vec()).collect()
}

/// A line of known words and small numbers, and one of any text: taken down within shared memory, or dropped.
fn execute(bytes: &[u8]) {
    let word = |byte: &u8| match WORDS.get(usize::from(byte % 16)) {
        Some(word) => (*word).to_owned(),
        None => format!("{byte:x} "),
    };
    let of_words: String = bytes.iter().take(8).map(word).collect();
    MEMORY.with(|memory| {
        for line in [of_words.as_str(), &String::from_utf8_lossy(bytes)] {
            _ = take_down(line, &mut Said::default(), memory, 0, Instant::now());
        }
    });
}

#[cfg(test)]
mod tests {
    #[test]
    fn fuzz_qemu_any_line_of_the_record_is_taken_down_or_dropped() {
        super::TARGET.run();
    }
}
