//! Instructions that an object must not have: vector registers, which the guest does not save and a simulated machine does not
//! know, what a ring or a VMM would not let through, and what an interrupt on the same stack would spoil.

use std::collections::{BTreeSet, HashMap};

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};

use crate::image::object::layout::MOST_BYTES;
use crate::image::object::member::{Member, SectionId, Symbol, SymbolPlace};

/// Looks at the code of all sections that are needed, by member and index. They are known to be small.
pub(super) fn check(members: &[Member], reached: &BTreeSet<SectionId>) -> Result<(), String> {
    let mut functions = functions(members, reached);
    let mut info = InstructionInfoFactory::new();
    let mut left = MOST_BYTES;
    let is_code = |id: &SectionId| members[id.member].sections[id.section].is_executable();
    for id in reached.iter().copied().filter(is_code) {
        let (member, section) = (&members[id.member], id.section);
        let code = member.data(section);
        // Assembly may leave out where its functions begin and end.
        let of_section = functions.remove(&id).unwrap_or_else(|| vec![(0, code.len() as u64)]);
        for (start, end) in of_section {
            // Any number of functions may overlap, which would take as long as there are pairs of them.
            left = left
                .checked_sub(end - start)
                .ok_or_else(|| format!("has functions of more than {} KiB", MOST_BYTES >> 10))?;
            let within = &code[start as usize..end as usize];
            let mut frame = Frame::default();
            for instruction in Decoder::with_ip(64, within, start, DecoderOptions::NONE) {
                let below = frame.lies_above(&instruction, &mut info).then_some(BELOW_THE_STACK);
                if let Some((what, advice)) = wrong(&instruction, &mut info).or(below) {
                    let place = member.describe(section, instruction.ip());
                    return Err(format!("{what} at {place} ({instruction}): {advice}"));
                }
            }
        }
    }
    Ok(())
}

/// Beginnings and ends of the functions of the sections that are needed, sorted; nothing of a section where none has a length. One
/// without a length, of assembly, ends where the next begins.
fn functions(members: &[Member], reached: &BTreeSet<SectionId>) -> HashMap<SectionId, Vec<(u64, u64)>> {
    let mut functions: HashMap<_, Vec<_>> = HashMap::new();
    let mut labels: HashMap<_, Vec<_>> = HashMap::new();
    // Data may lie between functions.
    let mut starts: HashMap<_, Vec<_>> = HashMap::new();
    for (number, member) in members.iter().enumerate() {
        let is_marked = |symbol: &&Symbol| symbol.is_function || symbol.is_global || symbol.size > 0;
        for symbol in member.symbols.iter().filter(is_marked) {
            let SymbolPlace::Section(section) = symbol.place else { continue };
            let bytes = member.sections[section].file.len() as u64;
            let end = symbol.value.checked_add(symbol.size).filter(|&end| end <= bytes);
            let id = SectionId { member: number, section };
            let Some(end) = end.filter(|_| reached.contains(&id)) else { continue };
            starts.entry(id).or_default().push(symbol.value);
            match end {
                end if end == symbol.value => labels.entry(id).or_default().push(end),
                end if symbol.is_function => functions.entry(id).or_default().push((symbol.value, end)),
                _ => {}
            }
        }
    }
    for (id, of_section) in &mut functions {
        let starts = starts.entry(*id).or_default();
        starts.sort_unstable();
        let bytes = members[id.member].sections[id.section].file.len() as u64;
        for label in labels.remove(id).unwrap_or_default() {
            let next = starts.get(starts.partition_point(|&start| start <= label));
            of_section.push((label, next.copied().unwrap_or(bytes)));
        }
        of_section.sort_unstable();
        of_section.dedup();
    }
    functions
}

const GENERAL: &str = "compile with -mgeneral-regs-only, for a target without SSE";

const BELOW_THE_STACK: (&str, &str) = (
    "keeps something below the stack pointer",
    "an interrupt would overwrite it; compile with -mno-red-zone",
);

/// Returns the fault of an instruction and its remedy.
fn wrong(
    instruction: &Instruction,
    info: &mut InstructionInfoFactory,
) -> Option<(&'static str, &'static str)> {
    if instruction.is_invalid() {
        return Some(("has bytes that are no instruction", "data among code needs a section of its own"));
    }
    if let Some(wrong) = wrong_by_name(instruction.mnemonic()) {
        return Some(wrong);
    }
    if instruction.is_privileged() {
        return Some((
            "has a privileged instruction",
            "a lock runs in ring 3, too; haltkick.h has what it may ask for",
        ));
    }
    if is_far(instruction) {
        return Some(("has a far branch", "there is one code segment"));
    }
    let mut is_write_of_segment = false;
    for used in info.info(instruction).used_registers() {
        let register = used.register();
        if register.is_vector_register() || register.is_mm() || register.is_st() || register.is_k() {
            return Some(("uses a vector or floating-point register", GENERAL));
        }
        let writes = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
        is_write_of_segment |= register.is_segment_register() && writes;
    }
    if is_write_of_segment {
        return Some(("changes a segment register", "the guest finds its own data by them"));
    }
    uses_red_zone(instruction).then_some(BELOW_THE_STACK)
}

