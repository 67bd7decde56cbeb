//! Exceptions, and the memory that causes some of them: page faults, accesses that may fail, address translation.

pub(crate) mod exceptions;
pub(crate) mod interrupts;
pub(crate) mod mmu;
pub(crate) mod user;
