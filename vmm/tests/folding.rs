//! The guest's folding, compiled for the host: its own tests.
#![expect(unused_imports, reason = "tests use the files themselves")]

#[path = "../../guest/src/work/folding/mod.rs"]
mod folding;
