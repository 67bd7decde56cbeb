//! Data that one vCPU and the VMM share.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use crate::Padding;
use crate::histogram::Histogram;

/// KVM's steal-time record (MSR 0x4b564d03), 64 bytes. Host-written: by KVM where KVM does, else by the VMM.
#[repr(C, align(64))]
pub struct StealTime {
    /// Nanoseconds that the vCPU was runnable but not on a pCPU.
    pub steal_ns: AtomicU64,
    /// Odd while the record is being updated.
    pub version: AtomicU32,
    /// Zero.
    pub flags: AtomicU32,
    /// Non-zero: the vCPU was taken off its pCPU while it was running and is not back yet.
    pub preempted: AtomicU8,
    _pad: Padding<47>,
}

/// Further data of the host about a vCPU. Host-written.
#[repr(C, align(64))]
pub struct HostLine {
    /// Times that the vCPU was taken off a pCPU while it was running.
    pub generation: AtomicU64,
    /// The [`Invalidation::requested`] up to which this vCPU has dropped its stale translations.
    pub invalidated: AtomicU64,
    /// TSC ticks that the vCPU has been off its pCPU since it was made; exact while it runs. The TSC less this is a clock that
    /// stands still while the vCPU is off. Only the VMM's own scheduler keeps it; else it is 0.
    pub off_ticks: AtomicU64,
    /// TSC at which the present slice ends, or ended if the vCPU is off or in its slice extension; 0: unknown.
    pub slice_end_tsc: AtomicU64,
    /// Not 0: the slice is over, and the vCPU goes on only to leave its critical section. Then it is to ring
    /// [`PORT_YIELD`](crate::PORT_YIELD); if it does not, it is taken off when its grace is over.
    pub yield_wanted: AtomicU32,
    _pad: Padding<28>,
}

/// Identity of this vCPU. Written by the VMM before the first entry, constant afterwards unless the guest spoils it.
#[repr(C, align(128))]
pub struct Identity {
    /// Guest address of this area, so that `mov rax, gs:[SELF_OFFSET]` yields it.
    pub this: AtomicU64,
    /// Index of the vCPU.
    pub cpu: AtomicU32,
    _reserved: AtomicU32,
    /// Top of the stack on which exceptions of this vCPU push their frame.
    pub exception_stack: AtomicU64,
    _pad: Padding<104>,
}

/// Offset of [`Identity::this`] from the GS base.
pub const SELF_OFFSET: usize = 128;
/// Offset of [`Identity::cpu`] from the GS base.
pub const CPU_OFFSET: usize = 136;
/// Offset of [`Identity::exception_stack`] from the GS base.
pub const EXCEPTION_STACK_OFFSET: usize = 144;

/// Activity of the vCPU, for attribution; and, as [`ACTIVITY_HOLDER`], its request not to be descheduled just now.
/// Guest-written.
#[repr(C, align(128))]
pub struct Activity {
    /// One of [`ACTIVITY_OTHER`] and its siblings; a vCPU that waits for a lock while it holds another one is
    /// [`ACTIVITY_HOLDER`].
    pub state: AtomicU32,
    /// Index of the lock that `state` speaks of.
    pub lock: AtomicU32,
    /// TSC at the last change of `state` to waiting.
    pub since_tsc: AtomicU64,
    /// TSC at which the vCPU asked for the lock that it still waits for; 0: it waits for none. Kept by workloads with
    /// [`WorkloadFlags::NOTES_WAITS`](crate::WorkloadFlags::NOTES_WAITS).
    pub awaited_since_tsc: AtomicU64,
    /// Critical sections that the vCPU is in: what `state` is made of, together with what the locks say. For the guest itself.
    pub sections: AtomicU32,
    /// Not 0: the vCPU is in a section that asks for no longer slice, though it holds a lock.
    pub asks_for_no_grace: AtomicU32,
    /// Not 0: the vCPU is in a section whose lock was free when it tried it.
    pub tried: AtomicU32,
    _pad: Padding<92>,
}

