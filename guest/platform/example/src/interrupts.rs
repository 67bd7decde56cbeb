//! The local APIC, by which CPUs are started, and interrupts that are on: none is sent here, and a spurious one is left alone.

use core::{
    arch::{asm, global_asm},
    ptr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::ports::write_port;

/// Vector that the local APIC delivers without an interrupt: not to be ended.
const SPURIOUS: usize = 0xff;

const APIC: usize = 0xfee0_0000;
const SPURIOUS_VECTOR: usize = 0xf0;
const COMMAND: usize = 0x300;

/// 256 gates of two words each: the handler is unknown to all but the linker.
static GATES: [[AtomicU64; 2]; 256] = [const { [const { AtomicU64::new(0) }; 2] }; 256];

global_asm!(".pushsection .text.example_interrupts, \"ax\"", "example_spurious:", "iretq", ".popsection",);

unsafe extern "C" {
    static example_spurious: [u8; 0];
}

/// Writes a register of the calling CPU's local APIC.
pub(crate) fn write_apic(register: usize, value: u32) {
    // SAFETY: the registers of the local APIC, identity-mapped; no value makes memory change.
    unsafe { ptr::with_exposed_provenance_mut::<u32>(APIC + register).write_volatile(value) };
}

/// Sends a command to all other CPUs.
pub(crate) fn command_others(command: u32) {
    const TO_ALL_OTHERS: u32 = 0b11 << 18;
    write_apic(COMMAND, TO_ALL_OTHERS | command);
}

/// State that all CPUs share. By the boot CPU, before the others start.
pub(crate) fn prepare() {
    // Firmware may have left the old interrupt controllers open, for a timer that is not used here.
    [0x21, 0xa1].into_iter().for_each(|mask| write_port(mask, 0xff));
    // Code segment 8, 64-bit interrupt gate, present.
    let address = (&raw const example_spurious).addr() as u64;
    let low = address & 0xffff | 8 << 16 | 0x8e00 << 32 | (address >> 16 & 0xffff) << 48;
    // Relaxed: starting the CPUs publishes it.
    GATES[SPURIOUS].iter().zip([low, address >> 32]).for_each(|(word, value)| word.store(value, Relaxed));
}

/// The calling CPU takes interrupts from here on.
pub(crate) fn start_cpu() {
    #[repr(C, packed)]
    struct Table {
        last: u16,
        base: usize,
    }
    const ENABLED: u32 = 1 << 8;
    let table = Table { last: size_of_val(&GATES) as u16 - 1, base: (&raw const GATES).addr() };
    write_apic(SPURIOUS_VECTOR, ENABLED | SPURIOUS as u32);
    // SAFETY: the gate leads to a handler that keeps all registers. The stack has room, and no red zone.
    unsafe { asm!("lidt [{}]", "sti", in(reg) &raw const table, options(readonly)) };
}
