//! Requests of the guest to the VMM: one port write each, see `haltkick_hypercalls`; sleep and kick also to
//! KVM, see `halt`.
#![expect(unsafe_code, reason = "port I/O is an instruction that Rust has no safe form of")]

use core::arch::asm;
use core::fmt::{self, Write};

use haltkick_hypercalls::{BootFlags, PORT_CONSOLE, PORT_KICK, PORT_WAIT, PORT_YIELD, YIELD_TO_ANY};

use crate::cpu::halt;
use crate::cpu::percpu::boot;
use crate::monitor::serve::serve;

/// Rings `port`.
#[inline(always)]
pub(crate) fn out(port: u16, value: u32) {
    if boot().flags.has(BootFlags::BARE) {
        return serve(port, value);
    }
    // SAFETY: the VMM serves every port of the hypercall block, and returns with all registers as they were. The
    // asm block is a memory barrier for the compiler (no `nomem`): a wait may return because another vCPU wrote.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags)) }
}

/// Sleeps until the next kick; returns at once if one was latched.
#[inline(always)]
pub(crate) fn wait() {
    if halt::is_on() { halt::wait() } else { out(PORT_WAIT, 0) }
}

/// Wakes vCPU `cpu`; latched if it does not sleep.
#[inline(always)]
pub(crate) fn kick(cpu: u32) {
    if halt::is_on() { halt::kick(cpu) } else { out(PORT_KICK, cpu) }
}

/// Gives up the slice, to `cpu` or to anyone.
#[inline(always)]
pub(crate) fn yield_to(cpu: Option<u32>) {
    match cpu {
        Some(cpu) if halt::yields() => halt::yield_to(cpu),
        _ => out(PORT_YIELD, cpu.unwrap_or(YIELD_TO_ANY)),
    }
}

/// Ends this vCPU: the VMM does not enter it again; if it did, it would be told the same once more.
pub(crate) fn end(port: u16) -> ! {
    loop {
        out(port, 0);
    }
}

/// The VMM's console, for text to people: one exit per byte, so never in a measured path.
pub(crate) struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| out(PORT_CONSOLE, u32::from(byte)));
        Ok(())
    }
}
