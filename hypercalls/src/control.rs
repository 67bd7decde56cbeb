//! The control block: the measuring window, what the boot vCPU found out, and the locks as they are looked at from outside.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use crate::Padding;

/// One per guest. The window line is read by every vCPU in every round and written twice in a run.
#[repr(C, align(128))]
pub struct Control {
    /// Host-written: [`WINDOW_WARMUP`], then [`WINDOW_OPEN`], then [`WINDOW_CLOSED`].
    pub window: AtomicU32,
    _pad: Padding<124>,
    /// Host-written: vCPUs that are ready and have no pCPU, or [`READY_UNKNOWN`]. A hint.
    pub ready_vcpus: AtomicU32,
    _pad1: Padding<124>,
    /// Guest-written, by vCPU 0 before [`PORT_BOOTED`](crate::PORT_BOOTED): iterations of the work loop per 2^20 ns.
    pub work_rate: AtomicU64,
    /// Guest-written: TSC at which the first vCPU began its workload, and so took its first lock.
    pub workload_tsc: AtomicU64,
    /// Guest-written: vCPUs that have reached their workload.
    pub started: AtomicU32,
    /// Guest-written: vCPUs that have finished, in workloads with
    /// [`WorkloadFlags::CHECKS_AT_REST`](crate::WorkloadFlags::CHECKS_AT_REST).
    pub finished: AtomicU32,
    /// Guest-written, by vCPU 0 before [`PORT_BOOTED`](crate::PORT_BOOTED): TSC ticks of 1024 uncontended pairs of lock and
    /// unlock, by how they are called ([`PAIR_COMPILED_IN`] and its siblings). 0: this lock cannot be called like that.
    pub pair_ticks: [AtomicU64; 3],
    /// Guest-written, by vCPU 0 right before [`PORT_BOOTED`](crate::PORT_BOOTED): its TSC, for the host to compare with its
    /// own.
    pub booted_tsc: AtomicU64,
    /// Guest-written: not 0 when all vCPUs have finished and what they left was found to be right.
    pub at_rest: AtomicU32,
    /// Guest-written: vCPUs that have set up what they need, in workloads with
    /// [`WorkloadFlags::CHECKS_AT_REST`](crate::WorkloadFlags::CHECKS_AT_REST).
    pub ready: AtomicU32,
    /// Guest-written, by vCPU 0 before [`PORT_BOOTED`](crate::PORT_BOOTED): address of lock 0; 0: unknown.
    pub locks: AtomicU64,
    /// Guest-written with it: bytes from one lock to the next.
    pub lock_stride: AtomicU32,
    /// Guest-written with it: what the first bytes of a lock mean, [`WORD_OPAQUE`] and its siblings.
    pub lock_word: AtomicU32,
    /// Guest-written with it: TSC ticks of 1024 uses of the instrument, [`COST_STAMP`] and its siblings. 0: not measured.
    pub cost_ticks: [AtomicU64; COSTS],
    _pad3: Padding<8>,
    /// Guest-written with it.
    pub queues: Queues,
}

/// Place in guest memory of the waiters for locks of the run's kind, for readers of a guest that failed. Guest-written
/// by vCPU 0 before [`PORT_BOOTED`](crate::PORT_BOOTED); all 0 if unknown. Sizes and offsets are in bytes.
#[repr(C, align(128))]
pub struct Queues {
    /// Address of vCPU 0's first node. [`WORD_PV_TICKET`]: of its first slot, which holds the address of a lock (u64; 0: not
    /// in use) and a ticket (u32).
    pub nodes: AtomicU64,
    /// Address of vCPU 0's word that says how many of its nodes are in use; [`WORD_MCS`]: a mask of them.
    pub in_use: AtomicU64,
    /// Address of the hash table of sleeping heads, whose entries hold the address of a lock (u64; 0: free) and the code of
    /// a node (u32) in 16 bytes.
    pub table: AtomicU64,
    /// From one vCPU's nodes, and from one vCPU's `in_use`, to the next one's.
    pub cpu_bytes: AtomicU32,
    /// From one node of a vCPU to its next.
    pub node_bytes: AtomicU32,
    /// Nodes of each vCPU.
    pub nodes_per_cpu: AtomicU32,
    /// Offset in a node of its successor's code (u32; 0: none).
    pub next: AtomicU32,
    /// Offset in a node of a byte that is not 0 once it is first in its queue.
    pub locked: AtomicU32,
    /// Entries of the table.
    pub table_entries: AtomicU32,
    _pad: Padding<80>,
}

/// The meaning of the lock's word is unknown.
pub const WORD_OPAQUE: u32 = 0;
/// 32 bits: 0 free, 1 held.
pub const WORD_TAS: u32 = 1;
/// Two times 32 bits: the ticket that is drawn next, the ticket that is served.
pub const WORD_TICKET: u32 = 2;
/// As [`WORD_TICKET`], with tickets two apart and bit 0 of the second word: a waiter may sleep.
pub const WORD_PV_TICKET: u32 = 3;
/// 32 bits: bits 0-7 locked (1 held, 3 held and unlock must look for a sleeper), bit 8 pending, bits 16-17 node and bits
/// 18-31 CPU + 1 of the last in the queue.
pub const WORD_QSPINLOCK: u32 = 4;
/// As [`WORD_QSPINLOCK`], with node in bits 9-10 and CPU + 1 in bits 11-31.
pub const WORD_QSPINLOCK_WHOLE: u32 = 5;
/// 32 bits: 0 free, else 8 times the CPU + 1, and the node, of the last in the queue, the owner if there are no waiters.
pub const WORD_MCS: u32 = 6;
/// 32 bits: bit 0 locked, bits 1-14 owner, bit 15 an owner was seen preempted, bit 16 no stealing, bits 17-31 CPU + 1 of
/// the last in the queue.
pub const WORD_OWNER_YIELD: u32 = 7;
/// 32 bits: 0 free, else bits 16-31 how many have tried since it was taken, its owner included.
pub const WORD_UNFAIR_TICKET: u32 = 8;
/// 32 bits: bits 3-31 owner + 1, bit 2 the owner has been named and does not know yet, bit 1 the next unlock names the
/// first sleeper, bit 0 a waiter sleeps.
pub const WORD_MUTEX: u32 = 9;
/// 32 bits: 0 free, 1 held, 2 held and a waiter may sleep.
pub const WORD_FUTEX: u32 = 10;