impl Activity {
    /// Activity of a vCPU at its start.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "made in constants")]
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(ACTIVITY_OTHER),
            lock: AtomicU32::new(0),
            since_tsc: AtomicU64::new(0),
            awaited_since_tsc: AtomicU64::new(0),
            sections: AtomicU32::new(0),
            asks_for_no_grace: AtomicU32::new(0),
            tried: AtomicU32::new(0),
            _pad: [const { AtomicU8::new(0) }; 92],
        }
    }
}

/// Samples by this vCPU of the `preempted` flags of others, in the workload that checks them. Guest-written.
#[repr(C, align(128))]
pub struct HintSamples {
    /// Looks, inside the window, at the flag of a neighbour that was the same before and after a while in which a running vCPU
    /// moves.
    pub samples: AtomicU64,
    /// Samples at which the flag was set and the neighbour moved.
    pub moved_while_marked: AtomicU64,
    /// Samples at which the flag was clear and the neighbour did not move.
    pub still_while_unmarked: AtomicU64,
    /// Index of the vCPU whose flag was read last.
    pub last_vcpu: AtomicU32,
    /// Whether it was set.
    pub last_marked: AtomicU32,
    /// TSC before it was read; 0 while the two above change.
    pub last_tsc: AtomicU64,
    _pad: Padding<88>,
}

/// Requests of other vCPUs to this one. Guest-written, by any vCPU.
#[repr(C, align(128))]
pub struct Invalidation {
    /// Raised before [`PORT_INVALIDATE`](crate::PORT_INVALIDATE), to a number higher than any before: the vCPU must drop its
    /// cached translations.
    pub requested: AtomicU64,
    /// Translations that have become stale since the vCPU last took this: 0 none, the address of a page, or
    /// [`STALE_ALL`].
    pub stale: AtomicU64,
    _pad: Padding<112>,
}

/// How fast the calibrated work really goes on this vCPU: now and then a piece of work is timed. Guest-written.
#[repr(C, align(128))]
pub struct WorkProbes {
    /// Pieces of work until the next one is timed.
    pub until_next: AtomicU32,
    /// Pieces that were timed; the last [`WORK_PROBES`] of them are kept, number n in place n modulo [`WORK_PROBES`].
    pub taken: AtomicU32,
    /// TSC ticks per [`WORK_PROBE_ITERATIONS`] iterations of the work loop, as each timed piece took them.
    pub ticks: [AtomicU32; WORK_PROBES],
}

/// Timed pieces of work that are kept per vCPU.
pub const WORK_PROBES: usize = 30;
/// Iterations for which [`WorkProbes::ticks`] counts ticks.
pub const WORK_PROBE_ITERATIONS: u64 = 1024;

/// In [`Invalidation::stale`]: everything.
pub const STALE_ALL: u64 = 1;
/// In [`Invalidation::stale`], besides: nothing is stale, or not only, but the vCPU is interrupted; what then is between vCPUs.
pub const STALE_INTERRUPT: u64 = 2;

/// The vCPU neither holds nor awaits a lock.
pub const ACTIVITY_OTHER: u32 = 0;
/// Holds a lock.
pub const ACTIVITY_HOLDER: u32 = 1;
/// In a lock's slow path, not first in its queue (or the lock has no queue).
pub const ACTIVITY_WAITER: u32 = 2;
/// First in a lock's queue.
pub const ACTIVITY_HEAD: u32 = 3;

/// In [`POINTS_SECTION`](crate::POINTS_SECTION): the point does not tell.
pub const ACTIVITY_ANY: u32 = u32::MAX;

/// Number of slots for lock events; their names are the lock crate's, found in the image's `EVENTS_SECTION`.
pub const LOCK_EVENTS: usize = 128;

/// ELF section with one 32-byte zero-padded name per lock event, in the order of the slots.
pub const EVENTS_SECTION: &str = ".haltkick.events";

