#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (haltkick_vmm::fuzz::LINES.execute)(bytes));
