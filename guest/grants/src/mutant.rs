//! Deliberate faults, each in a check that a test guards.
//!
//! `--cfg mutant="name"` puts one fault in; `guest/mutants.sh` lists, for each name, the test that must then fail.
//! Without it the macro is the sound code and nothing else.

/// `mutant!("name": sound => faulty)` is `sound`.
macro_rules! mutant {
    ($name:literal: $sound:expr => $faulty:expr) => {
        if cfg!(mutant = $name) { $faulty } else { $sound }
    };
}

pub(crate) use mutant;
