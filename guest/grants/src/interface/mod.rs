//! Arguments and results of operations.

pub(crate) mod access;
mod status;

pub use access::{DEVICE_MAP, HOST_MAP, READONLY_MAP};
pub use status::Status;
