//! No guest can come to an instruction that the interpreter lacks. For every form in the guest image it does what the
//! CPU at hand does: results, memory, flags, exceptions.
//!
//! `HALTKICK_PROVE_STATES` states of each form are tried, a thousand by default.

mod forms;
mod native;
mod simulated;
mod states;

use std::collections::BTreeSet;

use haltkick_sim::covers;
use iced_x86::{CpuidFeature, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, RflagsBits};

use native::{End, MEMORY, Native};
use simulated::{Machine, Simulated};
use states::{Random, WINDOW};

const CARRY: u64 = 1;
const PARITY: u64 = 1 << 2;
const ADJUST: u64 = 1 << 4;
const ZERO: u64 = 1 << 6;
const SIGN: u64 = 1 << 7;
const OVERFLOW: u64 = 1 << 11;

/// Instructions of an image that no process can execute for comparison: they need a privilege, leave the process, or say what
/// differs between two machines.
const NOT_PROVABLE: [&str; 21] = [
    "Cli", "Cpuid", "Hlt", "Int3", "Invlpg", "Iretq", "Lgdt", "Lidt", "Ltr", "Mov_Sreg", "Mov_cr", "Out",
    "Outsb", "Rdmsr", "Rdtsc", "Sti", "Swapgs", "Vmcall", "Vmmcall", "Wrmsr", "In",
];

fn why_not_provable(instruction: &Instruction) -> Option<String> {
    let mnemonic = format!("{:?}", instruction.mnemonic());
    let to = instruction.op0_register();
    let name = match instruction.mnemonic() {
        Mnemonic::Mov if to.is_segment_register() => "Mov_Sreg".to_owned(),
        Mnemonic::Mov if to.is_cr() || instruction.op1_register().is_cr() => "Mov_cr".to_owned(),
        _ => mnemonic,
    };
    NOT_PROVABLE.contains(&name.as_str()).then_some(name)
}

/// Flags that an instruction leaves undefined in this state.
fn undefined(instruction: &Instruction, general: &[u64; 16], width: u32) -> u64 {
    let bits = [
        (RflagsBits::CF, CARRY),
        (RflagsBits::PF, PARITY),
        (RflagsBits::AF, ADJUST),
        (RflagsBits::ZF, ZERO),
        (RflagsBits::SF, SIGN),
        (RflagsBits::OF, OVERFLOW),
    ];
    let undefined = instruction.rflags_undefined();
    let by_form: u64 = bits.into_iter().filter(|(bit, _)| undefined & bit != 0).map(|(_, flag)| flag).sum();
    let Some(count) = shift_count(instruction, general, width) else { return by_form };
    let rotates =
        matches!(instruction.mnemonic(), Mnemonic::Rol | Mnemonic::Ror | Mnemonic::Rcl | Mnemonic::Rcr);
    match count {
        0 => 0,
        1 => ADJUST,
        _ if rotates => OVERFLOW,
        _ if count >= width => OVERFLOW | ADJUST | CARRY,
        _ => OVERFLOW | ADJUST,
    }
}

/// The masked count of a shift or rotation.
fn shift_count(instruction: &Instruction, general: &[u64; 16], width: u32) -> Option<u32> {
    use Mnemonic::{Rcl, Rcr, Rol, Ror, Sal, Sar, Shl, Shld, Shr, Shrd};
    let is_shift =
        matches!(instruction.mnemonic(), Rcl | Rcr | Rol | Ror | Sal | Sar | Shl | Shld | Shr | Shrd);
    let last = instruction.op_count().checked_sub(1).filter(|_| is_shift)?;
    let count = match instruction.op_kind(last) {
        OpKind::Register => general[1] as u32,
        _ => instruction.immediate(last) as u32,
    };
    Some(count & if width == 64 { 63 } else { 31 })
}

