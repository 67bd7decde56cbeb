//! Interpretation of the instruction, with page tables that map the same addresses.

use haltkick_sim::board::Memory;
use haltkick_sim::{Access, Bus, Code, Cpu, Event, Moment, Registers, System, Verdict};

use crate::native::{CODE, End, MEMORY, MEMORY_BYTES, TAKEN};

const PML4: u64 = 0x1000;
const POINTERS: u64 = 0x2000;
const DIRECTORY: u64 = 0x3000;
const TABLE: u64 = 0x4000;
const CODE_FRAME: u64 = 0x5000;
const MEMORY_FRAME: u64 = 0x8000;
/// Present, writable, ring 3's.
const RIGHTS: u64 = 7;

/// The physical address of one in [`MEMORY`]. Pages are in opposite order, so that none follows its predecessor.
fn frame(address: u64) -> u64 {
    let (page, within) = ((address - MEMORY) / 4096, address % 4096);
    MEMORY_FRAME + (MEMORY_BYTES as u64 / 4096 - 1 - page) * 4096 + within
}

/// A machine that charges for nothing.
pub(crate) struct Machine(Vec<u8>);

impl Bus for Machine {
    fn touch(&mut self, _: Moment, _: u64, _: Access) -> Verdict {
        Verdict::Go
    }

    fn load(&mut self, physical: u64, bytes: usize) -> u64 {
        assert!(physical + bytes as u64 <= self.0.end(), "there is no memory at {physical:#x}");
        self.0.load(physical, bytes)
    }

    fn store(&mut self, physical: u64, bytes: usize, value: u64) {
        assert!(physical + bytes as u64 <= self.0.end(), "there is no memory at {physical:#x}");
        self.0.store(physical, bytes, value);
    }

    fn clock(&mut self, _: Moment) -> u64 {
        0
    }
}

pub(crate) struct Simulated {
    machine: Machine,
    code: Code<Machine>,
    cpu: Cpu,
    length: u64,
}

impl Simulated {
    pub(crate) fn new(selectors: [u16; 6]) -> Self {
        let mut ram = vec![0_u8; 0x10000];
        let index = |address: u64, level: u32| (address >> (12 + 9 * level) & 0x1ff) * 8;
        ram.store(PML4 + index(CODE, 3), 8, POINTERS | RIGHTS);
        ram.store(POINTERS + index(CODE, 2), 8, DIRECTORY | RIGHTS);
        ram.store(DIRECTORY + index(CODE, 1), 8, TABLE | RIGHTS);
        ram.store(TABLE + index(CODE, 0), 8, CODE_FRAME | RIGHTS);
        for page in (0..MEMORY_BYTES as u64).step_by(4096) {
            ram.store(TABLE + index(MEMORY + page, 0), 8, frame(MEMORY + page) | RIGHTS);
        }
        let system = System {
            selectors,
            gs_base: MEMORY,
            cr0: 1 << 31 | 1 << 16 | 1,
            cr3: PML4,
            cr4: 1 << 5,
            efer: 1 << 10 | 1 << 8,
            ..System::default()
        };
        let registers = Registers { system, ..Registers::default() };
        Self { machine: Machine(ram), code: Code::default(), cpu: Cpu::new(0, &registers), length: 0 }
    }

    pub(crate) fn set_code(&mut self, bytes: &[u8]) {
        let at = CODE_FRAME as usize;
        self.machine.0[at..at + bytes.len()].copy_from_slice(bytes);
        self.length = bytes.len() as u64;
        self.code = Code::default();
    }

    /// Changes what lies at a virtual address.
    pub(crate) fn fill(&mut self, address: u64, bytes: &[u8]) {
        for (address, byte) in (address..).zip(bytes) {
            self.machine.0.store(frame(address), 1, (*byte).into());
        }
    }

    /// Whether all of the memory that operands lie in holds the same as `real`.
    pub(crate) fn holds(&self, real: &[u8]) -> bool {
        (MEMORY..).step_by(4096).zip(real.chunks_exact(4096)).all(|(page, real)| {
            let at = frame(page) as usize;
            self.machine.0[at..at + 4096] == *real
        })
    }

    pub(crate) fn run(&mut self, general: &mut [u64; 16], rflags: &mut u64) -> End {
        let mut registers = self.cpu.registers();
        (registers.general, registers.rflags, registers.rip) = (*general, *rflags, CODE);
        self.cpu.set_registers(&registers);
        let event = self.cpu.run(&mut self.code, &mut self.machine, self.cpu.instructions + 1);
        let registers = self.cpu.registers();
        (*general, *rflags) = (registers.general, registers.rflags);
        match event {
            Event::Limit if registers.rip == CODE + self.length => End::FellThrough,
            Event::Limit if registers.rip == TAKEN => End::Taken,
            Event::ShutDown { first, .. } if registers.rip == CODE => End::Fault(first.vector),
            other => panic!("{other:?} at {:#x}", registers.rip),
        }
    }
}
