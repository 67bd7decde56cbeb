//! The local APIC, in whichever of its two forms the machine has: x2APIC registers are MSRs, those of the older xAPIC lie
//! in memory. Haltkick's VMM always gives x2APIC; QEMU's emulator before version 9 has none.
#![expect(unsafe_code, reason = "privileged instructions, and registers in memory")]

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use haltkick_hypercalls::MAX_VCPUS;

/// Registers, by their offset in the xAPIC's page; the x2APIC's MSR is `0x800 + offset / 16`.
const SPURIOUS_VECTOR: u32 = 0xf0;
const INTERRUPT_COMMAND: u32 = 0x300;
const INTERRUPT_COMMAND_HIGH: u32 = 0x310;
const ID: u32 = 0x20;
const TIMER: u32 = 0x320;
const LINT0: u32 = 0x350;
const TIMER_INITIAL: u32 = 0x380;
const TIMER_CURRENT: u32 = 0x390;
const TIMER_DIVIDE: u32 = 0x3e0;

/// Physical address of the xAPIC's page.
pub(crate) const PAGE: u64 = 0xfee0_0000;

/// The entry of a page directory that maps the APIC: a large page, not cached.
pub(crate) const fn page_entry() -> u64 {
    const PRESENT_WRITABLE_UNCACHED_LARGE: u64 = 0x9b;
    PAGE & !0x1f_ffff | PRESENT_WRITABLE_UNCACHED_LARGE
}

/// The registers lie in memory. Set before any other CPU runs; the stub of the wake-up vector reads it too.
pub(crate) static IN_MEMORY: AtomicBool = AtomicBool::new(false);

/// APIC id of each vCPU, entered by itself, where the monitor gave them out. Under our VMM it is the vCPU's index.
static IDS: [AtomicU32; MAX_VCPUS] = [const { AtomicU32::new(0) }; MAX_VCPUS];

/// The calling CPU, vCPU `cpu`, enters its id. It is not kicked before it has said by other means that it is
/// there.
pub(crate) fn enter_id(cpu: u32) {
    // Relaxed: those other means order it.
    IDS[cpu as usize].store(id(), Ordering::Relaxed);
}

/// The id that vCPU `cpu` has entered.
pub(crate) fn id_of(cpu: u32) -> u32 {
    // Relaxed: as above; not written again.
    IDS[cpu as usize].load(Ordering::Relaxed)
}

/// Lets the calling CPU's APIC accept interrupts.
pub(crate) fn accept_interrupts() {
    const ENABLED_VECTOR_255: u32 = 0x1ff;
    write(SPURIOUS_VECTOR, ENABLED_VECTOR_255);
}

/// Lets nothing through from the legacy interrupt controller, which firmware may have wired to this pin.
pub(crate) fn mask_legacy() {
    const MASKED: u32 = 1 << 16;
    write(LINT0, MASKED);
}

/// Switches the calling CPU's APIC to x2APIC mode.
pub(crate) fn enable_x2apic() {
    const APIC_BASE: u32 = 0x1b;
    const ENABLED_X2APIC: u64 = 0xc00;
    // SAFETY: bare mode runs in ring 0, and CPUID has said that there is such a mode.
    unsafe { write_msr(APIC_BASE, read_msr(APIC_BASE) | ENABLED_X2APIC) };
}

/// Sends an interrupt: `command` is the low half of the interrupt command register.
pub(crate) fn send(apic_id: u32, command: u32) {
    // Earlier writes of this CPU must be visible to the interrupted one.
    if IN_MEMORY.load(Ordering::Relaxed) {
        fence(Ordering::SeqCst);
        write(INTERRUPT_COMMAND_HIGH, apic_id << 24);
        write(INTERRUPT_COMMAND, command);
    } else {
        // SAFETY: touches nothing. A write to an x2APIC register, unlike one to memory, waits for nothing, not even for a
        // fence of stores: it takes both (Intel SDM vol. 3, 11.12.3).
        unsafe { asm!("mfence", "lfence", options(nostack, preserves_flags)) };
        // SAFETY: x2APIC mode, where this register exists; all this guest's interrupts have handlers.
        unsafe { write_msr(msr(INTERRUPT_COMMAND), u64::from(apic_id) << 32 | u64::from(command)) };
    }
}

pub(crate) fn id() -> u32 {
    let id = read(ID);
    if IN_MEMORY.load(Ordering::Relaxed) { id >> 24 } else { id }
}

/// Interrupts the calling CPU again and again, every `count` ticks of the APIC's clock.
pub(crate) fn start_timer(vector: u8, count: u32) {
    const PERIODIC: u32 = 1 << 17;
    const DIVIDE_BY_1: u32 = 0b1011;
    write(TIMER_DIVIDE, DIVIDE_BY_1);
    write(TIMER, PERIODIC | u32::from(vector));
    write(TIMER_INITIAL, count);
}

/// Returns the rest of the timer's count.
pub(crate) fn timer_count() -> u32 {
    read(TIMER_CURRENT)
}

fn msr(register: u32) -> u32 {
    0x800 + register / 16
}

fn write(register: u32, value: u32) {
    if IN_MEMORY.load(Ordering::Relaxed) {
        // SAFETY: the APIC's page, mapped uncached wherever `IN_MEMORY` is set.
        unsafe { ((PAGE + u64::from(register)) as *mut u32).write_volatile(value) };
    } else {
        // SAFETY: x2APIC mode, where the registers above exist.
        unsafe { write_msr(msr(register), u64::from(value)) };
    }
}

fn read(register: u32) -> u32 {
    if IN_MEMORY.load(Ordering::Relaxed) {
        // SAFETY: as in `write`.
        unsafe { ((PAGE + u64::from(register)) as *const u32).read_volatile() }
    } else {
        read_msr(msr(register)) as u32
    }
}

/// Writes a model-specific register.
///
/// # Safety
/// In ring 0; the register exists, takes this value, and nothing that Rust relies on changes with it.
pub(crate) unsafe fn write_msr(register: u32, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32,
             options(nostack, preserves_flags));
    }
}

fn read_msr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: ring 0; the callers name registers that exist.
    unsafe {
        asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high, options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}