fn width(instruction: &Instruction) -> u32 {
    match instruction.op0_kind() {
        OpKind::Register => instruction.op0_register().size() as u32 * 8,
        _ => instruction.memory_size().size() as u32 * 8,
    }
}

/// Whether the state makes the result undefined, not only flags.
fn has_undefined_result(instruction: &Instruction, general: &[u64; 16], rflags: u64) -> bool {
    let width = width(instruction);
    let long_shift = shift_count(instruction, general, width).is_some_and(|count| count > width)
        && matches!(instruction.mnemonic(), Mnemonic::Shld | Mnemonic::Shrd);
    // For zero some processors clear the upper half of the result.
    let nothing_found = matches!(instruction.mnemonic(), Mnemonic::Bsf | Mnemonic::Bsr) && rflags & ZERO != 0;
    long_shift || nothing_found
}

/// One instruction in `count` states.
fn compare(
    native: &mut Native,
    simulated: &mut Simulated,
    random: &mut Random,
    system_flags: u64,
    (instruction, bytes): &(Instruction, Vec<u8>),
    count: u64,
) {
    let window = (WINDOW.start - MEMORY) as usize..(WINDOW.end - MEMORY) as usize;
    // The bytes of an absolute address are part of the code: decoding it anew for each state would take most of the time.
    let per_place = if states::is_absolute(instruction) { 50 } else { u64::MAX };
    let mut target = 0;
    for number in 0..count {
        if number % per_place == 0 {
            target = states::target(random, instruction);
            let code = states::relocate(instruction, bytes, target);
            native.set_code(&code);
            simulated.set_code(&code);
        } else if !states::is_absolute(instruction) {
            target = states::target(random, instruction);
        }
        let before = states::draw(random, instruction, target, &mut native.memory()[window.clone()]);
        let filled = native.memory()[window.clone()].to_vec();
        simulated.fill(WINDOW.start, &filled);
        let (mut real, mut real_flags) = (before.general, before.rflags | system_flags);
        let (mut ours, mut our_flags) = (real, real_flags);
        let real_end = native.run(&mut real, &mut real_flags);
        let our_end = simulated.run(&mut ours, &mut our_flags);
        let describe =
            || format!("{instruction} {bytes:x?} from {:x?}, flags {:#x}", before.general, before.rflags);
        assert_eq!(our_end, real_end, "{}", describe());
        if has_undefined_result(instruction, &before.general, real_flags) {
            continue;
        }
        let masked = match real_end {
            // RF is set in the flags that a fault leaves, and is ignored otherwise.
            End::Fault(_) => 1 << 16,
            _ => undefined(instruction, &before.general, width(instruction)),
        };
        assert_eq!(
            ours,
            real,
            "registers, ours and real (in hexadecimal {ours:x?}, {real:x?}) of {}",
            describe()
        );
        let difference = (our_flags ^ real_flags) & !masked;
        assert!(difference == 0, "flags {our_flags:#x}, really {real_flags:#x}, of {}", describe());
        assert!(simulated.holds(native.memory()), "memory of {}", describe());
    }
}

