//! Interpretation of the instruction, with page tables that map the same addresses.

#[path = "../../src/board/fuzzed/tables.rs"]
mod tables;

use std::collections::BTreeSet;

use haltkick_sim::board::Memory;
use haltkick_sim::{Access, Bus, Code, Cpu, Event, Granted, Registers, System, Table};

use crate::native::{CODE, End, MEMORY, MEMORY_BYTES, TAKEN};

/// The physical address of one in [`MEMORY`]. Pages are in opposite order, so that none follows its predecessor.
fn frame(address: u64) -> u64 {
    let (page, within) = ((address - MEMORY) / 4096, address % 4096);
    MEMORY + (MEMORY_BYTES as u64 / 4096 - 1 - page) * 4096 + within
}

/// A machine that charges for nothing.
pub(crate) struct Machine(Vec<u8>);

impl Bus for Machine {
    fn touch(&mut self, _: u64, _: u64, _: Access) -> Granted {
        Ok(())
    }

    fn load(&mut self, physical: u64, bytes: usize) -> u64 {
        assert!(physical + bytes as u64 <= self.0.end(), "there is no memory at {physical:#x}");
        self.0.load(physical, bytes)
    }

    fn store(&mut self, physical: u64, bytes: usize, value: u64) {
        assert!(physical + bytes as u64 <= self.0.end(), "there is no memory at {physical:#x}");
        self.0.store(physical, bytes, value);
    }

    fn clock(&mut self, _: u64) -> u64 {
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
        let mut ram = vec![0_u8; 2 << 20];
        tables::write_tables(&mut ram, 512, 0, 0);
        for page in (MEMORY..).step_by(4096).take(MEMORY_BYTES / 4096) {
            ram.store(tables::PAGES + (page >> 12) * 8, 8, frame(page) | tables::RIGHTS);
        }
        let mut registers = tables::registers(true, CODE, 2);
        (registers.system.selectors, registers.system.gs_base) = (selectors, MEMORY);
        // No gate is left: the first exception ends the run.
        registers.system.idt.limit = 0;
        let code = Code::new(BTreeSet::new());
        Self { machine: Machine(ram), code, cpu: Cpu::new(0, &registers), length: 0 }
    }

    pub(crate) fn set_code(&mut self, bytes: &[u8]) {
        let at = CODE as usize;
        self.machine.0[at..at + bytes.len()].copy_from_slice(bytes);
        self.length = bytes.len() as u64;
        self.code = Code::new(BTreeSet::new());
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
