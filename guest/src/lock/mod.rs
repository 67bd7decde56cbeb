//! Locks in a kernel: the platform, the sites that call a lock, the measuring around a section, the table of
//! all locks.

pub(crate) mod calls;
pub(crate) mod cost;
pub(crate) mod form;
pub(crate) mod kind;
mod locks;
pub(crate) mod measure;
pub(crate) mod object;
mod object_imports;
pub(crate) mod oracle;
pub(crate) mod part;
pub(crate) mod platform;
pub(crate) mod registry;
