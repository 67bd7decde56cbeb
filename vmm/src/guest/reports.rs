//! Reports that a vCPU of our own guest leaves behind when it fails.

use std::sync::atomic::{AtomicU8, Ordering};

use haltkick_hypercalls::{PANIC_NO_MEMORY, VcpuArea};

use crate::host::error::RunError;
use crate::host::text::printable;
use crate::image::symbols::Symbols;

/// Returns the panic that `vcpu`, whose area this is, has reported.
pub(crate) fn panic(vcpu: u32, area: &VcpuArea) -> RunError {
    let report = &area.report;
    let text = |bytes: &[AtomicU8], used: u32| {
        let bytes: Vec<u8> =
            bytes.iter().take(used as usize).map(|byte| byte.load(Ordering::Relaxed)).collect();
        printable(&String::from_utf8_lossy(&bytes))
    };
    let message = text(&report.message, report.message_len.load(Ordering::Relaxed));
    if report.error_code.load(Ordering::Relaxed) == PANIC_NO_MEMORY {
        return RunError::usage(format!("{message}; fewer --locks or --vcpus need less"));
    }
    let file = text(&report.file, report.file_len.load(Ordering::Relaxed));
    let line = report.code.load(Ordering::Relaxed);
    RunError::GuestPanic { vcpu, message, place: format!("{file}:{line}") }
}

/// Returns the exception that `vcpu`, whose area this is, took and does not handle.
pub(crate) fn exception(vcpu: u32, area: &VcpuArea, symbols: &Symbols) -> RunError {
    const PAGE_FAULT: u64 = 14;
    let report = &area.report;
    let vector = report.code.load(Ordering::Relaxed);
    let error_code = report.error_code.load(Ordering::Relaxed);
    let location = symbols.describe(report.rip.load(Ordering::Relaxed));
    let address = format!(", address {:#x}", report.cr2.load(Ordering::Relaxed));
    let detail = if vector == PAGE_FAULT { address } else { String::new() };
    let place = format!("(vector {vector}, error code {error_code:#x}) at {location}{detail}");
    RunError::GuestException { vcpu, name: vector_name(vector), place }
}

/// Mnemonic of an exception vector (Intel SDM vol. 3, table 6-1).
fn vector_name(vector: u64) -> &'static str {
    const NAMES: &str = "#DE #DB NMI #BP #OF #BR #UD #NM #DF coprocessor #TS #NP #SS #GP #PF reserved \
                         #MF #AC #MC #XM #VE #CP";
    NAMES.split(' ').nth(vector as usize).unwrap_or("interrupt")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::memory::{LARGE_PAGE, Memory};

    #[test]
    fn a_guest_that_panics_cannot_speak_to_the_terminal() {
        let memory = Memory::new(LARGE_PAGE * 3, 1, 0, 0).unwrap();
        let report = &memory.area(0).report;
        for text in [&report.message[..], &report.file[..]] {
            for (slot, byte) in text.iter().zip(b"\x1b]0;mine\x07\x1b[2J\r\n") {
                slot.store(*byte, Ordering::Relaxed);
            }
        }
        report.message_len.store(u32::MAX, Ordering::Relaxed);
        report.file_len.store(u32::MAX, Ordering::Relaxed);
        let said = panic(0, memory.area(0)).to_string();
        assert!(said.contains("mine") && !said.chars().any(char::is_control), "{said:?}");
    }
}
