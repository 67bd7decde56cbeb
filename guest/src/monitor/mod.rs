//! The monitor that runs this guest, and requests to it: our VMM, or one that knows nothing of Haltkick.

pub(crate) mod hypercall;
mod panic;
pub(crate) mod record;
