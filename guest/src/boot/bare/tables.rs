//! Segments, task state and interrupt gates of each CPU (Intel SDM vol. 3, 3.4.5, 6.14.1, 7.7).
#![expect(unsafe_code, reason = "loads the tables into the CPU")]

use core::arch::asm;

use haltkick_hypercalls::{EXCEPTION_STACK_OFFSET, MAX_VCPUS};

use super::ground::{CODE, SEGMENTS, TASK_STATE, Zeroed};
use crate::cpu::apic;
use crate::traps::exceptions;

#[repr(C, align(64))]
struct CpuTables {
    /// The common ones, then the task state's descriptor.
    segments: [u64; 6],
    task_state: TaskState,
}

#[repr(C, packed(4))]
struct TaskState {
    _reserved: u32,
    _stacks: [u64; 3],
    _reserved2: u64,
    interrupt_stacks: [u64; 7],
    _reserved3: u64,
    _reserved4: u16,
    io_map_base: u16,
}

const TASK_STATE_BYTES: u64 = size_of::<TaskState>() as u64;
const _: () = assert!(TASK_STATE_BYTES == 104);

/// Each CPU writes its own, once.
static TABLES: Zeroed<[CpuTables; MAX_VCPUS + 1]> = Zeroed::new();
/// Written by the boot CPU before any other runs.
static GATES: Zeroed<[[u64; 2]; 256]> = Zeroed::new();

/// Operand of LGDT and LIDT.
#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

/// Points every vector to its stub, on the CPU's exception stack.
pub(super) fn write_gates() {
    const PRESENT_GATE: u64 = 0x8e << 40;
    const IST1: u64 = 1 << 32;
    for vector in 0..256 {
        let handler = (&raw const exceptions::STUBS) as u64 + vector * u64::from(exceptions::STUB_BYTES);
        let low =
            handler & 0xffff | u64::from(CODE) << 16 | IST1 | PRESENT_GATE | (handler >> 16 & 0xffff) << 48;
        // SAFETY: alone, see `GATES`; zero is a valid gate.
        unsafe { (*GATES.pointer())[vector as usize] = [low, handler >> 32] };
    }
}

/// Gives the calling CPU its tables, and `area` as GS base.
pub(super) fn load(cpu: u32, area: u64) {
    // SAFETY: this CPU's own, see `TABLES`; zero is valid for every field. `SEGMENTS` is constant. The area's field was written before
    // this CPU started.
    unsafe {
        let tables = &mut (*TABLES.pointer())[cpu as usize];
        let task_state = (&raw const tables.task_state) as u64;
        tables.task_state.interrupt_stacks[0] = ((area + EXCEPTION_STACK_OFFSET as u64) as *const u64).read();
        tables.task_state.io_map_base = TASK_STATE_BYTES as u16;
        tables.segments[..4].copy_from_slice(&SEGMENTS);
        tables.segments[4] = (TASK_STATE_BYTES - 1)
            | (task_state & 0xff_ffff) << 16
            | 0x89 << 40 // present, 64-bit task state, not busy
            | (task_state >> 24 & 0xff) << 56;
        tables.segments[5] = task_state >> 32;
        let gdt =
            Pointer { limit: size_of::<[u64; 6]>() as u16 - 1, base: (&raw const tables.segments) as u64 };
        let idt = Pointer { limit: size_of::<[[u64; 2]; 256]>() as u16 - 1, base: GATES.pointer() as u64 };
        asm!("lgdt [{}]", in(reg) &raw const gdt, options(nostack, preserves_flags));
        asm!("lidt [{}]", in(reg) &raw const idt, options(nostack, preserves_flags));
        asm!("ltr {:x}", in(reg) TASK_STATE, options(nostack, preserves_flags));
    }
    const GS_BASE: u32 = 0xc000_0101;
    // SAFETY: ring 0; from here on GS leads to this CPU's own area, as `percpu` relies on.
    unsafe { apic::write_msr(GS_BASE, area) };
}
