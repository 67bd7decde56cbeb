//! No guest can come to an instruction that the interpreter lacks. For every form in the guest image it does what the
//! CPU at hand does: results, memory, flags, exceptions.
//!
//! `HALTKICK_PROVE_STATES` states of each form are tried, a thousand by default.

mod forms;
mod native;
mod simulated;
mod states;

use std::collections::BTreeSet;

use haltkick_fuzzing::Random;
use haltkick_sim::covers;
use iced_x86::{CpuidFeature, Instruction, Mnemonic, OpKind, RflagsBits};

use native::{End, MEMORY, Native};
use simulated::{Machine, Simulated};
use states::WINDOW;

const CARRY: u64 = 1;
const PARITY: u64 = 1 << 2;
const ADJUST: u64 = 1 << 4;
const ZERO: u64 = 1 << 6;
const SIGN: u64 = 1 << 7;
const OVERFLOW: u64 = 1 << 11;

/// Whether no process can execute an instruction for comparison: it needs a privilege, leaves the process, or says what differs between
/// two machines.
fn is_unprovable(instruction: &Instruction) -> bool {
    use Mnemonic::{
        Cli, Cpuid, Hlt, In, Int3, Invlpg, Iretq, Lgdt, Lidt, Ltr, Out, Outsb, Rdmsr, Rdtsc, Sti, Swapgs,
        Vmcall, Vmmcall, Wrmsr,
    };
    let to = instruction.op0_register();
    match instruction.mnemonic() {
        Mnemonic::Mov => to.is_segment_register() || to.is_cr() || instruction.op1_register().is_cr(),
        Cli | Cpuid | Hlt | In | Int3 | Invlpg | Iretq | Lgdt | Lidt | Ltr | Out | Outsb | Rdmsr | Rdtsc
        | Sti | Swapgs | Vmcall | Vmmcall | Wrmsr => true,
        _ => false,
    }
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

/// The feature of an instruction that the CPU at hand lacks.
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
fn every_form_of_the_image_does_what_the_cpu_does() {
    let all = forms::instructions();
    let lacking = all.iter().filter(|(instruction, _)| !covers::<Machine>(instruction));
    let lacking: BTreeSet<_> =
        lacking.map(|(it, bytes)| (format!("{:?}", it.code()), bytes, it.ip())).collect();
    assert!(lacking.is_empty(), "not covered: {lacking:x?}");
    let states: u64 =
        std::env::var("HALTKICK_PROVE_STATES").map_or(1000, |text| text.parse().expect("a number"));
    let mut native = Native::new();
    let (rflags, selectors) = native.surroundings();
    let system_flags = rflags & !(CARRY | PARITY | ADJUST | ZERO | SIGN | OVERFLOW);
    let mut simulated = Simulated::new(selectors);
    let (mut proved, mut not_provable) = (0, BTreeSet::new());
    for (number, (form, instructions)) in forms::forms(&all).into_iter().enumerate() {
        if is_unprovable(&instructions[0].0) {
            not_provable.insert(format!("{:?}", instructions[0].0.mnemonic()));
            continue;
        }
        let mut random = Random(number as u64);
        let each = states.div_ceil(instructions.len() as u64);
        for instruction in &instructions {
            compare(&mut native, &mut simulated, &mut random, system_flags, instruction, each);
        }
        proved += 1;
        if states > 1000 {
            println!("{form}: {} instructions, {states} states", instructions.len());
        }
    }
    for (number, other) in forms::others().iter().enumerate() {
        if let Some(feature) = lacks(&other.0) {
            println!("{} is skipped, not tested: this CPU has no {feature}", other.0);
            continue;
        }
        let mut random = Random(!(number as u64));
        compare(&mut native, &mut simulated, &mut random, system_flags, other, states);
    }
    println!("{proved} forms proved with {states} states each; not provable: {not_provable:?}");
    assert!(proved > 200, "{proved} forms are too few for the image");
}
