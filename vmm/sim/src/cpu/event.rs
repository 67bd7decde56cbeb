//! Why a CPU stopped running.

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
