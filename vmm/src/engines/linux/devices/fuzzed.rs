//! Accesses of any length to any port, doorbells included.

use std::cell::RefCell;
use std::time::Duration;

use haltkick_fuzzing::{Script, Target, no_seeds};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{Devices, SERIAL_PORT};
use crate::engines::linux::acpi::{RESET_PORT, SLEEP_CONTROL_PORT, SLEEP_STATUS_PORT};
use crate::engines::linux::console::LONGEST_LINE;
use crate::machine::exits::Exit;
use crate::machine::vcpu::Ports as _;
use crate::observe::instruments::LinuxConsole;

pub(crate) const TARGET: Target = Target { name: "devices", most_bytes: 512, seeds: no_seeds, execute };

const MARKER: &str = "so it begins";
/// The most bytes that KVM passes on at once.
const MOST_BYTES: u8 = 9;

thread_local! {
    /// One for all executions, which begin with what the last one left: its console has a thread.
    static DEVICES: RefCell<Devices> = RefCell::new(devices());
}

fn devices() -> Devices {
    let interrupt = EventFd::new(EFD_NONBLOCK).expect("an event");
    let sink = |line: &str| assert!(line.len() <= 3 * LONGEST_LINE, "a line of {} bytes", line.len());
    let sink = std::sync::Arc::new(sink);
    let console = LinuxConsole { hears: sink.clone(), shows: sink, ..LinuxConsole::default() };
    Devices::with(interrupt, console, MARKER.into()).expect("a thread for the console")
}

/// Checks that a read returns the device's answer or the absence of one, and that every doorbell is one kind of exit.
fn execute(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    DEVICES.with_borrow(|devices| {
        while !script.is_over() {
            let port = match script.byte() % 8 {
                0 => {
                    [SLEEP_CONTROL_PORT, SLEEP_STATUS_PORT, RESET_PORT, 0x64][usize::from(script.byte() % 4)]
                }
                1 => script.number() as u16,
                _ => SERIAL_PORT + u16::from(script.byte() % 8),
            };
            let (length, value) = (usize::from(script.byte() % MOST_BYTES), script.number());
            let mut data = [0; MOST_BYTES as usize];
            data[..8].copy_from_slice(&value.to_le_bytes());
            if script.byte() & 1 == 0 {
                devices.write(port, &data[..length]);
            } else {
                devices.read(port, &mut data[..length]);
                assert!(
                    data[..length].iter().skip(1).all(|byte| *byte == 0xff),
                    "beyond a port of one byte is nothing"
                );
            }
            let bell = Exit::from_hypercall(port, value as u32);
            assert!(bell.is_none_or(|bell| bell.kind() < Exit::KINDS));
        }
        _ = (devices.end(), devices.user_space(), devices.panicked_before(Duration::ZERO));
    });
}

#[cfg(test)]
mod tests {
    #[test]
    fn fuzz_devices_answer_any_access() {
        super::TARGET.run();
    }
}
