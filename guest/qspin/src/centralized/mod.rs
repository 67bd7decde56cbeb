//! Locks whose waiters all look at the lock itself: test-and-set and tickets.

pub mod tas;
pub mod ticket;

pub use tas::Tas;
pub use ticket::Ticket;
