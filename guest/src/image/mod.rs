//! Parts of the image at places of their own: text of fixed length that the VMM reads there, and statics in
//! lines of their own.

pub(crate) mod field;
pub(crate) mod hot;
