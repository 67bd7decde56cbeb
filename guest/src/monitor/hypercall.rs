//! Requests of the guest to the VMM: one port write each, see `haltkick_hypercalls`; sleep and kick also to
//! KVM, see `halt`. And services in their place, where there is no such VMM.
#![expect(unsafe_code, reason = "port I/O and HLT are instructions that Rust has no safe form of")]

use core::arch::asm;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use haltkick_hypercalls::{
    BootFlags, PORT_BOOTED, PORT_CONSOLE, PORT_EXCEPTION, PORT_EXIT, PORT_KICK, PORT_PANIC, PORT_WAIT,
    PORT_YIELD, YIELD_TO_ANY,
};

use crate::cpu::halt;
use crate::cpu::percpu::{boot, cpu};
use crate::monitor::record::{self, leave};

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

/// vCPU 0 may begin; the others. Released by who lets them, acquired in `boot::bare::boot::other`: what vCPU 0 relies on is laid out, and
/// what the others rely on has been measured.
pub(crate) static FIRST_MAY_BEGIN: AtomicBool = AtomicBool::new(false);
pub(crate) static ALL_MAY_BEGIN: AtomicBool = AtomicBool::new(false);

/// A hypercall, by its port: what the VMM would have done.
#[cold]
fn serve(port: u16, value: u32) {
    match port {
        PORT_BOOTED => {
            record::line(format_args!("booted"));
            ALL_MAY_BEGIN.store(true, Ordering::Release);
            (1..boot().vcpus).for_each(halt::kick);
        }
        PORT_CONSOLE => record::console(value as u8),
        PORT_YIELD => core::hint::spin_loop(),
        PORT_EXIT => stop(),
        PORT_PANIC | PORT_EXCEPTION if !record::begin_end() => stop(),
        PORT_PANIC | PORT_EXCEPTION => {
            let what = if port == PORT_PANIC { "panic" } else { "exception" };
            record::line(format_args!("failed {what} {}", cpu()));
            record::report(cpu() as u32);
            leave(record::FAILED)
        }
        _ => panic!("this hypercall (port {port:#x}) needs Haltkick's own VMM"),
    }
}

/// Stops the calling CPU for good.
pub(crate) fn stop() -> ! {
    loop {
        // SAFETY: ring 0; interrupts are off, so nothing wakes this CPU but what resets it.
        unsafe { asm!("hlt", options(nomem, nostack, preserves_flags)) };
    }
}