/// The host does not say how many vCPUs are ready.
pub const READY_UNKNOWN: u32 = u32::MAX;

/// Slot of [`Control::pair_ticks`]: compiled into the caller.
pub const PAIR_COMPILED_IN: usize = 0;
/// Slot of [`Control::pair_ticks`]: called through the table, which the VMM does not rewrite.
pub const PAIR_THROUGH_TABLE: usize = 1;
/// Slot of [`Control::pair_ticks`]: called at marked sites, which the VMM may have rewritten.
pub const PAIR_AT_SITES: usize = 2;

/// Slots of [`Control::cost_ticks`].
pub const COSTS: usize = 5;
/// Slot of [`Control::cost_ticks`]: reading the clock as it is.
pub const COST_STAMP: usize = 0;
/// Slot of [`Control::cost_ticks`]: reading the clock between fences.
pub const COST_ORDERED_STAMP: usize = 1;
/// Slot of [`Control::cost_ticks`]: cost of the exclusion checker in a section, without other vCPUs.
pub const COST_ORACLE: usize = 2;
/// Slot of [`Control::cost_ticks`]: all that is around an empty section, the lock left out.
pub const COST_SECTION: usize = 3;
/// Slot of [`Control::cost_ticks`]: counting a section's times.
pub const COST_COUNTING: usize = 4;

/// Work, but count nothing yet.
pub const WINDOW_WARMUP: u32 = 0;
/// Count.
pub const WINDOW_OPEN: u32 = 1;
/// Count nothing more. The VMM stops the vCPUs where they are; a vCPU that sees this may leave.
pub const WINDOW_CLOSED: u32 = 2;

/// Exclusion checker of a lock, written only by the lock's holder with plain stores.
#[repr(C, align(128))]
pub struct Oracle {
    /// vCPU inside the section plus one, or zero. Found non-zero at entry: exclusion is broken.
    pub owner: AtomicU32,
    /// Times that an entering vCPU found another one inside.
    pub overlaps: AtomicU32,
    /// Incremented by load, add, store in every section: must equal the sum of its
    /// [`BootBlock::entries`](crate::BootBlock::entries).
    pub entered: AtomicU64,
    /// TSC at the end of the last section, right before the lock is released.
    pub left_tsc: AtomicU64,
    /// vCPU that left last plus one, or zero: for explanations.
    pub last: AtomicU32,
    _reserved: AtomicU32,
    /// The first time that two vCPUs were found inside together.
    pub met: Meeting,
    _pad: Padding<40>,
}

/// [`Meeting::how`]: by the lock function.
pub const TOOK_BY_LOCK: u32 = 0;
/// [`Meeting::how`]: by the function that takes it for reading.
pub const TOOK_BY_READ: u32 = 1;
/// [`Meeting::how`]: by the function that takes it if it is free.
pub const TOOK_BY_TRY: u32 = 2;

/// Two vCPUs in one section. Written once, by the one that finds the other one.
#[repr(C)]
pub struct Meeting {
    /// vCPU that has found the other one plus one, or zero.
    pub came: AtomicU32,
    /// The other one plus one; zero where there is no telling.
    pub inside: AtomicU32,
    /// vCPU that left the section last before that plus one, or zero.
    pub left: AtomicU32,
    _reserved: AtomicU32,
    /// How each took the lock, in the order of the fields above: [`TOOK_BY_LOCK`] and its siblings.
    pub how: [AtomicU32; 2],
    /// TSC at which it was found.
    pub tsc: AtomicU64,
    /// TSC at which each asked for the lock, in the order of the fields above.
    pub asked_tsc: [AtomicU64; 2],
    /// [`Oracle::left_tsc`] then.
    pub left_tsc: AtomicU64,
}

impl Oracle {
    /// A checker before the first section.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "made in constants")]
    pub const fn new() -> Self {
        Self {
            owner: AtomicU32::new(0),
            overlaps: AtomicU32::new(0),
            entered: AtomicU64::new(0),
            left_tsc: AtomicU64::new(0),
            last: AtomicU32::new(0),
            _reserved: AtomicU32::new(0),
            met: Meeting {
                came: AtomicU32::new(0),
                inside: AtomicU32::new(0),
                left: AtomicU32::new(0),
                _reserved: AtomicU32::new(0),
                how: [const { AtomicU32::new(0) }; 2],
                tsc: AtomicU64::new(0),
                asked_tsc: [const { AtomicU64::new(0) }; 2],
                left_tsc: AtomicU64::new(0),
            },
            _pad: [const { AtomicU8::new(0) }; 40],
        }
    }
}
