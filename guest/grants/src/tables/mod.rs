//! Grant tables and maptrack, each with its locks.

pub(crate) mod maptrack;
pub(crate) mod shared;
pub(crate) mod table;

pub use shared::{ACCEPT_TRANSFER, PERMIT_ACCESS, READING, READONLY, SharedEntry, TRIES, TYPE, WRITING};
pub use table::ENTRIES_PER_PAGE;
