//! Writes to ports, and delays that are made of them.

use core::arch::asm;

pub(crate) fn write_port(port: u16, value: u8) {
    // SAFETY: the ports are a serial line, one that is not connected, the masks of interrupts, and ways to end.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) };
}

/// Some microseconds: writes to an unconnected port take about one each.
pub(crate) fn delay(microseconds: u32) {
    for _ in 0..microseconds {
        write_port(0x80, 0);
    }
}
