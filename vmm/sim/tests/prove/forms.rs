//! The instructions of the embedded guest image.

use std::collections::BTreeMap;
use std::ops::Range;

use haltkick_vmm::Image;
use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind, Register};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionKind};

/// Code for modes of 16 and 32 bits, through which a guest without our VMM gets to 64 bits: from one symbol to another. No
/// simulated CPU is ever in these modes.
const OTHER_MODES: [(&str, &str); 2] =
    [("haltkick_pvh", "haltkick_long_mode"), ("haltkick_trampoline", "haltkick_vectors")];

/// All instructions of the image's executable sections, with their bytes: decoded from each symbol to the next, so that what lies
/// between two functions cannot hide the beginning of the second.
pub(crate) fn instructions() -> Vec<(Instruction, Vec<u8>)> {
    let file = object::File::parse(Image::embedded_elf()).expect("the image is an ELF file");
    let address = |name| file.symbol_by_name(name).unwrap_or_else(|| panic!("{name} is a symbol")).address();
    let others = OTHER_MODES.map(|(from, to)| address(from)..address(to));
    assert!(
        others.iter().all(|other| other.start < other.end && other.end - other.start < 256),
        "{others:x?}"
    );
    let mut found = Vec::new();
    for section in file.sections() {
        if section.kind() != SectionKind::Text {
            continue;
        }
        let whole = section.address()..section.address() + section.size();
        let code = section.data().expect("code has bytes");
        let mut starts: Vec<_> =
            file.symbols().map(|symbol| symbol.address()).filter(|at| whole.contains(at)).collect();
        starts.extend([whole.start, whole.end]);
        starts.sort_unstable();
        starts.dedup();
        for piece in starts.windows(2).map(|pair| pair[0]..pair[1]) {
            if !others.iter().any(|other| other.contains(&piece.start)) {
                decode(
                    piece.clone(),
                    &code[(piece.start - whole.start) as usize..(piece.end - whole.start) as usize],
                    &mut found,
                );
            }
        }
    }
    found
}

/// Adds the instructions of `code`, which lies at `piece`.
pub(crate) fn decode(piece: Range<u64>, code: &[u8], found: &mut Vec<(Instruction, Vec<u8>)>) {
    for instruction in Decoder::with_ip(64, code, piece.start, DecoderOptions::NONE) {
        let at = (instruction.ip() - piece.start) as usize;
        // Zeros that the assembler has filled a piece up with: an odd one at the end is no instruction.
        if instruction.is_invalid() && code[at..].iter().all(|byte| *byte == 0) {
            break;
        }
        found.push((instruction, code[at..at + instruction.len()].to_vec()));
    }
}

/// Form of an instruction: its encoding, the places of its operands, and its prefixes.
fn form(instruction: &Instruction) -> String {
    let operand = |number| match (instruction.op_kind(number), instruction.op_register(number)) {
        (OpKind::Register, Register::AH | Register::BH | Register::CH | Register::DH) => "high byte".into(),
        (kind, _) => format!("{kind:?}"),
    };
    let operands: Vec<String> = (0..instruction.op_count()).map(operand).collect();
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let (code, segment) = (instruction.code(), instruction.segment_prefix());
    format!("{code:?} {operands:?}, LOCK {}, REP {repeats}, {segment:?}", instruction.has_lock_prefix())
}

/// The forms of the image, each with some of its instructions: the first of those that differ in their registers.
pub(crate) fn forms(samples: usize) -> BTreeMap<String, Vec<(Instruction, Vec<u8>)>> {
    let mut forms: BTreeMap<String, BTreeMap<String, (Instruction, Vec<u8>)>> = BTreeMap::new();
    for (instruction, bytes) in instructions() {
        let registers: Vec<_> = (0..instruction.op_count())
            .map(|operand| instruction.op_register(operand))
            .chain([instruction.memory_base(), instruction.memory_index()])
            .collect();
        let of_form = forms.entry(form(&instruction)).or_default();
        of_form.entry(format!("{registers:?}")).or_insert((instruction, bytes));
    }
    let spread = |all: BTreeMap<String, (Instruction, Vec<u8>)>| {
        let step = all.len().div_ceil(samples);
        all.into_values().step_by(step).collect()
    };
    forms.into_iter().map(|(form, all)| (form, spread(all))).collect()
}