/// Returns the fault of an instruction that is wrong whatever its operands are. Some wait or begin transactions: these are not
/// privileged on every CPU, and hypervisors may refuse them.
fn wrong_by_name(mnemonic: Mnemonic) -> Option<(&'static str, &'static str)> {
    Some(match mnemonic {
        Mnemonic::Monitor
        | Mnemonic::Mwait
        | Mnemonic::Monitorx
        | Mnemonic::Mwaitx
        | Mnemonic::Umonitor
        | Mnemonic::Umwait
        | Mnemonic::Tpause => ("waits in the CPU", "wait with hk_pause, or with hk_wait in hk_pv_lock"),
        Mnemonic::Xbegin | Mnemonic::Xend | Mnemonic::Xabort | Mnemonic::Xtest => {
            ("begins or ends a transaction", "many CPUs have none: leave the elision of locks out")
        }
        Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Int | Mnemonic::Vmcall | Mnemonic::Vmmcall => {
            ("makes a system call or hypercall", "haltkick.h has what it may ask for")
        }
        Mnemonic::Wrfsbase | Mnemonic::Wrgsbase => {
            ("changes a segment's base", "the guest finds its own data there")
        }
        Mnemonic::Fxsave
        | Mnemonic::Fxrstor
        | Mnemonic::Xsave
        | Mnemonic::Xrstor
        | Mnemonic::Ldmxcsr
        | Mnemonic::Stmxcsr
        | Mnemonic::Emms
        | Mnemonic::Vzeroupper
        | Mnemonic::Vzeroall => ("uses vector state", GENERAL),
        _ => return None,
    })
}

fn is_far(instruction: &Instruction) -> bool {
    let is_far_return =
        instruction.flow_control() == FlowControl::Return && instruction.mnemonic() != Mnemonic::Ret;
    instruction.is_jmp_far_indirect() || instruction.is_call_far_indirect() || is_far_return
}

/// Whether it accesses memory below the stack pointer.
fn uses_red_zone(instruction: &Instruction) -> bool {
    has_memory(instruction)
        && instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None
        && instruction.memory_displacement64().cast_signed() < 0
}

/// The part of a function's stack below its frame pointer, as the instructions read in their order make it.
#[derive(Default)]
struct Frame {
    /// Most bytes between RBP and RSP so far; nothing where RBP is no frame pointer, or that is not known.
    bytes: Option<u64>,
}

impl Frame {
    /// Whether `instruction`, the next one, accesses memory below the stack pointer by the frame pointer.
    fn lies_above(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) -> bool {
        let is_of = |operand, register| {
            instruction.op_kind(operand) == OpKind::Register && instruction.op_register(operand) == register
        };
        let to_stack_pointer = is_of(0, Register::RSP);
        let is_immediate = matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
        match instruction.mnemonic() {
            Mnemonic::Mov if is_of(0, Register::RBP) && is_of(1, Register::RSP) => self.bytes = Some(0),
            Mnemonic::Push => self.bytes = self.bytes.map(|bytes| bytes.saturating_add(8)),
            Mnemonic::Sub | Mnemonic::Add if to_stack_pointer && is_immediate => {
                let by = instruction.immediate(1).cast_signed();
                let down = if instruction.mnemonic() == Mnemonic::Sub { by } else { by.saturating_neg() };
                // Code behind a return may have the frame that an instruction before the return gave back.
                let more = down.max(0).unsigned_abs();
                self.bytes = self.bytes.map(|bytes| bytes.saturating_add(more));
            }
            // As above.
            Mnemonic::Leave | Mnemonic::Pop => {}
            _ => {
                let changes = info.info(instruction).used_registers().iter().any(|used| {
                    let is_read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
                    let register = used.register().full_register();
                    !is_read && (register == Register::RBP || to_stack_pointer && register == Register::RSP)
                });
                if changes {
                    self.bytes = None;
                }
            }
        }
        let below = instruction.memory_displacement64().cast_signed().min(0).unsigned_abs();
        has_memory(instruction)
            && instruction.memory_base() == Register::RBP
            && instruction.memory_index() == Register::None
            && self.bytes.is_some_and(|bytes| below > bytes)
    }
}

/// Whether it accesses memory that it names. To compute an address is no access.
fn has_memory(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory)
        && instruction.mnemonic() != Mnemonic::Lea
}
