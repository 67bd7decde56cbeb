//! A panic reaches the host with message, file and line.

use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use haltkick_hypercalls::{MAX_VCPUS, PORT_PANIC};

use crate::cpu::percpu;
use crate::monitor::hypercall;

/// The vCPUs that panic; in bare mode the boot CPU is one more. One that panics while it writes its report says no more.
static PANICKING: [AtomicBool; MAX_VCPUS + 1] = [const { AtomicBool::new(false) }; MAX_VCPUS + 1];

/// Text that stops at the end of its buffer.
struct Bounded<'a> {
    buffer: &'a [AtomicU8],
    used: usize,
}

impl Write for Bounded<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (cell, byte) in self.buffer[self.used..].iter().zip(text.bytes()) {
            // Relaxed: the VMM reads the report after the exit that ends this vCPU.
            cell.store(byte, Ordering::Relaxed);
            self.used += 1;
        }
        Ok(())
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    // Relaxed: only this vCPU accesses its own.
    let panics_again = PANICKING.get(percpu::cpu()).is_none_or(|it| it.swap(true, Ordering::Relaxed));
    if panics_again {
        hypercall::end(PORT_PANIC);
    }
    let report = &percpu::this().report;
    let mut message = Bounded { buffer: &report.message, used: 0 };
    let _ = write!(message, "{}", info.message());
    let mut file = Bounded { buffer: &report.file, used: 0 };
    if let Some(location) = info.location() {
        let _ = file.write_str(location.file());
        report.code.store(u64::from(location.line()), Ordering::Relaxed);
    }
    report.message_len.store(message.used as u32, Ordering::Relaxed);
    report.file_len.store(file.used as u32, Ordering::Relaxed);
    hypercall::end(PORT_PANIC)
}
