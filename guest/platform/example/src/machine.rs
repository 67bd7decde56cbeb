//! The machine: the number of a CPU, the serial line, and the end.

use core::{
    arch::{asm, x86_64::__cpuid},
    fmt,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use haltkick_platform::{Kernel, kvm};
use haltkick_qspin::Event;
#[cfg(feature = "checked")]
use haltkick_qspin::checks::{Checker, Checks, Context};

use crate::{CPUS, ports::write_port};

/// This kernel, as its locks see it.
pub(crate) struct Example;

/// Number of each CPU, found at GS:0.
static NUMBERS: [usize; CPUS] = {
    let mut numbers = [0; CPUS];
    let mut cpu = 0;
    while cpu < CPUS {
        numbers[cpu] = cpu;
        cpu += 1;
    }
    numbers
};

/// Each CPU's APIC id, from its own start on.
static APIC_IDS: [AtomicU32; CPUS] = [const { AtomicU32::new(0) }; CPUS];

/// Ticks of the TSC in a millisecond: this kernel does not measure it, and takes a common value where CPUID does not tell.
static TSC_KHZ: AtomicU64 = AtomicU64::new(2_500_000);

/// Few facts, for there are few locks.
#[cfg(feature = "checked")]
static CHECKS: Checks<CPUS, 64> = Checks::new();

static EVENTS: [AtomicU64; Event::COUNT] = [const { AtomicU64::new(0) }; Event::COUNT];

// SAFETY: it runs at CPL 0, where interrupts can be taken; each CPU has loaded GS with its own number before it takes a lock, and
// there are no tasks that could move.
unsafe impl Kernel for Example {
    #[inline(always)]
    fn cpu(&self) -> usize {
        let cpu;
        // SAFETY: GS:0 is an element of `NUMBERS`, which never changes.
        unsafe { asm!("mov {}, gs:[0]", out(reg) cpu, options(pure, readonly, nostack, preserves_flags)) };
        cpu
    }

    /// No task is moved or preempted: there are none.
    fn pin(&self) {}

    fn unpin(&self) {}

    fn tsc_khz(&self) -> u64 {
        // Relaxed: each value that can be read is a good one.
        TSC_KHZ.load(Relaxed)
    }

    fn count(&self, event: Event, n: u64) {
        EVENTS[event.index()].fetch_add(n, Relaxed);
    }

    #[cfg(feature = "checked")]
    fn checks(&self) -> Option<Checker<'_>> {
        Some(CHECKS.checker())
    }

    /// Interrupts may be on, and no handler takes a lock.
    #[cfg(feature = "checked")]
    fn context(&self) -> Option<Context> {
        Some(Context::InterruptsOn)
    }
}

// SAFETY: memory is identity-mapped.
unsafe impl kvm::Guest for Example {
    fn apic_id(&self, cpu: usize) -> u32 {
        // Relaxed: who kicks a CPU has met it.
        APIC_IDS[cpu].load(Relaxed)
    }

    fn physical(&self, address: usize) -> u64 {
        address as u64
    }
}

/// How often `event` was counted.
pub(crate) fn events(event: Event) -> u64 {
    EVENTS[event.index()].load(Relaxed)
}

/// Asks CPUID for the frequency of the clock. The boot CPU, first.
pub(crate) fn ask_for_the_clock() {
    if let Some(khz) = haltkick_platform::tsc_khz() {
        TSC_KHZ.store(khz, Relaxed);
    }
}

/// The calling CPU has this number from here on.
pub(crate) fn become_cpu(cpu: usize) {
    const GS_BASE: u32 = 0xc000_0101;
    let address = (&raw const NUMBERS[cpu]).addr();
    // SAFETY: GS is used for this alone.
    unsafe {
        asm!("wrmsr", in("ecx") GS_BASE, in("eax") address as u32, in("edx") address >> 32, options(nostack));
    }
    APIC_IDS[cpu].store(__cpuid(1).ebx >> 24, Relaxed);
}

/// The serial line.
pub(crate) struct Serial;

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| write_port(0x3f8, byte));
        Ok(())
    }
}

/// Ends the machine. QEMU's debug exit makes its status 33 if all is well, else 35. Under haltkick that port is
/// not connected, but ACPI's sleep control register (off) and the keyboard controller (reset) are.
pub(crate) fn exit(all_is_well: bool) -> ! {
    const SLEEP_ENABLE_SOFT_OFF: u8 = 1 << 5 | 5 << 2;
    const RESET: u8 = 0xfe;
    if all_is_well {
        write_port(0xf4, 16);
        write_port(0x600, SLEEP_ENABLE_SOFT_OFF);
    } else {
        write_port(0xf4, 17);
        write_port(0x64, RESET);
    }
    halt_for_ever()
}

pub(crate) fn halt_for_ever() -> ! {
    loop {
        // SAFETY: nothing is left to do, and no interrupt to take.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}
