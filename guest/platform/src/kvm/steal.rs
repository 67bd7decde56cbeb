//! The record in which KVM says what it takes from a CPU.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

/// Register that takes its physical address, `MSR_KVM_STEAL_TIME`; bit 0 turns it on.
pub(super) const MSR: u32 = 0x4b56_4d03;

/// `struct kvm_steal_time`: written by the host.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct StealTime {
    /// Nanoseconds, in two halves.
    steal: [AtomicU32; 2],
    version: AtomicU32,
    flags: AtomicU32,
    preempted: AtomicU8,
    padding: [u8; 47],
}

const _: () = assert!(size_of::<StealTime>() == 64);
const _: () = assert!(core::mem::offset_of!(StealTime, preempted) == 16);

impl StealTime {
    pub(super) const fn new() -> Self {
        Self {
            steal: [const { AtomicU32::new(0) }; 2],
            version: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            preempted: AtomicU8::new(0),
            padding: [0; 47],
        }
    }

    /// Nanoseconds, modulo 2^32, in which the CPU could have run and did not.
    pub(super) fn stolen(&self) -> u32 {
        // Relaxed: the CPU reads its own record, which changes while it does not run.
        self.steal[0].load(Relaxed)
    }

    /// Number that the host raises whenever it writes the record: before the CPU runs again after it was preempted. 0: it keeps none.
    pub(super) fn version(&self) -> u64 {
        // Relaxed: a hint.
        u64::from(self.version.load(Relaxed))
    }

    /// Relaxed: a hint, which is old when it is read.
    pub(super) fn is_preempted(&self) -> bool {
        /// `KVM_VCPU_PREEMPTED`; another bit asks for a flush of the TLB.
        const PREEMPTED: u8 = 1 << 0;
        self.preempted.load(Relaxed) & PREEMPTED != 0
    }
}
