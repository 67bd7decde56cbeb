//! Last line of `just test`: which engines the tests ran on. A line for each goes into the file that `HALTKICK_RAN_ON`
//! names; `bench/tests/ran-on.sh` makes sentences of them.

use std::io::Write as _;

use libtest_mimic::Conclusion;

/// Notes how it went on an engine: `ENGINE passed COUNT`, or `ENGINE skipped REASON` if it is lacking here.
pub fn note(engine: &str, conclusion: &Conclusion, lacking: Option<String>) {
    // In the emulated machine of `just test-nested` the file would be lost; the suite notes that itself.
    let here = std::env::var_os("HALTKICK_NESTED").is_none();
    let Some(file) = std::env::var_os("HALTKICK_RAN_ON").filter(|_| here && !conclusion.has_failed()) else {
        return;
    };
    let line = match lacking {
        Some(reason) => format!("{engine} skipped {reason}\n"),
        None => format!("{engine} passed {}\n", conclusion.num_passed),
    };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file that HALTKICK_RAN_ON names");
}
