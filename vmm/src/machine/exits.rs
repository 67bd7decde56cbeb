//! Why a vCPU came back: parsed once, counted by kind, matched exhaustively ever after.

use haltkick_hypercalls::{
    PORT_BOOTED, PORT_CONSOLE, PORT_EXCEPTION, PORT_EXIT, PORT_INVALIDATE, PORT_KICK, PORT_PANIC, PORT_POINT,
    PORT_STARTED, PORT_WAIT, PORT_WORK_DONE, PORT_YIELD, YIELD_TO_ANY,
};

/// The reason of [`Exit::Unexpected`] for an instruction that a simulated CPU does not carry out; its detail is the address.
pub(crate) const NOT_CARRIED_OUT: u32 = u32::MAX;

/// Why a vCPU came back from KVM_RUN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// A signal: the slice may have ended, or another thread wants the runner's attention.
    Interrupted,
    /// `pv_wait`.
    Wait,
    /// `pv_kick` of this vCPU. The number is the guest's and unchecked.
    Kick(u32),
    /// The vCPU gives up its slice, to this vCPU or to anyone. The number is the guest's and unchecked.
    Yield(Option<u32>),
    /// The vCPU passes this point of a lock's slow path. The number is the guest's and unchecked.
    Point(u32),
    /// The boot vCPU is done.
    Booted,
    /// The vCPU has started.
    Started,
    /// The vCPU is done.
    Left,
    /// The guest panicked.
    Panic,
    /// The guest took an exception that it does not handle.
    Exception,
    /// A byte of text.
    Console(u8),
    /// HLT: nothing in this guest halts.
    Halt,
    /// Triple fault.
    Shutdown,
    /// Other vCPUs are to drop the translations that they have cached.
    Invalidate,
    /// The fixed amount of work is done.
    WorkDone,
    /// A device has served the access. (Linux guests only.)
    Device,
    /// A pause loop was too long. (Simulated machines only.)
    PauseLoop,
    /// Anything else, with KVM's reason and a detail that depends on it.
    Unexpected { reason: u32, detail: u64 },
}

impl Exit {
    /// Number of kinds that are counted.
    pub(crate) const KINDS: usize = 18;

    /// Names of the kinds in the record.
    pub(crate) const NAMES: [&'static str; Self::KINDS] = [
        "signal",
        "pv_wait",
        "pv_kick",
        "yield",
        "booted",
        "left",
        "panic",
        "exception",
        "console",
        "halt",
        "shutdown",
        "unexpected",
        "invalidate",
        "point",
        "work_done",
        "device",
        "pause_loop",
        "started",
    ];

    /// Index of the kind.
    pub(crate) fn kind(self) -> usize {
        match self {
            Self::Interrupted => 0,
            Self::Wait => 1,
            Self::Kick(_) => 2,
            Self::Yield(_) => 3,
            Self::Booted => 4,
            Self::Left => 5,
            Self::Panic => 6,
            Self::Exception => 7,
            Self::Console(_) => 8,
            Self::Halt => 9,
            Self::Shutdown => 10,
            Self::Unexpected { .. } => 11,
            Self::Invalidate => 12,
            Self::Point(_) => 13,
            Self::WorkDone => 14,
            Self::Device => 15,
            Self::PauseLoop => 16,
            Self::Started => 17,
        }
    }

    /// A port write of the guest; `None` for a port that is no hypercall.
    pub(crate) fn from_hypercall(port: u16, value: u32) -> Option<Self> {
        Some(match port {
            PORT_WAIT => Self::Wait,
            PORT_KICK => Self::Kick(value),
            PORT_YIELD => Self::Yield((value != YIELD_TO_ANY).then_some(value)),
            PORT_POINT => Self::Point(value),
            PORT_EXIT => Self::Left,
            PORT_PANIC => Self::Panic,
            PORT_EXCEPTION => Self::Exception,
            PORT_CONSOLE => Self::Console(value as u8),
            PORT_BOOTED => Self::Booted,
            PORT_STARTED => Self::Started,
            PORT_INVALIDATE => Self::Invalidate,
            PORT_WORK_DONE => Self::WorkDone,
            _ => return None,
        })
    }
}
