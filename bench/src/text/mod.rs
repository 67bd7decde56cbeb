//! Texts that people type and read: lengths of time, sizes, figures, mistyped names, lines that fit; and how the command speaks
//! and ends.

pub(crate) mod exit;
pub(crate) mod nearest;
pub(crate) mod output;
pub(crate) mod pages;
pub(crate) mod quantity;
pub(crate) mod timestamp;
pub(crate) mod wrap;
