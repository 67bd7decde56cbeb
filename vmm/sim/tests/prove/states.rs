//! Random states for one instruction: registers whose memory operands lie in [`MEMORY`](crate::native::MEMORY), and whose
//! values are those at which results and flags change.

use haltkick_fuzzing::Random;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::native::{CODE, MEMORY, TAKEN};

/// The part of the memory that operands lie in, with a border between two pages inside.
pub(crate) const WINDOW: std::ops::Range<u64> = MEMORY + 0x1e00..MEMORY + 0x2200;
/// Bytes at the window's ends that operands other than the first leave free.
const MARGIN: u64 = 256;

/// A number as programs have them.
fn value(choice: &mut Random) -> u64 {
    let random = choice.draw();
    match choice.draw() % 8 {
        0..=2 => random,
        3 => random % 40,
        4 => (random % 40).wrapping_neg(),
        5 => (1_u64 << (random % 64)).wrapping_add(random >> 32 & 3).wrapping_sub(1),
        6 => random & 0xffff_ffff,
        _ => (random as i32 as i64 >> (random >> 32 & 31)) as u64,
    }
}

/// One state before the instruction.
pub(crate) struct State {
    pub(crate) general: [u64; 16],
    pub(crate) rflags: u64,
}

/// Changes the bytes of an instruction that name an absolute place to one that exists here: the operand in memory to `target`, a
/// branch to [`TAKEN`].
pub(crate) fn relocate(instruction: &Instruction, bytes: &[u8], target: u64) -> Vec<u8> {
    let mut moved = bytes.to_vec();
    let mut decoder = Decoder::with_ip(64, bytes, CODE, DecoderOptions::NONE);
    let here = decoder.decode();
    let offsets = decoder.get_constant_offsets(&here);
    let end = CODE + bytes.len() as u64;
    let mut put = |offset: usize, size: usize, value: u64| {
        moved[offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
    };
    if is_absolute(instruction) {
        let base = if instruction.memory_segment() == Register::GS { MEMORY } else { 0 };
        let from = if instruction.is_ip_rel_memory_operand() { end } else { 0 };
        put(offsets.displacement_offset(), offsets.displacement_size(), target.wrapping_sub(base + from));
    }
    if instruction.op0_kind() == OpKind::NearBranch64 {
        put(offsets.immediate_offset(), offsets.immediate_size(), TAKEN.wrapping_sub(end));
    }
    moved
}

fn has_memory(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory)
}

/// Whether an operand in memory has no register in its address.
pub(crate) fn is_absolute(instruction: &Instruction) -> bool {
    let base = instruction.memory_base();
    has_memory(instruction)
        && matches!(base, Register::None | Register::RIP)
        && instruction.memory_index() == Register::None
}

fn number(register: Register) -> usize {
    register.full_register() as usize - Register::RAX as usize
}

/// Draws a state and the memory in `window`, which begins at [`WINDOW`].
pub(crate) fn draw(random: &mut Random, instruction: &Instruction, target: u64, window: &mut [u8]) -> State {
    let general = std::array::from_fn(|_| value(random));
    for word in window.chunks_exact_mut(8) {
        word.copy_from_slice(&value(random).to_le_bytes());
    }
    let mut state = State { general, rflags: random.draw() & 0x8d5 };
    shape_values(random, instruction, &mut state);
    let target = point_at(instruction, &mut state.general, target);
    shape_memory(random, instruction, &state.general, target, window);
    state
}

