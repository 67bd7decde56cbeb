//! Guest image file: its entry points and tables, its parts, its call sites and how they are rewritten, and the code at
//! an address.

mod attach;
pub(crate) mod author;
pub(crate) mod disassemble;
pub(crate) mod file;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
#[cfg(any(test, fuzzing))]
pub(crate) mod made;
pub(crate) mod object;
pub(crate) mod patch;
#[cfg(test)]
mod repeated;
pub(crate) mod segment;
pub(crate) mod sites;
pub(crate) mod symbols;
