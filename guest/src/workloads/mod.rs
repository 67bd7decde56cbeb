//! Workloads of the vCPUs. One file for each, or for several of a kind; `registry` gives them their names.

pub(crate) mod critical_section;
pub(crate) mod every_call;
pub(crate) mod file_copy;
pub(crate) mod grant;
pub(crate) mod harm;
pub(crate) mod hash_table;
pub(crate) mod hint_check;
pub(crate) mod interrupted;
pub(crate) mod line;
pub(crate) mod list;
pub(crate) mod lock_free;
pub(crate) mod memory;
pub(crate) mod mixed;
pub(crate) mod overtaking;
pub(crate) mod page_fault;
pub(crate) mod readers_inside;
pub(crate) mod rwlock;
pub(crate) mod selftest;
pub(crate) mod spin_queue;
pub(crate) mod tasks;
pub(crate) mod try_lock;
