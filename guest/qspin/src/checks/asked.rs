//! A lock that a CPU asks for: which, where, in which way, and in which context.

use core::panic::Location;

/// State of a CPU's interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Context {
    /// No interrupt comes.
    InterruptsOff,
    /// An interrupt may come.
    InterruptsOn,
    /// The CPU serves an interrupt.
    Handler,
}

/// Way of taking a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// No other CPU has it.
    Alone,
    /// Other readers may have it; `nests`: also while a writer waits.
    Shared { nests: bool },
}

/// A lock that a CPU asks for, has, or releases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) cpu: usize,
    /// Its address.
    pub(crate) lock: usize,
    pub(crate) place: &'static Location<'static>,
}

const IN_HANDLER: usize = 1;
const SHARED_IN_HANDLER: usize = 2;
const INTERRUPTS_ON: usize = 3;
const SHARED_INTERRUPTS_ON: usize = 4;
/// The note on such a use, and those that it does not go with.
pub(super) fn notes(way: Way, context: Context) -> Option<(usize, &'static [usize])> {
    Some(match (way, context) {
        (_, Context::InterruptsOff) => return None,
        (Way::Alone, Context::Handler) => (IN_HANDLER, &[INTERRUPTS_ON, SHARED_INTERRUPTS_ON]),
        (Way::Alone, Context::InterruptsOn) => (INTERRUPTS_ON, &[IN_HANDLER, SHARED_IN_HANDLER]),
        (Way::Shared { nests: true }, Context::Handler) => (SHARED_IN_HANDLER, &[INTERRUPTS_ON]),
        (Way::Shared { nests: true }, Context::InterruptsOn) => (SHARED_INTERRUPTS_ON, &[IN_HANDLER]),
        (Way::Shared { nests: false }, Context::Handler) => {
            (SHARED_IN_HANDLER, &[INTERRUPTS_ON, SHARED_INTERRUPTS_ON])
        }
        (Way::Shared { nests: false }, Context::InterruptsOn) => {
            (SHARED_INTERRUPTS_ON, &[IN_HANDLER, SHARED_IN_HANDLER])
        }
    })
}