/// Counts of the vCPU inside the window. Guest-written.
#[repr(C, align(128))]
pub struct Results {
    /// Sections entered since boot, window or not: what a look from outside can see move.
    pub entered: AtomicU64,
    /// Sections completed inside the window (for a workload without locks: operations).
    pub acquisitions: AtomicU64,
    /// Number of these sections that only read, where readers have sections of their own.
    pub reads: AtomicU64,
    /// Times that the TSC was found to have stepped back between two readings on this vCPU; such a time counts as 0 ticks.
    pub tsc_steps_back: AtomicU64,
    /// Time on a pCPU spent in acquiring and releasing locks, inside the window, in TSC ticks
    /// ([`HostLine::off_ticks`]); 0 from workloads that do not measure it.
    pub lock_ticks: AtomicU64,
    /// Lock events since boot, in the slots of the image's event table.
    pub lock_events: [AtomicU64; LOCK_EVENTS],
    /// Times inside the window, in TSC ticks. What they are of [`Descriptor::times`](crate::Descriptor::times) says: from
    /// asking to having a lock, from there to the end of the section, and from there to having released it, in workloads that
    /// are made of sections.
    pub times: [Histogram; TIMES],
}

/// Slots of [`Results::times`].
pub const TIMES: usize = 6;
/// Slot of [`Results::times`]: from asking to having.
pub const TIME_WAIT: usize = 0;
/// Slot of [`Results::times`]: from having to the end of the section.
pub const TIME_HOLD: usize = 1;
/// Slot of [`Results::times`]: from the end of the section to having released.
pub const TIME_UNLOCK: usize = 2;

/// In [`Report::error_code`] of a panic: locks wanted more memory than there is for them, which is no fault of theirs.
pub const PANIC_NO_MEMORY: u64 = 1;

/// Why the vCPU gave up. Guest-written before [`PORT_PANIC`](crate::PORT_PANIC) or [`PORT_EXCEPTION`](crate::PORT_EXCEPTION).
#[repr(C, align(128))]
pub struct Report {
    /// Exception: vector. Panic: line.
    pub code: AtomicU64,
    /// Exception: error code (0 where the vector has none). Panic: [`PANIC_NO_MEMORY`], or 0.
    pub error_code: AtomicU64,
    /// Exception: instruction pointer.
    pub rip: AtomicU64,
    /// Exception: code segment, whose low two bits are the ring.
    pub cs: AtomicU64,
    /// Exception: flags.
    pub rflags: AtomicU64,
    /// Exception: stack pointer.
    pub rsp: AtomicU64,
    /// Exception: CR2, meaningful for vector 14.
    pub cr2: AtomicU64,
    /// Panic: bytes used in `file`.
    pub file_len: AtomicU32,
    /// Panic: bytes used in `message`.
    pub message_len: AtomicU32,
    /// Panic: source file, UTF-8.
    pub file: [AtomicU8; 128],
    /// Panic: message, UTF-8, cut where it does not fit.
    pub message: [AtomicU8; 320],
}

/// Everything that one vCPU and the VMM share. vCPU n's is at `vcpu_areas + n * size_of::<VcpuArea>()`.
///
/// Its length is an odd multiple of 128 bytes, so that the same line of two vCPUs' areas does not fall into the same set of a
/// cache: with a multiple of 4096 all of them would.
#[repr(C, align(128))]
pub struct VcpuArea {
    /// Host-written.
    pub steal: StealTime,
    /// Host-written.
    pub host: HostLine,
    /// Constant.
    pub identity: Identity,
    /// Guest-written.
    pub activity: Activity,
    /// Guest-written, by any vCPU.
    pub invalidation: Invalidation,
    /// Guest-written.
    pub hint: HintSamples,
    /// Guest-written.
    pub report: Report,
    /// Guest-written.
    pub work: WorkProbes,
    /// Guest-written.
    pub results: Results,
}

/// One critical section of a trace: a ring per vCPU, guest-written, read by the VMM when the guest has stopped.
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