/// Forms that today's image lacks, and a user's lock object may have.
const OTHERS: [&[u8]; 61] = [
    &[0x48, 0x99],                   // cqo
    &[0x99],                         // cdq
    &[0x66, 0x99],                   // cwd
    &[0x48, 0x98],                   // cdqe
    &[0x98],                         // cwde
    &[0x66, 0x98],                   // cbw
    &[0x48, 0xf7, 0xf9],             // idiv rcx
    &[0xf7, 0xf9],                   // idiv ecx
    &[0x66, 0xf7, 0xf9],             // idiv cx
    &[0xf6, 0xf9],                   // idiv cl
    &[0xf6, 0xf1],                   // div cl
    &[0x66, 0xf7, 0xf1],             // div cx
    &[0x48, 0xf7, 0xe9],             // imul rcx
    &[0xf6, 0xe9],                   // imul cl
    &[0x66, 0xf7, 0xe1],             // mul cx
    &[0xf6, 0xe5],                   // mul ch
    &[0x66, 0x0f, 0xaf, 0xc1],       // imul ax, cx
    &[0x48, 0x0f, 0xbe, 0xc5],       // movsx rax, bpl
    &[0x0f, 0xbf, 0x06],             // movsx eax, word [rsi]
    &[0x48, 0x63, 0xc1],             // movsxd rax, ecx
    &[0x0f, 0xb6, 0xc4],             // movzx eax, ah
    &[0x88, 0xe6],                   // mov dh, ah
    &[0x00, 0xfd],                   // add ch, bh
    &[0xd0, 0xd0],                   // rcl al, 1
    &[0x48, 0xd3, 0xd0],             // rcl rax, cl
    &[0x66, 0xd3, 0xd0],             // rcl ax, cl
    &[0xd2, 0xd8],                   // rcr al, cl
    &[0xd3, 0xd8],                   // rcr eax, cl
    &[0x48, 0xd1, 0xd8],             // rcr rax, 1
    &[0xd2, 0xc0],                   // rol al, cl
    &[0x66, 0xd3, 0xc8],             // ror ax, cl
    &[0xd2, 0xe0],                   // shl al, cl
    &[0xd2, 0xf8],                   // sar al, cl
    &[0x66, 0xd3, 0x2e],             // shr word [rsi], cl
    &[0x0f, 0xa5, 0xc8],             // shld eax, ecx, cl
    &[0x0f, 0xad, 0xd0],             // shrd eax, edx, cl
    &[0x66, 0x0f, 0xa4, 0xd0, 0x05], // shld ax, dx, 5
    &[0x66, 0x0f, 0xac, 0xd0, 0x05], // shrd ax, dx, 5
    &[0xf3, 0x48, 0x0f, 0xb8, 0xc1], // popcnt rax, rcx
    &[0xf3, 0x48, 0x0f, 0xbd, 0xc1], // lzcnt rax, rcx
    &[0xf3, 0x66, 0x0f, 0xbd, 0xc1], // lzcnt ax, cx
    &[0xf3, 0x66, 0x0f, 0xbc, 0xc1], // tzcnt ax, cx
    &[0x48, 0x0f, 0x38, 0xf0, 0x06], // movbe rax, [rsi]
    &[0x66, 0x0f, 0x38, 0xf1, 0x06], // movbe [rsi], ax
    &[0x0f, 0xba, 0xf8, 0x21],       // btc eax, 33
    &[0x66, 0x0f, 0xbb, 0x06],       // btc [rsi], ax
    &[0x0f, 0xb3, 0xc8],             // btr eax, ecx
    &[0x0f, 0xb0, 0xcb],             // cmpxchg bl, cl
    &[0x0f, 0xb1, 0xcb],             // cmpxchg ebx, ecx
    &[0x0f, 0xc7, 0x0e],             // cmpxchg8b [rsi]
    &[0xf0, 0x0f, 0xc7, 0x0e],       // lock cmpxchg8b [rsi]
    &[0xf0, 0x48, 0x0f, 0xc7, 0x0e], // lock cmpxchg16b [rsi]
    &[0xa6],                         // cmpsb
    &[0xf3, 0x48, 0xa7],             // repe cmpsq
    &[0xf2, 0xae],                   // repne scasb
    &[0xac],                         // lodsb
    &[0x8f, 0x04, 0x24],             // pop [rsp]
    &[0xff, 0x74, 0x24, 0x08],       // push [rsp + 8]
    &[0x9d],                         // popfq
    &[0x9e],                         // sahf
    &[0xc9],                         // leave
];

