//! Who runs this guest, and what the guest asks of it: our VMM, or a monitor that knows nothing of Haltkick.

pub(crate) mod console;
pub(crate) mod hypercall;
mod panic;
pub(crate) mod record;
pub(crate) mod serve;
