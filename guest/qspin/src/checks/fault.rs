//! The faults that are found, and their words.

use core::{fmt, panic::Location};

use super::asked::Use;

/// A fault in the use of a lock. Its text is one line.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Fault {
    /// The CPU that asks for the lock, or releases it.
    pub cpu: usize,
    /// Address of the lock.
    pub lock: usize,
    /// Place of the code that asks or releases.
    pub place: &'static Location<'static>,
    /// The rest of the fault.
    pub kind: Kind,
}

/// Kind of a fault.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// The CPU has the lock, or asks for it already.
    Own {
        /// Place at which it asked for it.
        since: &'static Location<'static>,
    },
    /// The locks are asked for in two orders.
    Order {
        /// Address of a lock that the CPU has.
        held: usize,
        /// Place at which it asked for that one.
        since: &'static Location<'static>,
        /// Place at which that one was asked for under the lock, or under one that was asked for under it.
        elsewhere: &'static Location<'static>,
        /// No other lock is between the two.
        is_direct: bool,
    },
    /// A handler waits for the lock, which is also taken with interrupts on.
    Context {
        /// This is the handler.
        in_handler: bool,
        /// Place of the other use.
        elsewhere: &'static Location<'static>,
    },
    /// The CPU does not have the lock that it releases.
    NotHeld {
        /// The first CPU that has it, or asks for it, and the place at which it asked.
        holder: Option<(usize, &'static Location<'static>)>,
    },
}

impl Fault {
    pub(super) fn of(of: Use, kind: Kind) -> Self {
        Self { cpu: of.cpu, lock: of.lock, place: of.place, kind }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, lock, place, kind } = self;
        match kind {
            Kind::Own { since } => write!(
                f,
                "CPU {cpu} asks at {place} for lock {lock:#x}, for which it asked at {since}: release it first, \
                 or turn interrupts off where it is taken, if a handler takes it"
            ),
            Kind::Order { held, since, elsewhere, is_direct } => {
                let through = if *is_direct { "" } else { ", through other locks" };
                write!(
                    f,
                    "CPU {cpu} asks at {place} for lock {lock:#x} while it has lock {held:#x} ({since}), and the order is the \
                     opposite at {elsewhere}{through}: take them in one order"
                )
            }
            Kind::Context { in_handler: true, elsewhere } => write!(
                f,
                "CPU {cpu} asks in a handler, at {place}, for lock {lock:#x}, which is taken with interrupts on at {elsewhere}: \
                 turn them off there"
            ),
            Kind::Context { in_handler: false, elsewhere } => write!(
                f,
                "CPU {cpu} takes lock {lock:#x} with interrupts on, at {place}, and a handler asks for it at {elsewhere}: \
                 turn interrupts off here"
            ),
            Kind::NotHeld { holder } => {
                // The end of a guard's life has no place in the source.
                write!(f, "CPU {cpu} releases lock {lock:#x}, which it does not have: ")?;
                match holder {
                    Some((holder, since)) => {
                        write!(
                            f,
                            "CPU {holder} asked for it at {since}; does `pin` keep tasks on their CPUs?"
                        )
                    }
                    None => write!(f, "it was released before"),
                }
            }
        }
    }
}
