//! What lies at a place of its own in the image: text of fixed length that the VMM reads there, and statics in lines of their own.

pub(crate) mod field;
pub(crate) mod hot;
