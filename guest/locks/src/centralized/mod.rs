//! Locks whose waiters all look at the lock itself: test-and-set and tickets.

mod none;
pub mod pv_ticket;
pub mod slice_tas;
pub mod tas;
pub mod ticket;
pub mod unfair_ticket;

pub use none::NoLock;
pub use pv_ticket::{PvTicket, PvTicketDomain};
pub use slice_tas::SliceTas;
pub use tas::Tas;
pub use ticket::Ticket;
pub use unfair_ticket::UnfairTicket;
