//! Puts BPF instructions one after the other. The instruction set is that of RFC 9669, as far as it is used here: an
//! instruction is a little-endian 64-bit word of opcode, destination and source, offset, immediate.

use std::os::fd::{AsRawFd as _, BorrowedFd};

pub(super) const LOAD_64: u8 = 0x79;
pub(super) const LOAD_32: u8 = 0x61;
pub(super) const STORE_64: u8 = 0x7b;
pub(super) const STORE_32: u8 = 0x63;
pub(super) const STORE_8: u8 = 0x73;
pub(super) const STORE_32_IMMEDIATE: u8 = 0x62;
pub(super) const STORE_8_IMMEDIATE: u8 = 0x72;
pub(super) const STORE_64_IMMEDIATE: u8 = 0x7a;
pub(super) const ATOMIC_ADD_64: u8 = 0xdb;
const LOAD_NUMBER: u8 = 0x18;
pub(super) const MOVE: u8 = 0xbf;
pub(super) const MOVE_IMMEDIATE: u8 = 0xb7;
pub(super) const ADD_IMMEDIATE: u8 = 0x07;
pub(super) const SUBTRACT: u8 = 0x1f;
pub(super) const JUMP: u8 = 0x05;
pub(super) const JUMP_IF_EQUAL: u8 = 0x15;
pub(super) const JUMP_UNLESS_EQUAL: u8 = 0x55;
pub(super) const JUMP_IF_LESS: u8 = 0xa5;
const CALL: u8 = 0x85;
pub(super) const EXIT: u8 = 0x95;

/// Source of [`LOAD_NUMBER`]: the number is a map's descriptor.
const OF_DESCRIPTOR: u8 = 1;

/// The frame pointer.
pub(super) const STACK: u8 = 10;

/// Functions of the kernel.
#[derive(Clone, Copy)]
pub(super) enum Helper {
    MapLookUp = 1,
    MapUpdate = 2,
    TimeNs = 5,
    Cpu = 8,
    CurrentPidIn = 120,
    RingOutput = 130,
}

/// A place in the program, to jump to from before it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Label(usize);

#[derive(Default)]
pub(super) struct Assembler {
    words: Vec<u64>,
    /// Jumps whose targets are not known yet.
    jumps: Vec<(usize, Label)>,
    labels: usize,
}

impl Assembler {
    pub(super) fn put(&mut self, opcode: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        let word = u64::from(opcode)
            | u64::from(destination) << 8
            | u64::from(source) << 12
            | u64::from(offset as u16) << 16
            | u64::from(immediate as u32) << 32;
        self.words.push(word);
    }

    pub(super) fn call(&mut self, helper: Helper) {
        self.put(CALL, 0, 0, 0, helper as i32);
    }

    /// A place that is yet to come.
    pub(super) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    pub(super) fn jump(&mut self, opcode: u8, register: u8, value: i32, to: Label) {
        self.jumps.push((self.words.len(), to));
        self.put(opcode, register, 0, 0, value);
    }

    /// Everything that jumps to `label` lands here.
    pub(super) fn place(&mut self, label: Label) {
        let here = self.words.len();
        self.jumps.retain(|&(at, to)| {
            if to == label {
                // Counted from the instruction after the jump.
                self.words[at] |= u64::from((here - at - 1) as u16) << 16;
            }
            to != label
        });
    }

    /// This place, to jump back to.
    pub(super) fn here(&self) -> usize {
        self.words.len()
    }

    pub(super) fn jump_back(&mut self, opcode: u8, register: u8, value: i32, to: usize) {
        let offset = to as i64 - self.words.len() as i64 - 1;
        self.put(opcode, register, 0, offset as i16, value);
    }

    /// Copies a field of `bytes` (4 or 8) at `from` behind register `of` into the stack at `to`, by way of r1.
    pub(super) fn keep(&mut self, bytes: usize, of: u8, from: i16, to: i16) {
        let (load, store) = if bytes == 8 { (LOAD_64, STORE_64) } else { (LOAD_32, STORE_32) };
        self.put(load, 1, of, from, 0);
        self.put(store, STACK, 1, to, 0);
    }

    /// r0 := address of the value of the key at `key` in the stack, or 0.
    pub(super) fn look_up(&mut self, map: BorrowedFd<'_>, key: i16) {
        self.map(map);
        self.address_in_stack(2, key);
        self.call(Helper::MapLookUp);
    }

    /// The register := a number of 64 bits.
    pub(super) fn number(&mut self, register: u8, number: u64) {
        self.put(LOAD_NUMBER, register, 0, 0, number as u32 as i32);
        self.put(0, 0, 0, 0, (number >> 32) as u32 as i32);
    }

    /// r1 := the map.
    pub(super) fn map(&mut self, map: BorrowedFd<'_>) {
        self.put(LOAD_NUMBER, 1, OF_DESCRIPTOR, 0, map.as_raw_fd());
        self.put(0, 0, 0, 0, 0);
    }

    pub(super) fn address_in_stack(&mut self, register: u8, at: i16) {
        self.put(MOVE, register, STACK, 0, 0);
        self.put(ADD_IMMEDIATE, register, 0, 0, i32::from(at));
    }

    /// The end: the kernel wants a result, and ignores it.
    pub(super) fn finish(mut self) -> Vec<u64> {
        debug_assert!(self.jumps.is_empty(), "every label has its place");
        self.put(MOVE_IMMEDIATE, 0, 0, 0, 0);
        self.put(EXIT, 0, 0, 0, 0);
        self.words
    }
}
