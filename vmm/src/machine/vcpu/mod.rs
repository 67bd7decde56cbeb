//! A vCPU run by KVM or by this process itself, and why it came back: parsed once, counted by kind, matched exhaustively ever after.

mod kvm;
mod native;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::{
    PORT_BOOTED, PORT_CONSOLE, PORT_EXCEPTION, PORT_EXIT, PORT_INVALIDATE, PORT_KICK, PORT_PANIC, PORT_POINT,
    PORT_STARTED, PORT_WAIT, PORT_WORK_DONE, PORT_YIELD, YIELD_TO_ANY,
};
use haltkick_sim::{Cpu, General};
use kvm_bindings::KVM_MP_STATE_RUNNABLE;

use crate::host::signal::{self, Thread};

pub(crate) use kvm::{KvmVcpu, Ports, reason_name};
pub(crate) use native::NativeVcpu;

/// A vCPU that some thread owns and may run.
pub(crate) struct Vcpu {
    /// Index in the guest.
    pub(crate) id: u32,
    /// Exits by kind.
    pub(crate) exits: Arc<ExitCounts>,
    body: Body,
}

enum Body {
    Kvm(KvmVcpu),
    Native(Box<NativeVcpu>),
    #[cfg(any(test, fuzzing))]
    MadeUp(MadeUpVcpu),
    Simulated(SimulatedVcpu),
}

impl Vcpu {
    /// Enters the guest until something needs the VMM. The calling thread keeps all signals blocked.
    ///
    /// # Errors
    /// What the system call fails with, other than being interrupted.
    pub(crate) fn run(&mut self) -> io::Result<Exit> {
        let exit = match &mut self.body {
            Body::Kvm(vcpu) => vcpu.run(),
            Body::Native(vcpu) => vcpu.run(),
            #[cfg(any(test, fuzzing))]
            Body::MadeUp(vcpu) => vcpu.run(),
            Body::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }?;
        self.came_back(exit);
        Ok(exit)
    }

    /// Gives it an NMI before its next instruction.
    ///
    /// # Errors
    /// What KVM says; threads have no such thing, and no translations of their own that could go stale.
    pub(crate) fn nmi(&self) -> io::Result<()> {
        match &self.body {
            Body::Kvm(vcpu) => Ok(vcpu.fd.nmi()?),
            Body::Native(_) | Body::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
            #[cfg(any(test, fuzzing))]
            Body::MadeUp(_) => Ok(()),
        }
    }

    /// Returns KVM's counts for it.
    ///
    /// # Errors
    /// Where there is no KVM, or one before Linux 5.14.
    pub(crate) fn kvm_stats(&self) -> io::Result<Vec<(String, u64)>> {
        match &self.body {
            Body::Kvm(vcpu) => vcpu.stats(),
            Body::Native(_) => Err(io::Error::other("threads run without KVM")),
            #[cfg(any(test, fuzzing))]
            Body::MadeUp(_) => Err(io::Error::other("it is made up")),
            Body::Simulated(_) => Err(io::Error::other("a simulated machine has no KVM")),
        }
    }

