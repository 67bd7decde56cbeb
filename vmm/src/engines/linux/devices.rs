//! Devices of a Linux guest: a serial console, and a power switch.
//!
//! Reads from ports and addresses where nothing is give all ones, as on a bus; writes go nowhere.

use std::io;
use std::sync::{Mutex, OnceLock};

use kvm_ioctls::VmFd;
use vm_superio::serial::NoEvents;
use vm_superio::{Serial, Trigger};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::acpi::{
    RESET_PORT, RESET_VALUE, SERIAL_INTERRUPT, SERIAL_PORT, SLEEP_CONTROL_PORT, SLEEP_ENABLE,
    SLEEP_STATUS_PORT, SLEEP_TYPE_SHIFT, SLEEP_TYPE_SOFT_OFF,
};
use super::console::Console;
use crate::host::error::{RunError, system};
use crate::host::sandbox;
use crate::host::threads::lock;
use crate::machine::vcpu::Ports;
use crate::observe::LinuxConsole;
use crate::run::outcome::LinuxEnd;

/// The keyboard controller's command port, and the command that pulses the reset line: the other way to reset.
const KEYBOARD_PORT: u16 = 0x64;
const KEYBOARD_RESET: u8 = 0xfe;
/// Its state: ready for a command, for which Linux waits long before it asks for a reset; else as if nothing were there.
const KEYBOARD_STATE: u8 = !(1 << 1);

pub(crate) struct Devices {
    serial: Mutex<Serial<Interrupt, NoEvents, Console>>,
    /// Whether the use that was made of the power switch is a reset.
    is_reset: OnceLock<bool>,
}

/// An interrupt line that KVM watches.
struct Interrupt(EventFd);

impl Trigger for Interrupt {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

impl Devices {
    /// Devices with their interrupts in `vm`; a line of the console that has `marker` in it says that user space is there.
    pub(crate) fn new(vm: &VmFd, console: LinuxConsole, marker: String) -> Result<Self, RunError> {
        let interrupt = EventFd::new(EFD_NONBLOCK).map_err(system("create an event for the serial port"))?;
        vm.register_irqfd(&interrupt, SERIAL_INTERRUPT)
            .map_err(system("connect the serial port's interrupt"))?;
        sandbox::will_write(&interrupt);
        Self::with(interrupt, console, marker)
    }

    fn with(interrupt: EventFd, console: LinuxConsole, marker: String) -> Result<Self, RunError> {
        let console = Console::new(console, marker)?;
        Ok(Self { serial: Mutex::new(Serial::new(Interrupt(interrupt), console)), is_reset: OnceLock::new() })
    }

    pub(crate) fn end(&self) -> Option<LinuxEnd> {
        self.is_reset.get().map(|is_reset| if *is_reset { LinuxEnd::Reset } else { LinuxEnd::PowerOff })
    }

    /// Asks the console, or tells it something.
    pub(crate) fn console<T>(&self, does: impl FnOnce(&mut Console) -> T) -> T {
        does(lock(&self.serial).writer_mut())
    }
}

impl Ports for Devices {
    fn write(&self, port: u16, bytes: &[u8]) {
        const SOFT_OFF: u8 = SLEEP_ENABLE | SLEEP_TYPE_SOFT_OFF << SLEEP_TYPE_SHIFT;
        let Some(&byte) = bytes.first() else { return };
        match (port, byte) {
            (SERIAL_PORT..=0x3ff, _) => {
                // Fails if the interrupt's event is full, and then the interrupt is pending anyway.
                _ = lock(&self.serial).write((port - SERIAL_PORT) as u8, byte);
            }
            (SLEEP_CONTROL_PORT, SOFT_OFF) => _ = self.is_reset.set(false),
            (RESET_PORT, RESET_VALUE) | (KEYBOARD_PORT, KEYBOARD_RESET) => {
                _ = self.is_reset.set(true);
            }
            _ => {}
        }
    }

    fn read(&self, port: u16, bytes: &mut [u8]) {
        bytes.fill(0xff);
        let Some(byte) = bytes.first_mut() else { return };
        match port {
            SERIAL_PORT..=0x3ff => *byte = lock(&self.serial).read((port - SERIAL_PORT) as u8),
            SLEEP_CONTROL_PORT | SLEEP_STATUS_PORT => *byte = 0,
            KEYBOARD_PORT => *byte = KEYBOARD_STATE,
            _ => {}
        }
    }

    fn are_off(&self) -> bool {
        self.is_reset.get().is_some()
    }
}

/// Accesses of any length to any port, doorbells included.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed {
    use std::cell::RefCell;
    use std::time::Duration;

    use haltkick_fuzzing::{Script, Target};
    use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

    use super::{Devices, SERIAL_PORT};
    use crate::engines::linux::acpi::{RESET_PORT, SLEEP_CONTROL_PORT, SLEEP_STATUS_PORT};
    use crate::engines::linux::console::LONGEST_LINE;
    use crate::machine::vcpu::{Exit, Ports as _};
    use crate::observe::LinuxConsole;

    pub(crate) const TARGET: Target = Target { name: "devices", most_bytes: 512, seeds: Vec::new, execute };

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
                    0 => [SLEEP_CONTROL_PORT, SLEEP_STATUS_PORT, RESET_PORT, 0x64]
                        [usize::from(script.byte() % 4)],
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
            _ = (devices.end(), devices.console(|console| console.panicked_before(Duration::ZERO)));
        });
    }
}