/// Further ones, of instructions that not every CPU has.
const NEWER: [&[u8]; 39] = [
    &[0xc4, 0xe2, 0x70, 0xf2, 0xc2],       // andn eax, ecx, edx
    &[0xc4, 0xe2, 0xf0, 0xf2, 0x06],       // andn rax, rcx, qword [rsi]
    &[0xc4, 0xe2, 0x68, 0xf7, 0xc1],       // bextr eax, ecx, edx
    &[0xc4, 0xe2, 0xf0, 0xf7, 0x06],       // bextr rax, qword [rsi], rcx
    &[0xc4, 0xe2, 0xf8, 0xf3, 0xd9],       // blsi rax, rcx
    &[0xc4, 0xe2, 0x78, 0xf3, 0x1e],       // blsi eax, dword [rsi]
    &[0xc4, 0xe2, 0x78, 0xf3, 0xd1],       // blsmsk eax, ecx
    &[0xc4, 0xe2, 0xf8, 0xf3, 0x16],       // blsmsk rax, qword [rsi]
    &[0xc4, 0xe2, 0xf8, 0xf3, 0xc9],       // blsr rax, rcx
    &[0xc4, 0xe2, 0x78, 0xf3, 0x0e],       // blsr eax, dword [rsi]
    &[0xc4, 0xe2, 0x68, 0xf5, 0xc1],       // bzhi eax, ecx, edx
    &[0xc4, 0xe2, 0xf0, 0xf5, 0x06],       // bzhi rax, qword [rsi], rcx
    &[0xc4, 0xe2, 0xf3, 0xf6, 0xc3],       // mulx rax, rcx, rbx
    &[0xc4, 0xe2, 0x73, 0xf6, 0x06],       // mulx eax, ecx, dword [rsi]
    &[0xc4, 0xe2, 0xfb, 0xf6, 0xc2],       // mulx rax, rax, rdx
    &[0xc4, 0xe2, 0x73, 0xf5, 0xc2],       // pdep eax, ecx, edx
    &[0xc4, 0xe2, 0xf3, 0xf5, 0x06],       // pdep rax, rcx, qword [rsi]
    &[0xc4, 0xe2, 0xf2, 0xf5, 0xc2],       // pext rax, rcx, rdx
    &[0xc4, 0xe2, 0x72, 0xf5, 0x06],       // pext eax, ecx, dword [rsi]
    &[0xc4, 0xe3, 0x7b, 0xf0, 0xc1, 0x25], // rorx eax, ecx, 0x25
    &[0xc4, 0xe3, 0xfb, 0xf0, 0x06, 0x3f], // rorx rax, qword [rsi], 0x3f
    &[0xc4, 0xe2, 0x6a, 0xf7, 0xc1],       // sarx eax, ecx, edx
    &[0xc4, 0xe2, 0xf2, 0xf7, 0x06],       // sarx rax, qword [rsi], rcx
    &[0xc4, 0xe2, 0xe9, 0xf7, 0xc1],       // shlx rax, rcx, rdx
    &[0xc4, 0xe2, 0x71, 0xf7, 0x06],       // shlx eax, dword [rsi], ecx
    &[0xc4, 0xe2, 0x33, 0xf7, 0xc1],       // shrx eax, ecx, r9d
    &[0xc4, 0x62, 0xf3, 0xf7, 0x16],       // shrx r10, qword [rsi], rcx
    &[0xf2, 0x0f, 0x38, 0xf0, 0xc1],       // crc32 eax, cl
    &[0xf2, 0x0f, 0x38, 0xf0, 0xc5],       // crc32 eax, ch
    &[0x66, 0xf2, 0x0f, 0x38, 0xf1, 0xc1], // crc32 eax, cx
    &[0xf2, 0x0f, 0x38, 0xf1, 0xc1],       // crc32 eax, ecx
    &[0xf2, 0x48, 0x0f, 0x38, 0xf1, 0xc1], // crc32 rax, rcx
    &[0xf2, 0x0f, 0x38, 0xf0, 0x06],       // crc32 eax, byte [rsi]
    &[0xf2, 0x48, 0x0f, 0x38, 0xf1, 0x06], // crc32 rax, qword [rsi]
    &[0x0f, 0xc3, 0x0e],                   // movnti dword [rsi], ecx
    &[0x4c, 0x0f, 0xc3, 0x0e],             // movnti qword [rsi], r9
    &[0x0f, 0xae, 0x3e],                   // clflush byte [rsi]
    &[0x66, 0x0f, 0xae, 0x3e],             // clflushopt byte [rsi]
    &[0x66, 0x0f, 0xae, 0x36],             // clwb byte [rsi]
];

