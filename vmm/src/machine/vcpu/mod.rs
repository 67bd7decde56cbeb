//! A vCPU run by KVM or by this process itself, and why it came back: parsed once, counted by kind, matched exhaustively ever after.

mod kvm;
mod native;

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::{
    PORT_BOOTED, PORT_CONSOLE, PORT_EXCEPTION, PORT_EXIT, PORT_INVALIDATE, PORT_KICK, PORT_PANIC, PORT_POINT,
    PORT_STARTED, PORT_WAIT, PORT_WORK_DONE, PORT_YIELD, YIELD_TO_ANY,
};
use haltkick_sim::{Cpu, General};

use crate::host::signal::{self, Thread};

pub(crate) use kvm::{KvmVcpu, Ports, reason_name};
pub(crate) use native::NativeVcpu;

/// A vCPU that some thread owns and may run.
pub(crate) struct Vcpu {
    pub(crate) id: u32,
    pub(crate) exits: Arc<ExitCounts>,
    /// The CPU of a simulated machine, while no pCPU has it; `None` on all others.
    pub(crate) simulated: Option<Box<Cpu>>,
    body: Box<dyn Body>,
}

/// Runner of a vCPU's code: KVM, or a thread of this process.
pub(crate) trait Body: Send {
    /// Enters the guest until something needs the VMM. The calling thread keeps all signals blocked.
    ///
    /// # Errors
    /// What the system call fails with, other than being interrupted.
    fn run(&mut self) -> io::Result<Exit>;

    /// Returns KVM's counts for it.
    ///
    /// # Errors
    /// Where there is no KVM, or one before Linux 5.14.
    fn kvm_stats(&self) -> io::Result<Vec<(String, u64)>> {
        Err(io::Error::other("it runs without KVM"))
    }

    /// Instruction pointer and stack pointer.
    fn pointers(&self) -> io::Result<(u64, u64)>;

    /// Gives it an NMI before its next instruction.
    ///
    /// # Errors
    /// What KVM says; threads have no such thing, and no translations of their own that could go stale.
    fn nmi(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether it has halted in KVM's hands, or was never started, and nothing has woken it since. KVM_GET_MP_STATE waits for
    /// the end of KVM_RUN.
    fn is_halted(&self) -> bool {
        false
    }
}

/// A simulated machine runs its vCPUs itself.
struct OnBoard;

impl Body for OnBoard {
    fn run(&mut self) -> io::Result<Exit> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn pointers(&self) -> io::Result<(u64, u64)> {
        Err(io::Error::other("it is on its pCPU"))
    }
}

/// A vCPU without a guest: what it comes back with is made up.
#[cfg(any(test, fuzzing))]
impl<F: FnMut() -> io::Result<Exit> + Send> Body for F {
    fn run(&mut self) -> io::Result<Exit> {
        self()
    }

    fn pointers(&self) -> io::Result<(u64, u64)> {
        Ok((0x1000, 0x1000))
    }

    fn nmi(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Vcpu {
    pub(crate) fn new(id: u32, body: impl Body + 'static) -> Self {
        Self { id, exits: Arc::default(), simulated: None, body: Box::new(body) }
    }

    pub(crate) fn simulated(id: u32, cpu: Cpu) -> Self {
        Self { simulated: Some(Box::new(cpu)), ..Self::new(id, OnBoard) }
    }

    /// As [`Body::run`], counted.
    pub(crate) fn run(&mut self) -> io::Result<Exit> {
        let exit = self.body.run()?;
        self.exits.count(exit);
        Ok(exit)
    }

    /// Whether something has come for a vCPU that was halted in KVM's hands. Only KVM_RUN looks; with a kick already on its way
    /// it looks and returns, without entering the guest.
    pub(crate) fn has_woken(&mut self) -> io::Result<bool> {
        Thread::current().kick();
        let exit = self.run()?;
        signal::take_kick();
        Ok(exit != Exit::Interrupted || !self.body.is_halted())
    }

    pub(crate) fn pointers(&self) -> io::Result<(u64, u64)> {
        match &self.simulated {
            Some(cpu) => Ok((cpu.rip, cpu.general(General::Rsp))),
            None => self.body.pointers(),
        }
    }
}

impl Deref for Vcpu {
    type Target = dyn Body;

    fn deref(&self) -> &Self::Target {
        &*self.body
    }
}

/// The exits of one vCPU by kind, counted by its runner, on lines of their own: reading them disturbs no other data.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ExitCounts([AtomicU64; Exit::KINDS]);

impl ExitCounts {
    /// The vCPU came back. The caller has the vCPU, which one thread at a time has.
    pub(crate) fn count(&self, exit: Exit) {
        let count = &self.0[exit.kind()];
        // Relaxed, and two steps: there is no other writer, and the handoff of the vCPU to another thread orders these
        // as well.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// How often it came back so, by [`Exit::kind`].
    pub(crate) fn of(&self, kind: usize) -> u64 {
        // Relaxed: a figure.
        self.0[kind].load(Ordering::Relaxed)
    }

    pub(crate) fn total(&self) -> u64 {
        (0..Exit::KINDS).map(|kind| self.of(kind)).sum()
    }
}

/// The reason of [`Exit::Unexpected`] for an instruction that a simulated CPU does not carry out; its detail is the address.
pub(crate) const NOT_CARRIED_OUT: u32 = u32::MAX;

/// Declares [`Exit`]: each kind with its name in the record, in the record's order.
macro_rules! exits {
    ($($(#[$doc:meta])* $name:literal $variant:ident $(($value:ty))? $({ $($field:ident: $type:ty),* })?;)*) => {
        /// Why a vCPU came back from KVM_RUN.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Exit {
            $($(#[$doc])* $variant $(($value))? $({ $($field: $type),* })?,)*
        }

        impl Exit {
            /// Names of the kinds in the record.
            pub(crate) const NAMES: &'static [&'static str] = &[$($name),*];
            pub(crate) const KINDS: usize = Self::NAMES.len();

            pub(crate) fn kind(self) -> usize {
                enum Kind {
                    $($variant,)*
                }
                match self {
                    $(Self::$variant { .. } => Kind::$variant as usize,)*
                }
            }
        }
    };
}

exits! {
    /// A signal: the slice may have ended, or another thread wants the runner's attention.
    "signal" Interrupted;
    /// `pv_wait`.
    "pv_wait" Wait;
    /// `pv_kick` of this vCPU. The number is the guest's and unchecked.
    "pv_kick" Kick(u32);
    /// The vCPU gives up its slice, to this vCPU or to anyone. The number is the guest's and unchecked.
    "yield" Yield(Option<u32>);
    /// The boot vCPU is done.
    "booted" Booted;
    "left" Left;
    "panic" Panic;
    /// The guest took an exception that it does not handle.
    "exception" Exception;
    "console" Console(u8);
    /// HLT: nothing in this guest halts.
    "halt" Halt;
    "shutdown" Shutdown;
    /// Anything else, with KVM's reason and a detail that depends on it.
    "unexpected" Unexpected { reason: u32, detail: u64 };
    /// Other vCPUs are to drop the translations that they have cached.
    "invalidate" Invalidate;
    /// The vCPU passes this point of a lock's slow path. The number is the guest's and unchecked.
    "point" Point(u32);
    /// The fixed amount of work is done.
    "work_done" WorkDone;
    /// A device has served the access. (Linux guests only.)
    "device" Device;
    /// A pause loop was too long. (Simulated machines only.)
    "pause_loop" PauseLoop;
    "started" Started;
}

impl Exit {
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
