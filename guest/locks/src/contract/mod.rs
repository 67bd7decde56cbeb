//! The contract between lock, caller and kernel.

mod activity;
mod delegate;
pub(crate) mod domain;
mod event;
mod lock;
mod platform;
mod point;
mod queues;
pub(crate) mod rw_lock;
#[cfg(test)]
pub(crate) mod test_platform;

pub use activity::Activity;
pub use delegate::Delegate;
pub use domain::Domain;
pub use event::Event;
pub use lock::Lock;
pub use platform::Platform;
pub use point::Point;
pub use queues::Queues;
pub use rw_lock::RwLock;
