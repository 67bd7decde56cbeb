//! The state of one CPU: plain data.

use crate::cpu::bus::{Access, Event, Fault, Partition};
use crate::cpu::flags::Flags;
use crate::cpu::tlb::Tlb;

/// Slots behind the general registers in [`Cpu::file`]: sources that are no registers of the instruction set.
pub(crate) mod slot {
    /// Always zero: an address without base or index.
    pub(crate) const ZERO: u8 = 16;
    pub(crate) const FS_BASE: u8 = 17;
    pub(crate) const GS_BASE: u8 = 18;
    /// Registers and sources in all.
    pub(crate) const USED: usize = 19;
    /// Added to the number of a register: its second-lowest byte (AH, CH, DH, BH).
    pub(crate) const HIGH_BYTE: u8 = 32;
}

/// A general register, in the order of the instruction encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the architecture's")]
pub enum General {
    Rax,
    Rcx,
    Rdx,
    Rbx,
    Rsp,
    Rbp,
    Rsi,
    Rdi,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
}

pub(crate) const RAX: u8 = General::Rax as u8;
pub(crate) const RCX: u8 = General::Rcx as u8;
pub(crate) const RDX: u8 = General::Rdx as u8;
pub(crate) const RBX: u8 = General::Rbx as u8;
pub(crate) const RSP: u8 = General::Rsp as u8;
pub(crate) const RBP: u8 = General::Rbp as u8;
pub(crate) const RSI: u8 = General::Rsi as u8;
pub(crate) const RDI: u8 = General::Rdi as u8;

/// A descriptor table, or the task state segment: where it lies and its last byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Linear address.
    pub base: u64,
    /// Offset of its last byte.
    pub limit: u32,
}

/// Registers that only ring 0 changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct System {
    /// ES, CS, SS, DS, FS, GS in the order of the instruction encoding. All segments are flat, but for the bases below.
    pub selectors: [u16; 6],
    /// Base of FS.
    pub fs_base: u64,
    /// Base of GS.
    pub gs_base: u64,
    /// Value that SWAPGS exchanges with the base of GS.
    pub kernel_gs_base: u64,
    /// CR0: PG and WP are looked at.
    pub cr0: u64,
    /// CR2.
    pub cr2: u64,
    /// CR3: the top-level page table.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// EFER: NXE is looked at.
    pub efer: u64,
    /// Global descriptor table.
    pub gdt: Table,
    /// Interrupt descriptor table.
    pub idt: Table,
    /// Task state segment.
    pub task: Table,
    /// Its selector.
    pub task_selector: u16,
}

/// Index of CS in [`System::selectors`].
pub const CS: usize = 1;
/// Index of SS in [`System::selectors`].
pub const SS: usize = 2;

/// All that the architecture says of a CPU. Two CPUs with equal registers, equal memory and no stale translations go on
/// alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// By [`General`].
    pub general: [u64; 16],
    /// Address of the next instruction.
    pub rip: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// The rest.
    pub system: System,
}

/// One simulated CPU.
#[derive(Clone, Debug, Default)]
pub struct Cpu {
    /// Number that the driver gives it.
    pub id: u32,
    /// Its number when it was made. The driver may give it another [`Self::id`] where it runs.
    pub number: u32,
    /// The [`Witness`](crate::board::Witness) is asked when it has completed this many instructions.
    pub asked_at: u64,
    /// The general registers, then [`slot`]s. A power of two, so that an index needs a mask and no check.
    pub(crate) file: [u64; 32],
    /// Address of the next instruction.
    pub rip: u64,
    pub(crate) flags: Flags,
    /// The privilege level of its code: 0 or 3.
    pub ring: u8,
    pub(crate) system: System,
    pub(crate) tlb: Tlb,
    pub(crate) partition: Partition,
    /// Instructions that it has completed in its life, but for those of the block that it is in. A repeated string instruction is one.
    pub instructions: u64,
    /// Exceptions in a row, up to the last one.
    pub(crate) excepted: Since,
    /// Elements of a repeated instruction that have been done since it began or went on.
    pub(crate) elements: Since,
    /// Why the last operation that did not go on did not.
    pub(crate) out: Out,
    /// The width, in bytes, of the IN that the driver owes an answer to.
    pub(crate) awaits: u8,
    /// [`Code::generation`](crate::cpu::code::Code) that its translations for stores know of.
    pub(crate) knows_code: u64,
    /// Bits: [`NMI_WAITS`], [`NMI_HANDLED`].
    pub(crate) nmi: u8,
}

/// Count of events that holds while a CPU has completed this many instructions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Since {
    pub(crate) instructions: u64,
    pub(crate) count: u64,
}

/// A non-maskable interrupt waits.
pub(crate) const NMI_WAITS: u8 = 1;
/// One is being handled: until IRET no other one is delivered.
pub(crate) const NMI_HANDLED: u8 = 1 << 1;

/// Why an operation did not go on to the next; why a walk, or the delivery of an exception, did not come to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Out {
    #[default]
    Nothing,
    /// The bus said so; the instruction is still to come.
    Stopped,
    /// No translation is cached.
    Fill { address: u64, access: Access },
    /// The instruction is still to come.
    Fault(Fault),
    /// The instruction, of `length` bytes, raises it on purpose (INT3, INT n).
    Trap { vector: u8, length: u8 },
    /// It is over, and the driver goes on.
    Done(Event),
    /// It is still to come (a repeated one, or one that is not carried out), and the driver goes on.
    Before(Event),
}

