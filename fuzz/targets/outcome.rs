#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (haltkick::fuzz::OUTCOME.execute)(bytes));
