//! Faults of locks: the races that they once had, by name, and faults that are inserted to see a test fail.

pub mod mutant;
pub mod races;
