#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (haltkick_vmm::fuzz::SCHEDULE.execute)(bytes));