/// Registers of a CPU that instructions of user mode can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stand {
    /// The part of [`Cpu::file`] that is in use, the general registers first.
    pub(crate) file: [u64; slot::USED],
    pub(crate) rip: u64,
    pub(crate) rflags: u64,
}

impl Stand {
    /// The general registers that `other` has other values in, a bit each; `None` if more differs, but for flags.
    pub(crate) fn differs_in(&self, other: &Self) -> Option<u16> {
        let others = self.rip == other.rip && self.file[16..] == other.file[16..];
        let bit = |register: usize| u16::from(self.file[register] != other.file[register]) << register;
        others.then(|| (0..16).map(bit).sum())
    }
}

impl Cpu {
    pub(crate) fn stand(&self) -> Stand {
        let file = std::array::from_fn(|register| self.file[register]);
        Stand { file, rip: self.rip, rflags: self.flags.get() }
    }

    /// Goes back to an earlier stand, at which it had completed `instructions`.
    pub(crate) fn go_back(&mut self, stand: &Stand, instructions: u64) {
        self.file[..slot::USED].copy_from_slice(&stand.file);
        (self.rip, self.instructions) = (stand.rip, instructions);
        self.flags.set(stand.rflags);
    }

    /// CPU number `id` with these registers and nothing cached.
    #[must_use]
    pub fn new(id: u32, registers: &Registers) -> Self {
        let mut cpu = Self { id, number: id, partition: Partition::WHOLE, ..Self::default() };
        cpu.set_registers(registers);
        cpu
    }

    /// Its registers.
    #[must_use]
    pub fn registers(&self) -> Registers {
        let general = std::array::from_fn(|register| self.file[register]);
        let mut system = self.system.clone();
        system.fs_base = self.file[usize::from(slot::FS_BASE)];
        system.gs_base = self.file[usize::from(slot::GS_BASE)];
        Registers { general, rip: self.rip, rflags: self.flags.get(), system }
    }

    /// Changes all of them. What is cached of page tables is dropped.
    pub fn set_registers(&mut self, registers: &Registers) {
        self.file[..16].copy_from_slice(&registers.general);
        self.file[usize::from(slot::FS_BASE)] = registers.system.fs_base;
        self.file[usize::from(slot::GS_BASE)] = registers.system.gs_base;
        self.rip = registers.rip;
        self.flags.set(registers.rflags);
        self.system = registers.system.clone();
        self.ring = (self.system.selectors[CS] & 3) as u8;
        self.invalidate_all();
    }

    /// One general register.
    #[must_use]
    pub fn general(&self, register: General) -> u64 {
        self.file[register as usize]
    }

    /// Changes one.
    pub fn set_general(&mut self, register: General, value: u64) {
        self.file[register as usize] = value;
    }

    /// Changes the arithmetic flags to those bits of RFLAGS.
    pub fn set_arithmetic_flags(&mut self, rflags: u64) {
        self.flags.set_arithmetic(rflags);
    }

    /// Gives the IN, or RDMSR, that the CPU left with its answer.
    pub fn answer(&mut self, value: u64) {
        match std::mem::take(&mut self.awaits) {
            1 => self.put::<8>(RAX, value),
            2 => self.put::<16>(RAX, value),
            4 => self.put::<32>(RAX, value),
            8 => {
                self.put::<32>(RAX, value);
                self.put::<32>(RDX, value >> 32);
            }
            _ => {}
        }
    }

    /// A non-maskable interrupt is delivered before the next instruction, or when the handler of one has returned.
    pub fn raise_nmi(&mut self) {
        self.nmi |= NMI_WAITS;
    }

    /// Its guest has this part of the machine's memory. What is cached of page tables is dropped.
    pub fn set_partition(&mut self, partition: Partition) {
        self.partition = partition;
        self.invalidate_all();
    }

    /// Drops the translations of the page at `address`, whatever its size.
    pub fn invalidate_page(&mut self, address: u64) {
        self.tlb.drop_page(address);
    }

    /// Drops all translations.
    pub fn invalidate_all(&mut self) {
        self.tlb.clear();
    }

    /// A register's lowest `W` bits.
    #[inline(always)]
    pub(crate) fn get<const W: u32>(&self, register: u8) -> u64 {
        let value = self.file[usize::from(register & 31)];
        match W {
            8 => value >> ((register & slot::HIGH_BYTE) >> 2) & 0xff,
            _ => value & crate::cpu::flags::mask(W),
        }
    }

    /// Writes a register's lowest `W` bits: 32 clear those above, 8 and 16 leave them.
    #[inline(always)]
    pub(crate) fn put<const W: u32>(&mut self, register: u8, value: u64) {
        let place = &mut self.file[usize::from(register & 15)];
        match W {
            8 => {
                let shift = (register & slot::HIGH_BYTE) >> 2;
                *place = *place & !(0xff << shift) | (value & 0xff) << shift;
            }
            16 => *place = *place & !0xffff | value & 0xffff,
            32 => *place = value & 0xffff_ffff,
            _ => *place = value,
        }
    }
}
