//! The machine: the number of a CPU, the serial port, delays, and the end.

use core::{
    arch::asm,
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use haltkick_locks::Event;
use haltkick_platform::{Kernel, kvm::Guest};

use crate::CPUS;

/// This kernel, as its locks see it.
pub(crate) struct Example;

/// What each CPU finds at GS:0, its number.
static NUMBERS: [usize; CPUS] = [0, 1];

static EVENTS: [AtomicU64; Event::COUNT] = [const { AtomicU64::new(0) }; Event::COUNT];

// SAFETY: it runs at CPL 0, with interrupts off always; each CPU has loaded GS with its own number before it takes a lock, and
// there are no tasks that could move.
unsafe impl Kernel for Example {
    #[inline(always)]
    fn cpu(&self) -> usize {
        let cpu;
        // SAFETY: GS:0 is an element of `NUMBERS`, which nobody changes.
        unsafe { asm!("mov {}, gs:[0]", out(reg) cpu, options(pure, readonly, nostack, preserves_flags)) };
        cpu
    }

    fn count(&self, event: Event, n: u64) {
        EVENTS[event.index()].fetch_add(n, Relaxed);
    }
}

// SAFETY: memory is identity-mapped.
unsafe impl Guest for Example {
    fn apic_id(&self, cpu: usize) -> u32 {
        // QEMU numbers them from 0.
        cpu as u32
    }

    fn physical(&self, address: usize) -> u64 {
        address as u64
    }
}

/// How often `event` was counted.
pub(crate) fn events(event: Event) -> u64 {
    EVENTS[event.index()].load(Relaxed)
}

/// The calling CPU has this number from here on.
pub(crate) fn become_cpu(cpu: usize) {
    const GS_BASE: u32 = 0xc000_0101;
    let address = (&raw const NUMBERS[cpu]).addr();
    // SAFETY: GS is used for this alone.
    unsafe {
        asm!("wrmsr", in("ecx") GS_BASE, in("eax") address as u32, in("edx") address >> 32, options(nostack));
    }
}

fn write_port(port: u16, value: u8) {
    // SAFETY: the ports below are a serial line, one that nobody listens to, and QEMU's exit.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) };
}

/// Some microseconds: writes to a port where nobody listens take about one each.
pub(crate) fn delay(microseconds: u32) {
    for _ in 0..microseconds {
        write_port(0x80, 0);
    }
}

/// The serial line.
pub(crate) struct Serial;

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| write_port(0x3f8, byte));
        Ok(())
    }
}

/// Ends QEMU: status 33 if all is well, else 35.
pub(crate) fn exit(all_is_well: bool) -> ! {
    write_port(0xf4, if all_is_well { 16 } else { 17 });
    halt_for_ever()
}

pub(crate) fn halt_for_ever() -> ! {
    loop {
        // SAFETY: interrupts are off.
        unsafe { asm!("hlt", options(nomem, nostack)) };
    }
}
