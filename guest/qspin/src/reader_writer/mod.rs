//! A spinlock for one writer or many readers.

pub mod fair;

pub use fair::FairRwLock;
