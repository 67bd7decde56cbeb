//! A machine of one CPU with everything that an exception needs.
//!
//! ```text
//!  virtual     0 .. 2 MiB      pages of 4 KiB, at the same physical addresses
//!          2 MiB .. 4 MiB      one page of 2 MiB, likewise
//!          1 GiB .. 2 GiB      one page of 1 GiB: physical memory from 0 on once more
//! ```

#[path = "../../src/board/fuzzed/tables.rs"]
mod tables;

use std::collections::BTreeSet;

use haltkick_sim::board::Memory;
use haltkick_sim::{Access, Bus, Code, Cpu, Event, Granted, Refused, Registers, System, Table};

pub(crate) use tables::{DIRECTORY, IDT, PAGES, PML4, RIGHTS, TSS, USER_CODE, USER_DATA, set_gate};

pub(crate) const CODE: u64 = 0x1_0000;
pub(crate) const HANDLER: u64 = 0x1_1000;
pub(crate) const DATA: u64 = 0x2_0000;
pub(crate) const STACK: u64 = 0x3_0000;
pub(crate) const EXCEPTION_STACK: u64 = 0x3_8000;
pub(crate) const LARGE: u64 = 0x20_0000;
pub(crate) const HUGE: u64 = 0x4000_0000;

/// Accesses that no program here comes to.
const MOST_ASKED: usize = 1 << 18;

/// Memory, and what has been asked.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) ram: Vec<u8>,
    pub(crate) asked: Vec<(u64, Access)>,
    /// Which of the accesses that are new to it, by number, it refuses when it is first asked.
    pub(crate) refuse: fn(usize) -> bool,
    seen: BTreeSet<(u64, u64, Access)>,
}

impl Machine {
    /// Memory that does not exist would be zeros that nothing changes.
    fn assert_is_there(&self, physical: u64, bytes: usize) {
        assert!(physical + bytes as u64 <= self.ram.end(), "there is no memory at {physical:#x}");
    }
}

impl Bus for Machine {
    fn touch(&mut self, now: u64, line: u64, access: Access) -> Granted {
        assert!(self.asked.len() < MOST_ASKED, "an instruction asks for ever, after {now}");
        if self.seen.insert((now, line, access)) && (self.refuse)(self.seen.len()) {
            return Err(Refused);
        }
        self.asked.push((line, access));
        Ok(())
    }

    fn load(&mut self, physical: u64, bytes: usize) -> u64 {
        self.assert_is_there(physical, bytes);
        self.ram.load(physical, bytes)
    }

    fn store(&mut self, physical: u64, bytes: usize, value: u64) {
        self.assert_is_there(physical, bytes);
        self.ram.store(physical, bytes, value);
    }

    fn clock(&mut self, now: u64) -> u64 {
        now
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ring {
    Zero,
    Three,
}

pub(crate) struct Lab {
    pub(crate) machine: Machine,
    pub(crate) cpu: Cpu,
    pub(crate) code: Code<Machine>,
}

impl Lab {
    /// The CPU stands before `program`. Handlers halt.
    pub(crate) fn new(ring: Ring, program: &[u8]) -> Self {
        let machine =
            Machine { ram: memory(program), asked: Vec::new(), refuse: |_| false, seen: BTreeSet::new() };
        let registers = registers(ring);
        Self { machine, cpu: Cpu::new(7, &registers), code: Code::new(BTreeSet::new()) }
    }

    pub(crate) fn run(&mut self, instructions: u64) -> Event {
        let limit = self.cpu.instructions + instructions;
        self.cpu.run(&mut self.code, &mut self.machine, limit)
    }

    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Registers)) {
        let mut registers = self.cpu.registers();
        change(&mut registers);
        self.cpu.set_registers(&registers);
    }

    /// Changes a table entry of a page in the first 2 MiB.
    pub(crate) fn map(&mut self, virtual_page: u64, entry: u64) {
        self.machine.ram.store(PAGES + (virtual_page >> 12) * 8, 8, entry);
    }

    pub(crate) fn word(&self, address: u64) -> u64 {
        self.machine.ram.load(address, 8)
    }

    pub(crate) fn put(&mut self, address: u64, bytes: &[u8]) {
        self.machine.ram[address as usize..address as usize + bytes.len()].copy_from_slice(bytes);
    }
}

/// Memory with tables and a program at [`CODE`]. Handlers halt.
pub(crate) fn memory(program: &[u8]) -> Vec<u8> {
    let mut ram = vec![0_u8; 4 << 20];
    tables::write_tables(&mut ram, 512, HANDLER, EXCEPTION_STACK);
    ram.store(DIRECTORY + 8, 8, LARGE | tables::IS_PAGE | RIGHTS);
    ram.store(HANDLER, 1, 0xf4);
    ram[CODE as usize..CODE as usize + program.len()].copy_from_slice(program);
    ram
}

/// Registers of a CPU that stands before the program, with RDI at [`DATA`].
pub(crate) fn registers(ring: Ring) -> Registers {
    let mut registers = tables::registers(ring == Ring::Three, CODE, 0x202);
    (registers.general[4], registers.general[7]) = (STACK, DATA);
    registers
}
