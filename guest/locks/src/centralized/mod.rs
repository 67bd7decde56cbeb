//! Locks whose waiters all look at the lock itself: test-and-set and tickets.

pub mod pv_ticket;
pub mod tas;
pub mod ticket;

use crate::contract::{Lock, Platform};

pub use pv_ticket::{PvTicket, PvTicketDomain};
pub use tas::{SliceTas, Tas};
pub use ticket::{Ticket, UnfairTicket};

/// Admits everybody at once and costs nothing.
///
/// The ideal that the others are measured against.
#[derive(Debug, Default)]
pub struct NoLock;

impl NoLock {
    /// A lock that is always free.
    pub const fn new() -> Self {
        Self
    }
}

impl<P: Platform> Lock<P> for NoLock {
    type Token = ();

    #[inline(always)]
    fn lock(&self, _: &P) {}

    #[inline(always)]
    fn try_lock(&self, _: &P) -> Option<()> {
        Some(())
    }

    #[inline(always)]
    fn unlock(&self, _: &P, (): ()) {}
}
