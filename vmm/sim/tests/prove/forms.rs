//! The instructions of the embedded guest image, and forms that it lacks.
#![expect(unsafe_code, reason = "instructions are assembled here and read as bytes")]

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
fn decode(piece: Range<u64>, code: &[u8], found: &mut Vec<(Instruction, Vec<u8>)>) {
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

/// The forms of all these instructions, each with up to eight of them: the first of those that differ in their registers.
pub(crate) fn forms(all: &[(Instruction, Vec<u8>)]) -> BTreeMap<String, Vec<(Instruction, Vec<u8>)>> {
    let mut forms: BTreeMap<String, BTreeMap<String, (Instruction, Vec<u8>)>> = BTreeMap::new();
    for (instruction, bytes) in all {
        let registers: Vec<_> = (0..instruction.op_count())
            .map(|operand| instruction.op_register(operand))
            .chain([instruction.memory_base(), instruction.memory_index()])
            .collect();
        let of_form = forms.entry(form(instruction)).or_default();
        of_form.entry(format!("{registers:?}")).or_insert_with(|| (*instruction, bytes.clone()));
    }
    let spread = |all: BTreeMap<String, (Instruction, Vec<u8>)>| {
        let step = all.len().div_ceil(8);
        all.into_values().step_by(step).collect()
    };
    forms.into_iter().map(|(form, all)| (form, spread(all))).collect()
}

// A user's lock object may have these.
std::arch::global_asm!(
    ".globl haltkick_others, haltkick_others_end",
    "haltkick_others:",
    "cqo; cdq; cwd; cdqe; cwde; cbw",
    "idiv rcx; idiv ecx; idiv cx; idiv cl; div cl; div cx",
    "imul rcx; imul cl; mul cx; mul ch; imul ax, cx",
    "movsx rax, bpl; movsx eax, word ptr [rsi]; movsxd rax, ecx; movzx eax, ah; mov dh, ah; add ch, bh",
    "rcl al, 1; rcl rax, cl; rcl ax, cl; rcr al, cl; rcr eax, cl; rcr rax, 1; rol al, cl; ror ax, cl",
    "shl al, cl; sar al, cl; shr word ptr [rsi], cl",
    "shld eax, ecx, cl; shrd eax, edx, cl; shld ax, dx, 5; shrd ax, dx, 5",
    "popcnt rax, rcx; lzcnt rax, rcx; lzcnt ax, cx; tzcnt ax, cx; movbe rax, [rsi]; movbe [rsi], ax",
    "btc eax, 33; btc word ptr [rsi], ax; btr eax, ecx",
    "cmpxchg bl, cl; cmpxchg ebx, ecx",
    "cmpxchg8b [rsi]; lock cmpxchg8b [rsi]; lock cmpxchg16b [rsi]",
    "cmpsb; repe cmpsq; repne scasb; lodsb",
    "pop qword ptr [rsp]; push qword ptr [rsp + 8]; popfq; sahf; leave",
    // Forms of instructions that not every CPU has.
    "andn eax, ecx, edx; andn rax, rcx, [rsi]; bextr eax, ecx, edx; bextr rax, [rsi], rcx",
    "blsi rax, rcx; blsi eax, [rsi]; blsmsk eax, ecx; blsmsk rax, [rsi]; blsr rax, rcx; blsr eax, [rsi]",
    "bzhi eax, ecx, edx; bzhi rax, [rsi], rcx; mulx rax, rcx, rbx; mulx eax, ecx, [rsi]; mulx rax, rax, rdx",
    "pdep eax, ecx, edx; pdep rax, rcx, [rsi]; pext rax, rcx, rdx; pext eax, ecx, [rsi]",
    "rorx eax, ecx, 0x25; rorx rax, [rsi], 0x3f; sarx eax, ecx, edx; sarx rax, [rsi], rcx",
    "shlx rax, rcx, rdx; shlx eax, [rsi], ecx; shrx eax, ecx, r9d; shrx r10, [rsi], rcx",
    "crc32 eax, cl; crc32 eax, ch; crc32 eax, cx; crc32 eax, ecx; crc32 rax, rcx",
    "crc32 eax, byte ptr [rsi]; crc32 rax, qword ptr [rsi]",
    "movnti [rsi], ecx; movnti [rsi], r9; clflush [rsi]; clflushopt [rsi]; clwb [rsi]",
    "haltkick_others_end:",
);

unsafe extern "C" {
    static haltkick_others: u8;
    static haltkick_others_end: u8;
}

/// Forms that today's image lacks.
pub(crate) fn others() -> Vec<(Instruction, Vec<u8>)> {
    let (begin, end) = (&raw const haltkick_others, &raw const haltkick_others_end);
    // SAFETY: these are labels of the code above, the second one behind it.
    let bytes = unsafe { std::slice::from_raw_parts(begin, end.offset_from_unsigned(begin)) };
    let mut others = Vec::new();
    decode(0..bytes.len() as u64, bytes, &mut others);
    assert_eq!(others.len(), 100);
    others
}
