//! Page faults: from the exception to the manager of the memory.
#![expect(unsafe_code, reason = "a function pointer that lies in an atomic")]

use core::sync::atomic::{AtomicPtr, Ordering};

use haltkick_mm::{Access, Error};

pub(crate) enum Verdict {
    /// The page is there now: the instruction is executed again.
    Retry,
    /// The access was wrong.
    Signal(Error),
    /// The address is not managed.
    NotMine,
}

/// Bits of the error code (SDM vol. 3, 4.7).
const WRITE: u64 = 1 << 1;

/// Handles a fault at this address.
pub(crate) type Handler = fn(u64, Access) -> Verdict;

static HANDLER: AtomicPtr<()> = AtomicPtr::new((nobody as Handler) as *mut ());

fn nobody(_: u64, _: Access) -> Verdict {
    Verdict::NotMine
}

/// From now on `handler` gets all page faults. Every vCPU calls it with the same one before its first fault.
pub(crate) fn set_handler(handler: Handler) {
    // Relaxed: this vCPU's own faults see its own store, which equals everybody else's.
    HANDLER.store(handler as *mut (), Ordering::Relaxed);
}

/// Decides about a fault at `address`.
pub(crate) fn handle(address: u64, error_code: u64) -> Verdict {
    // SAFETY: only `Handler`s are ever stored.
    let handler: Handler = unsafe { core::mem::transmute(HANDLER.load(Ordering::Relaxed)) };
    handler(address, if error_code & WRITE != 0 { Access::Write } else { Access::Read })
}
