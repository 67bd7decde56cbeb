//! Spinlocks for one writer or many readers.

pub mod fair;
pub mod per_cpu;
pub mod unfair;

pub use fair::FairRwLock;
pub use per_cpu::{PerCpuReadToken, PerCpuRwDomain, PerCpuRwLock, ReaderSlot};
pub use unfair::UnfairRwLock;
