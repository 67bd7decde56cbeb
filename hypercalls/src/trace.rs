//! Traces: one ring per vCPU, guest-written, read by the VMM when the guest has stopped.

use core::sync::atomic::AtomicU64;

/// One critical section.
#[repr(C)]
pub struct TraceSection {
    /// TSC when the vCPU asked for the lock.
    pub asked_tsc: AtomicU64,
    /// TSC when it had it.
    pub had_tsc: AtomicU64,
    /// TSC when it had released it.
    pub left_tsc: AtomicU64,
    /// Index of the lock.
    pub lock: AtomicU64,
}

/// A ring begins with the number of sections ever written, in a line of its own; section n lies in place n modulo the
/// ring's length.
pub const TRACE_SECTIONS_OFFSET: usize = 128;
/// Size of a [`TraceSection`].
pub const TRACE_SECTION_BYTES: usize = 32;

/// Length of a ring of `sections`; the ring of vCPU n begins at `trace_rings + n * trace_ring_bytes(..)`.
#[must_use]
pub const fn trace_ring_bytes(sections: u64) -> u64 {
    TRACE_SECTIONS_OFFSET as u64 + sections * TRACE_SECTION_BYTES as u64
}
