//! Output: lines of text that begin with `haltkick: `, through a port that takes bytes.
//!
//! | line | meaning |
//! | --- | --- |
//! | `vcpus N` | all of them are there |
//! | `booted` | vCPU 0 has done what only it does |
//! | `open`, `close TICKS` | the window, and its length |
//! | `kick kvm` or `kick ipi` | how vCPUs were woken |
//! | `preempted_seen` | a vCPU's flag was seen set |
//! | `tsc_khz N` | frequency of the clock |
//! | `word STRUCTURE INDEX OFFSET VALUE` | eight bytes of shared memory in hexadecimal, where they are not zero |
//! | `end` | that was all |
//! | `failed panic CPU`, `failed exception CPU` | the run is over; the report follows in words |
//! | `error TEXT` | there was no run |
//!
//! Anything else is the guest's console.
#![expect(unsafe_code, reason = "port I/O")]

use core::arch::asm;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use haltkick_hypercalls::{BootBlock, BootFlags, QEMU_CONSOLE_PORT, QEMU_EXIT_PORT};

use crate::cpu::percpu;

/// A vCPU's `preempted` flag was seen set.
pub(crate) static PREEMPTED_SEEN: AtomicBool = AtomicBool::new(false);

/// The end of the record has been begun: by the boot CPU, or by a vCPU that failed.
static ENDING: AtomicBool = AtomicBool::new(false);
/// A line is on its way out.
static SENDING: AtomicBool = AtomicBool::new(false);
/// The last byte that went out, or is on its way, ends no line.
static WITHIN_LINE: AtomicBool = AtomicBool::new(false);

/// Exit codes, of which QEMU makes `2 * code + 1`.
pub(crate) const DONE: u32 = 0x10;
pub(crate) const FAILED: u32 = 0x11;

/// A line that goes out in one piece, as far as the monitor serves it in one.
struct Line {
    bytes: [u8; 120],
    used: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes().take(self.bytes.len() - self.used) {
            self.bytes[self.used] = byte;
            self.used += 1;
        }
        Ok(())
    }
}

/// Whether the caller is to write the end of the record. One caller is; later ones have nothing to add.
pub(crate) fn begin_end() -> bool {
    // Relaxed: says who, and nothing about memory.
    !ENDING.swap(true, Ordering::Relaxed)
}

/// For the boot CPU when it is the last that runs: who was stopped within a line does not finish it.
pub(crate) fn nobody_else_sends() {
    SENDING.store(false, Ordering::Relaxed);
}

pub(crate) fn line(text: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 120], used: 0 };
    // Cannot fail: what does not fit is cut.
    let _ = writeln!(line, "haltkick: {text}");
    send(&line.bytes[..line.used], true);
}

/// Sends a byte of the guest's own text.
pub(crate) fn console(byte: u8) {
    send(&[byte], false);
}

/// Sends bytes, on a line of their own or as the guest's own text goes on.
fn send(bytes: &[u8], on_own_line: bool) {
    // Relaxed, all: what the lock guards is the port, and the host serves port I/O in the order of execution.
    while SENDING.swap(true, Ordering::Relaxed) {
        core::hint::spin_loop();
    }
    if WITHIN_LINE.swap(true, Ordering::Relaxed) && on_own_line {
        out(b"\n");
    }
    out(bytes);
    WITHIN_LINE.store(bytes.last() != Some(&b'\n'), Ordering::Relaxed);
    SENDING.store(false, Ordering::Relaxed);
}

/// Writes bytes to the console's port.
fn out(bytes: &[u8]) {
    // SAFETY: ring 0; the port takes bytes and does nothing else. Direction is forwards (System V ABI).
    unsafe {
        asm!("rep outsb", in("dx") QEMU_CONSOLE_PORT, inout("rsi") bytes.as_ptr() => _, inout("rcx") bytes.len() => _,
             options(nostack, preserves_flags));
    }
}

/// Everything in shared memory that the host's program looks at.
pub(crate) fn shared_memory(boot: &BootBlock) {
    line(format_args!("tsc_khz {}", boot.tsc_khz));
    line(format_args!("kick {}", if boot.flags.has(BootFlags::KICK_HYPERCALL) { "kvm" } else { "ipi" }));
    if PREEMPTED_SEEN.load(Ordering::Relaxed) {
        line(format_args!("preempted_seen"));
    }
    words("control", 0, percpu::words(percpu::control()));
    for lock in 0..boot.lock_count {
        words("oracle", lock, percpu::words(&percpu::oracles()[lock as usize]));
    }
    (0..boot.vcpus).for_each(report);
    line(format_args!("end"));
}

/// One vCPU's area, and its counters of sections.
pub(crate) fn report(cpu: u32) {
    words("vcpu", cpu, percpu::words(percpu::area(cpu as usize)));
    words("entries", cpu, percpu::entries_of(cpu));
}

/// Writes the words of a structure that are not zero. The vCPUs that wrote to it with other sizes have stopped.
fn words(name: &str, index: u32, words: &[AtomicU64]) {
    for (word, value) in words.iter().enumerate() {
        let value = value.load(Ordering::Relaxed);
        if value != 0 {
            line(format_args!("word {name} {index} {:x} {value:x}", word * 8));
        }
    }
}

/// Tells why there is no run, and ends.
pub(crate) fn fail(why: fmt::Arguments<'_>) -> ! {
    line(format_args!("error {why}"));
    leave(FAILED)
}

/// Ends the machine: by the exit port; where there is none by a reset through the keyboard controller; and at
/// last by a fault without a handler.
pub(crate) fn leave(code: u32) -> ! {
    let nothing = [0_u8; 10];
    // SAFETY: ring 0; none of it comes back if it works.
    unsafe {
        asm!("out dx, eax", in("dx") QEMU_EXIT_PORT, in("eax") code, options(nostack, nomem));
        asm!("out 0x64, al", in("al") 0xfe_u8, options(nostack, nomem));
        asm!("lidt [{}]", "ud2", in(reg) nothing.as_ptr(), options(noreturn));
    }
}
