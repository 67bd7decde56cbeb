//! From records to figures and what speaks against them. Nothing here runs a guest or asks the host.

pub(crate) mod consistency;
pub(crate) mod findings;
pub(crate) mod rate;
pub(crate) mod significance;
pub(crate) mod statistics;
pub(crate) mod summary;
pub(crate) mod worst;
