//! Disks that stream through one grant table.

mod kernel_lock;
mod stream;

pub use kernel_lock::KernelLock;
pub use stream::*;
