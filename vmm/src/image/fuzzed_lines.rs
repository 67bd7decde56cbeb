//! Files with debug information that may say anything.

use haltkick_fuzzing::{Script, Target, edited, no_seeds};

use super::debug_info::Inflated;
use super::fuzzed::assert_printable;
use super::made::nested::{CODE, SHAPE_BYTES, nested, units_with_tables};
use super::symbols::Lines;

pub(crate) const TARGET: Target = Target { name: "lines", most_bytes: 128, seeds: no_seeds, execute };

/// A small file with edits in its debug information: it has no lines, or any address has frames that can be printed.
fn execute(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let file = match script.byte() % 4 {
        0 => units_with_tables(script.byte().into(), u64::from(script.byte()) % (2 * SHAPE_BYTES)),
        _ => nested(usize::from(script.byte() % 8)),
    };
    // Behind the header of the file, which has no segments.
    ask(&edited(&file, script.rest(), 64));
}

fn ask(file: &[u8]) {
    let inflated = Inflated::of(file);
    let Some(lines) = Lines::of(file, &inflated) else { return };
    for address in [CODE, CODE + 8, 0, u64::MAX] {
        for frame in lines.frames(address) {
            assert_printable(&frame.to_string());
            assert_printable(frame.function.as_deref().unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_lines_any_debug_information_gives_none_or_printable_frames() {
        TARGET.run();
    }
}
