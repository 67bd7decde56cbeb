//! What goes wrong with locks: the races that they once had, by name, and faults that are put in to see a test fail.

pub mod mutant;
pub mod races;
