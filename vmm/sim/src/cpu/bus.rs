//! The driver's side of the interpreter: a CPU's requests to the machine around it, and why it stopped running.

/// Bytes of a cache line.
pub const LINE: u64 = 64;

/// Kind of an access to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// An entry of a page table is read, and perhaps marked as used.
    Walk,
    /// Data is read.
    Read,
    /// Data is written.
    Write,
    /// Data is read and written by one instruction that other CPUs may come between.
    Modify,
    /// Data is read and written by one instruction that no other CPU comes between: LOCK, and XCHG with memory.
    Atomic,
}

impl Access {
    /// Whether the line may be another one afterwards.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Modify | Self::Atomic)
    }
}

/// Refusal: an access is not done now. The CPU stops before the instruction, as if it had not begun it, and asks anew when it runs
/// again: also for the accesses of the same instruction that were granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// The driver's answer to an access, which is done now unless it is refused.
pub type Granted = Result<(), Refused>;

/// The machine around a CPU: memory, and what a driver charges for it.
///
/// The interpreter is compiled for one such type, so that the methods cost what they do and no call. `now` is the number of instructions
/// that the CPU has completed in its life. What is granted takes place at once, before the next question of this or any other CPU: a
/// driver that lets CPUs run one at a time and stops them where others could see the difference gets a sequentially consistent machine.
pub trait Bus: Sized {
    /// The CPU is about to access the line at `line`, a physical address. Accesses that cross into another line ask for
    /// both, the lower first. Lines that instructions are read from are not asked for.
    fn touch(&mut self, now: u64, line: u64, access: Access) -> Granted;

    /// The CPU is about to access these two lines by one operand, and asks for both next.
    fn crosses(&mut self, _now: u64, _lines: [u64; 2], _access: Access) {}

    /// `bytes` (1 to 8) of memory, the first one lowest. They have been granted and lie in one page.
    fn load(&mut self, physical: u64, bytes: usize) -> u64;

    /// Stores the lowest `bytes` of `value`. Access to them has been granted.
    fn store(&mut self, physical: u64, bytes: usize, value: u64);

    /// Reading of RDTSC.
    fn clock(&mut self, now: u64) -> u64;

    /// A number for RDRAND and RDSEED: always the same one for an instruction that begins anew.
    fn random(&mut self, now: u64) -> Result<u64, Refused> {
        Ok(now.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// PAUSE. If it is refused, the instruction is done, and the CPU leaves with [`Event::Stopped`](crate::Event).
    fn pause(&mut self, _now: u64) -> Granted {
        Ok(())
    }

    /// A fence, for which stores have to be visible if it `drains`: all but LFENCE. A stop comes before it, as with accesses.
    fn fence(&mut self, _now: u64, _drains: bool) -> Granted {
        Ok(())
    }

    /// An element of a repeated string instruction is complete: if a later one is stopped, the instruction does not begin anew with
    /// this one.
    #[inline]
    fn element_done(&mut self) {}
}

/// Why a CPU stopped running, and what the driver has to do. Where it says nothing else the CPU stands behind the
/// instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It has executed as many instructions as it was to.
    Limit,
    /// The bus said so: before the access that it refused, behind the PAUSE.
    Stopped,
    /// OUT: the lowest `bytes` of `value`.
    #[expect(missing_docs, reason = "operands of the instruction")]
    Out { port: u16, bytes: u8, value: u32 },
    /// IN: the driver owes [`Cpu::answer`](crate::Cpu::answer).
    #[expect(missing_docs, reason = "operands of the instruction")]
    In { port: u16, bytes: u8 },
    /// HLT.
    Halt,
    /// RDMSR of a register that is not kept here: the driver owes [`Cpu::answer`](crate::Cpu::answer).
    #[expect(missing_docs, reason = "operand of the instruction")]
    ReadMsr { register: u32 },
    /// WRMSR of one.
    #[expect(missing_docs, reason = "operands of the instruction")]
    WriteMsr { register: u32, value: u64 },
    /// VMCALL or VMMCALL.
    Hypercall,
    /// It stands before the instruction at a watched address.
    Reached,
    /// It stands before an instruction that is not carried out here.
    NotCovered,
    /// It stands before an instruction whose exception, or before which an interrupt, could not be delivered: delivering
    /// `first` raised `second`. A real CPU would try twice more and reset.
    #[expect(missing_docs, reason = "described together")]
    ShutDown { first: Fault, second: Fault },
}

/// An exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its number.
    pub vector: u8,
    /// Error code that is pushed behind the frame, if there is one.
    pub error: Option<u32>,
}

impl Fault {
    pub(crate) const DIVIDE: Self = Self { vector: 0, error: None };
    pub(crate) const UNDEFINED: Self = Self { vector: 6, error: None };

    pub(crate) const fn protection(error: u32) -> Self {
        Self { vector: 13, error: Some(error) }
    }
}

/// An address at which no machine has memory.
const NOWHERE: u64 = 1 << 52;

/// A part of the machine's memory, in whole pages.
///
/// Each of several guests has physical addresses of its own, which begin at 0. Where they lie in the machine, the host's tables say:
/// here a start and a length. Translations that a CPU has cached lead to the machine's memory at once, so that only a walk of the
/// page tables needs to know the guest of an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// Its first byte: what is address 0 to the guest.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
}

impl Partition {
    /// All that there is.
    pub const WHOLE: Self = Self { start: 0, bytes: NOWHERE };

    /// The machine's address for an address of the guest: outside of all memory, if the guest has none there.
    #[inline(always)]
    pub(crate) fn place(self, physical: u64) -> u64 {
        if physical < self.bytes { self.start + physical } else { NOWHERE | physical }
    }
}
