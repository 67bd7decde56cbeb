//! Services in place of the VMM's hypercalls.
#![expect(unsafe_code, reason = "HLT")]

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use haltkick_hypercalls::{PORT_BOOTED, PORT_CONSOLE, PORT_EXCEPTION, PORT_EXIT, PORT_PANIC, PORT_YIELD};

use crate::cpu::{halt, percpu};
use crate::monitor::record::{self, leave};

/// vCPU 0 may begin; the others. Released by who lets them, acquired in `boot::bare::boot::other`: what vCPU 0 relies on is laid out, and
/// what the others rely on has been measured.
pub(crate) static FIRST_MAY_BEGIN: AtomicBool = AtomicBool::new(false);
pub(crate) static ALL_MAY_BEGIN: AtomicBool = AtomicBool::new(false);

/// A hypercall, by its port: what the VMM would have done.
#[cold]
pub(crate) fn serve(port: u16, value: u32) {
    match port {
        PORT_BOOTED => {
            record::line(format_args!("booted"));
            ALL_MAY_BEGIN.store(true, Ordering::Release);
            (1..percpu::boot().vcpus).for_each(halt::kick);
        }
        PORT_CONSOLE => record::console(value as u8),
        PORT_YIELD => core::hint::spin_loop(),
        PORT_EXIT => stop(),
        PORT_PANIC | PORT_EXCEPTION if !record::begin_end() => stop(),
        PORT_PANIC | PORT_EXCEPTION => {
            let what = if port == PORT_PANIC { "panic" } else { "exception" };
            record::line(format_args!("failed {what} {}", percpu::cpu()));
            record::report(percpu::cpu() as u32);
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