/// The feature of an instruction in [`NEWER`] that the CPU at hand lacks.
fn lacks(instruction: &Instruction) -> Option<&'static str> {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let feature = instruction.cpuid_features().iter().find_map(|feature| match feature {
        CpuidFeature::BMI1 => Some("bmi1"),
        CpuidFeature::BMI2 => Some("bmi2"),
        CpuidFeature::SSE4_2 => Some("sse4_2"),
        CpuidFeature::CLFLUSHOPT => Some("clflushopt"),
        CpuidFeature::CLWB => Some("clwb"),
        _ => None,
    });
    feature.filter(|feature| !flags.split_whitespace().any(|flag| flag == *feature))
}

#[test]
fn every_instruction_of_the_image_is_covered() {
    let all = forms::instructions();
    let mnemonics: BTreeSet<_> =
        all.iter().map(|(instruction, _)| format!("{:?}", instruction.mnemonic())).collect();
    let lacking: BTreeSet<_> = all
        .iter()
        .filter(|(instruction, _)| !covers::<Machine>(instruction))
        .map(|(instruction, bytes)| (format!("{:?}", instruction.code()), bytes, instruction.ip()))
        .collect();
    println!("{} instructions, {} mnemonics, {} forms", all.len(), mnemonics.len(), forms::forms(1).len());
    assert!(all.len() > 100_000 && mnemonics.len() > 80, "the image was found");
    assert!(
        lacking.is_empty(),
        "{} not covered, among them {:x?}",
        lacking.len(),
        lacking.iter().take(20).collect::<Vec<_>>()
    );
}

#[test]
fn every_form_of_the_image_does_what_the_cpu_does() {
    let states: u64 =
        std::env::var("HALTKICK_PROVE_STATES").map_or(1000, |text| text.parse().expect("a number"));
    let mut native = Native::new();
    let (rflags, selectors) = native.surroundings();
    let system_flags = rflags & !(CARRY | PARITY | ADJUST | ZERO | SIGN | OVERFLOW);
    let mut simulated = Simulated::new(selectors);
    let (mut proved, mut not_provable) = (0, BTreeSet::new());
    for (number, (form, instructions)) in forms::forms(8).into_iter().enumerate() {
        if let Some(name) = why_not_provable(&instructions[0].0) {
            not_provable.insert(name);
            continue;
        }
        let mut random = Random(number as u64);
        let each = states.div_ceil(instructions.len() as u64);
        for instruction in &instructions {
            compare(&mut native, &mut simulated, &mut random, system_flags, instruction, each);
        }
        proved += 1;
        if states > 1000 {
            println!("{form:?}: {} instructions, {states} states", instructions.len());
        }
    }
    for (number, bytes) in OTHERS.into_iter().chain(NEWER).enumerate() {
        let instruction = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).decode();
        assert_eq!(instruction.len(), bytes.len(), "{bytes:x?}");
        if let Some(feature) = lacks(&instruction) {
            println!("{instruction} is skipped, not tested: this CPU has no {feature}");
            continue;
        }
        let mut random = Random(!(number as u64));
        compare(
            &mut native,
            &mut simulated,
            &mut random,
            system_flags,
            &(instruction, bytes.to_vec()),
            states,
        );
    }
    println!("{proved} forms proved with {states} states each; not provable: {not_provable:?}");
    assert!(proved > 200, "{proved} forms are too few for the image");
}