/// Registers that instructions give a meaning of their own.
fn shape_values(random: &mut Random, instruction: &Instruction, state: &mut State) {
    let general = &mut state.general;
    let middle = |random: &mut Random| {
        WINDOW.start + MARGIN + random.draw() % (WINDOW.end - WINDOW.start - 2 * MARGIN)
    };
    if instruction.is_stack_instruction() || instruction.mnemonic() == Mnemonic::Leave {
        general[number(Register::RSP)] = middle(random);
        general[number(Register::RBP)] = middle(random);
    }
    if instruction.is_string_instruction() {
        general[number(Register::RSI)] = middle(random);
        general[number(Register::RDI)] = middle(random);
        general[number(Register::RCX)] = random.draw() % 9;
        state.rflags |= (random.draw() % 2) << 10;
    }
    let is_bit =
        matches!(instruction.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
    if is_bit && instruction.op0_kind() == OpKind::Memory && instruction.op1_kind() == OpKind::Register {
        general[number(instruction.op1_register())] = (random.draw() % 1024).wrapping_sub(512);
    }
    // Else nearly every division would overflow.
    if matches!(instruction.mnemonic(), Mnemonic::Div | Mnemonic::Idiv) && !random.draw().is_multiple_of(4) {
        general[number(Register::RDX)] = random.draw() % 4;
        if random.draw().is_multiple_of(2) {
            general[number(Register::RAX)] &= 0xff;
        }
    }
    if instruction.mnemonic() == Mnemonic::Cmpxchg
        && instruction.op0_kind() == OpKind::Register
        && random.draw().is_multiple_of(2)
    {
        general[number(instruction.op0_register())] = general[0];
    }
    let goes_to_register = instruction.op0_kind() == OpKind::Register;
    if goes_to_register
        && matches!(instruction.flow_control(), FlowControl::IndirectBranch | FlowControl::IndirectCall)
    {
        general[number(instruction.op0_register())] = TAKEN;
    }
}

/// Makes the operand in memory lie at `target`, or a few bytes before it. Where it lies.
fn point_at(instruction: &Instruction, general: &mut [u64; 16], target: u64) -> u64 {
    if !has_memory(instruction) || is_absolute(instruction) || instruction.mnemonic() == Mnemonic::Lea {
        return target;
    }
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let segment = if instruction.memory_segment() == Register::GS { MEMORY } else { 0 };
    let displacement = instruction.memory_displacement64().wrapping_add(segment);
    let scale = u64::from(instruction.memory_index_scale());
    // The part of one register in the address.
    let (register, factor) = match (base, index) {
        (base, Register::None) => (base, 1),
        (Register::None, index) => (index, scale),
        (base, index) if base == index => (base, 1 + scale),
        (base, index) => {
            let rest = general[number(index)] % 64;
            general[number(index)] = rest;
            let value = target.wrapping_sub(displacement).wrapping_sub(rest * scale);
            general[number(base)] = value;
            return target;
        }
    };
    let distance = target.wrapping_sub(displacement) as i64;
    let value = distance.div_euclid(factor as i64);
    general[number(register)] = value as u64;
    target - distance.rem_euclid(factor as i64) as u64
}

/// Memory that instructions give a meaning of their own.
fn shape_memory(
    random: &mut Random,
    instruction: &Instruction,
    general: &[u64; 16],
    target: u64,
    window: &mut [u8],
) {
    let mut put = |address: u64, value: u64| {
        let at = address.wrapping_sub(WINDOW.start) as usize;
        if let Some(place) = window.get_mut(at..at + 8) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    };
    let top = general[number(Register::RSP)];
    match instruction.mnemonic() {
        Mnemonic::Ret => put(top, TAKEN),
        // No TF, AC, NT: the test's own code runs with what comes of it.
        Mnemonic::Popfq => put(top, random.draw() & 0x3ed5 | 2),
        Mnemonic::Cmpxchg if random.draw().is_multiple_of(2) => put(target, general[0]),
        Mnemonic::Cmpxchg8b if random.draw().is_multiple_of(2) => {
            put(target, general[0] & 0xffff_ffff | general[number(Register::RDX)] << 32);
        }
        Mnemonic::Cmpxchg16b if random.draw().is_multiple_of(2) => {
            put(target, general[0]);
            put(target + 8, general[number(Register::RDX)]);
        }
        Mnemonic::Jmp | Mnemonic::Call if instruction.op0_kind() == OpKind::Memory => put(target, TAKEN),
        _ => {}
    }
}

/// Address for an operand. A locked operand is aligned: across a line's border it would lock the whole machine.
pub(crate) fn target(random: &mut Random, instruction: &Instruction) -> u64 {
    let at = WINDOW.start + MARGIN + random.draw() % (WINDOW.end - WINDOW.start - 2 * MARGIN);
    let locked = instruction.has_lock_prefix() || instruction.mnemonic() == Mnemonic::Xchg;
    if locked { at & !15 } else { at }
}
