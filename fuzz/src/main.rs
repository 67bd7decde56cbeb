//! One part of the program, the one that HALTKICK_FUZZ_TARGET names, on bytes that coverage chooses. Its unit test executes the same
//! on random bytes; `just fuzz` does this.
#![no_main]

use std::sync::LazyLock;

static EXECUTE: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let asked = std::env::var("HALTKICK_FUZZ_TARGET").unwrap_or_default();
    let targets = haltkick_vmm::fuzz::TARGETS.iter().chain(&haltkick::fuzz::TARGETS);
    let names: Vec<_> = targets.clone().map(|target| target.name).collect();
    let target = targets.into_iter().find(|target| target.name == asked);
    target.unwrap_or_else(|| panic!("HALTKICK_FUZZ_TARGET is one of {names:?}, not {asked:?}")).execute
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| EXECUTE(bytes));
