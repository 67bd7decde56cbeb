//! The contract between lock, caller and kernel.

mod activity;
mod delegate;
pub mod domain;
mod event;
mod lock;
mod platform;
mod point;
mod queues;
pub mod rw_lock;
#[doc(hidden)]
pub mod test_platform;

pub use activity::Activity;
pub use delegate::Delegate;
pub use domain::Domain;
pub use event::Event;
pub use lock::Lock;
pub use platform::Platform;
pub use point::Point;
pub use queues::Queues;
pub use rw_lock::RwLock;