    /// Whether something has come for a vCPU that was halted in KVM's hands. Only KVM_RUN looks; with a kick already on its way
    /// it looks and returns, without entering the guest.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(crate) fn has_woken(&mut self) -> io::Result<bool> {
        Thread::current().kick();
        let exit = self.run()?;
        signal::take_kick();
        Ok(exit != Exit::Interrupted || !self.is_halted())
    }

    /// Whether it has halted in KVM's hands, or was never started, and nothing has woken it since. KVM_GET_MP_STATE waits for
    /// the end of KVM_RUN.
    pub(crate) fn is_halted(&self) -> bool {
        match &self.body {
            Body::Kvm(vcpu) => {
                vcpu.fd.get_mp_state().is_ok_and(|state| state.mp_state != KVM_MP_STATE_RUNNABLE)
            }
            Body::Native(_) | Body::Simulated(_) => false,
            #[cfg(any(test, fuzzing))]
            Body::MadeUp(_) => false,
        }
    }

    /// Returns its instruction pointer.
    pub(crate) fn instruction_pointer(&self) -> io::Result<u64> {
        match &self.body {
            Body::Kvm(vcpu) => Ok(vcpu.fd.get_regs()?.rip),
            Body::Native(vcpu) => Ok(vcpu.instruction_pointer()),
            #[cfg(any(test, fuzzing))]
            Body::MadeUp(_) => Ok(0x1000),
            Body::Simulated(vcpu) => {
                let here = vcpu.cpu.as_ref().map(|cpu| cpu.rip());
                here.ok_or_else(|| io::Error::other("it is on its pCPU"))
            }
        }
    }

    /// Returns its stack pointer.
    pub(crate) fn stack_pointer(&self) -> io::Result<u64> {
        match &self.body {
            Body::Kvm(vcpu) => Ok(vcpu.fd.get_regs()?.rsp),
            Body::Native(vcpu) => Ok(vcpu.stack_pointer()),
            #[cfg(any(test, fuzzing))]
            Body::MadeUp(_) => Ok(0x1000),
            Body::Simulated(vcpu) => {
                let here = vcpu.cpu.as_ref().map(|cpu| cpu.general(General::Rsp));
                here.ok_or_else(|| io::Error::other("it is on its pCPU"))
            }
        }
    }

    /// Notes an exit, from either kind of vCPU.
    pub(crate) fn came_back(&mut self, exit: Exit) {
        self.exits.count(exit);
    }

    /// Its guest has this part of a simulated machine's memory. Before it runs for the first time.
    pub(crate) fn set_partition(&mut self, partition: haltkick_sim::Partition) {
        if let Body::Simulated(SimulatedVcpu { cpu: Some(cpu), .. }) = &mut self.body {
            cpu.set_partition(partition);
        }
    }

    /// The CPU of a simulated vCPU, which a pCPU takes.
    pub(crate) fn take_simulated(&mut self) -> Option<Box<haltkick_sim::Cpu>> {
        match &mut self.body {
            Body::Simulated(vcpu) => vcpu.cpu.take(),
            _ => None,
        }
    }

    /// A pCPU gives it back.
    pub(crate) fn put_simulated(&mut self, cpu: Option<Box<haltkick_sim::Cpu>>) {
        if let Body::Simulated(vcpu) = &mut self.body {
            vcpu.cpu = cpu;
        }
    }
}

impl From<KvmVcpu> for Vcpu {
    fn from(vcpu: KvmVcpu) -> Self {
        Self { id: vcpu.id, exits: Arc::default(), body: Body::Kvm(vcpu) }
    }
}

impl From<NativeVcpu> for Vcpu {
    fn from(vcpu: NativeVcpu) -> Self {
        Self { id: vcpu.id, exits: Arc::default(), body: Body::Native(Box::new(vcpu)) }
    }
}

#[cfg(any(test, fuzzing))]
impl From<MadeUpVcpu> for Vcpu {
    fn from(vcpu: MadeUpVcpu) -> Self {
        Self { id: vcpu.id, exits: Arc::default(), body: Body::MadeUp(vcpu) }
    }
}

impl From<SimulatedVcpu> for Vcpu {
    fn from(vcpu: SimulatedVcpu) -> Self {
        Self { id: vcpu.id, exits: Arc::default(), body: Body::Simulated(vcpu) }
    }
}

/// The exits of one vCPU by kind, counted by its runner, on lines of their own: reading them disturbs no other data.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ExitCounts([AtomicU64; Exit::KINDS]);

impl ExitCounts {
    /// The vCPU came back. The caller has the vCPU, which one thread at a time has.
    fn count(&self, exit: Exit) {
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

    /// How often it came back.
    pub(crate) fn total(&self) -> u64 {
        (0..Exit::KINDS).map(|kind| self.of(kind)).sum()
    }
}

/// A vCPU without a guest: what it comes back with is made up.
#[cfg(any(test, fuzzing))]
pub(crate) struct MadeUpVcpu {
    /// Index in the guest.
    id: u32,
    comes_back: Box<dyn FnMut() -> io::Result<Exit> + Send>,
}

#[cfg(any(test, fuzzing))]
impl MadeUpVcpu {
    /// Number `id`, which comes back as `comes_back` says.
    pub(crate) fn new(id: u32, comes_back: impl FnMut() -> io::Result<Exit> + Send + 'static) -> Self {
        Self { id, comes_back: Box::new(comes_back) }
    }

    /// One KVM_RUN.
    fn run(&mut self) -> io::Result<Exit> {
        (self.comes_back)()
    }
}

/// A vCPU of a simulated machine: the registers of a CPU, while no pCPU has them.
pub(crate) struct SimulatedVcpu {
    /// Index in the guest.
    id: u32,
    /// `None` while it is on a pCPU.
    cpu: Option<Box<Cpu>>,
}

impl SimulatedVcpu {
    /// Number `id`, which is to begin with this.
    pub(crate) fn new(id: u32, cpu: Cpu) -> Self {
        Self { id, cpu: Some(Box::new(cpu)) }
    }
}

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
