//! The CPU that this code runs on: its own data, its clock, its local APIC, and how it sleeps.

pub(crate) mod apic;
pub(crate) mod halt;
pub(crate) mod percpu;
pub(crate) mod time;
