//! The contract between the Haltkick guest and its VMM. Definitions only; both sides compile this file.
//!
//! Read it top to bottom: version, how an image introduces itself, ports, the boot block, the window,
//! the per-vCPU shared area. Every field says who writes it. A line (64 bytes) written by one side is never
//! written by the other, and lines of different writers are 128 bytes apart (adjacent-line prefetch), because
//! false sharing on the `preempted` flag is one of the things this project measures.
//!
//! Shared fields are atomics so that both sides may look at them at any time. The VMM believes none of what the
//! guest writes beyond the figure it prints.
#![no_std]

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

// ---------------------------------------------------------------------------------------------------------
// Version

/// Version of everything in this file. The VMM refuses an image that was built for another one, and the guest a VMM.
pub const ABI_VERSION: u32 = 2;

/// A number that changes with every byte of this file, so that two sides which were built from different states of it do
/// not take each other for alike: FNV-1a. Both check it, see [`ImageNote::fingerprint`] and [`BootBlock::fingerprint`].
pub const ABI_FINGERPRINT: u64 = {
    let (text, mut hash, mut at) = (include_bytes!("lib.rs"), 0xcbf2_9ce4_8422_2325_u64, 0);
    while at < text.len() {
        hash = (hash ^ text[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
};

/// Most vCPUs a guest can have (KVM's own limit on x86-64).
pub const MAX_VCPUS: usize = 1024;

/// Most locks that a workload can spread its sections over.
pub const MAX_LOCKS: u32 = 256;

// ---------------------------------------------------------------------------------------------------------
// How an image introduces itself: one ELF note and two tables

/// Owner name of the ELF note (with its terminating zero, as ELF notes have it).
pub const NOTE_OWNER: [u8; 9] = *b"Haltkick\0";

/// Type of the ELF note that holds an [`ImageNote`].
pub const NOTE_TYPE: u32 = 1;

/// Descriptor of the ELF note. Addresses are guest-virtual, which equals guest-physical.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ImageNote {
    /// [`ABI_VERSION`] of the image.
    pub abi_version: u32,
    /// Size of one vector stub in bytes; stub n is at `vector_stubs + n * vector_stub_bytes`.
    pub vector_stub_bytes: u32,
    /// Address of 256 interrupt and exception stubs.
    pub vector_stubs: u64,
    /// [`ABI_FINGERPRINT`] of the image; 0: it was not compiled from this file, but written to its version.
    pub fingerprint: u64,
    /// What the image fills in beyond wait and hold times; a VMM refuses bits that it does not know.
    pub features: Features,
}

/// What fills up a structure that host and guest share. The other side may write there: atomic, like the rest, so that a
/// reference to the structure promises nothing about it.
type Padding<const BYTES: usize> = [AtomicU8; BYTES];

/// Declares a type of flags, so that those of one kind are not taken for those of another.
macro_rules! flags {
    ($(#[$doc:meta])* $name:ident: $word:ty { $($(#[$flag_doc:meta])* $flag:ident = $bit:literal;)* }) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(pub $word);

        impl $name {
            /// None.
            pub const NONE: Self = Self(0);
            /// All that this file defines.
            pub const KNOWN: Self = Self(0 $(| 1 << $bit)*);
            $($(#[$flag_doc])* pub const $flag: Self = Self(1 << $bit);)*

            /// These and those.
            #[must_use]
            pub const fn with(self, others: Self) -> Self {
                Self(self.0 | others.0)
            }

            /// These, and those if `condition` holds.
            #[must_use]
            pub const fn with_if(self, condition: bool, others: Self) -> Self {
                if condition { self.with(others) } else { self }
            }

            /// Whether all of `flags` are among these.
            #[must_use]
            pub const fn has(self, flags: Self) -> bool {
                self.0 & flags.0 == flags.0
            }
        }

        // No two share a bit.
        const _: () = assert!($name::KNOWN.0.count_ones() == 0 $(+ { let _ = $bit; 1 })*);
    };
}

flags! {
    /// What an image does beyond what every image must.
    Features: u64 {
        /// It keeps an [`Oracle`] and [`BootBlock::entries`] for each lock, unless it is told not to.
        ORACLES = 0;
        /// It fills in [`TIME_UNLOCK`].
        UNLOCK_TIMES = 1;
        /// It fills in [`Control::pair_ticks`] and [`Control::cost_ticks`].
        COSTS = 2;
    }
}

/// ELF section with one [`Descriptor`] per lock, in the order of the lock's index.
pub const LOCKS_SECTION: &str = ".haltkick.locks";

/// ELF section with one [`Descriptor`] per point in the slow paths of instrumented locks, in the order of the points'
/// numbers. Its flags are what a vCPU that passes it does: [`ACTIVITY_HOLDER`] and its siblings, or [`ACTIVITY_ANY`].
pub const POINTS_SECTION: &str = ".haltkick.points";

/// ELF section with one [`Descriptor`] per workload, in the order of the workload's index.
pub const WORKLOADS_SECTION: &str = ".haltkick.workloads";

/// ELF section with two [`LockCalls`] per lock, in the order of the lock's index: native form, paravirtual form.
pub const CALLS_SECTION: &str = ".haltkick.calls";

/// How one form of a lock is called, and what memory it takes. Addresses of functions; 0: there is no such form, or it
/// cannot be called like that. A form is either called or closed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LockCalls {
    /// What a lock site calls, with the address of the lock; it returns a token.
    pub lock: u64,
    /// What an unlock site calls, with the address of the lock and the token.
    pub unlock: u64,
    /// What a read-lock site calls: `lock` where there are no readers.
    pub read: u64,
    /// What a read-unlock site calls.
    pub read_unlock: u64,
    /// Closed: what a section site calls, with the address of the lock, a function and its argument. It calls that function
    /// while it holds the lock.
    pub section: u64,
    /// Bytes of one lock.
    pub lock_bytes: u32,
    /// Bytes that each vCPU needs for all locks of this kind.
    pub cpu_bytes: u32,
}

/// ELF section with one [`CallSite`] per place where the workloads take or release a lock. The VMM may rewrite what
/// lies there before the guest starts.
pub const SITES_SECTION: &str = ".haltkick.sites";

/// One instruction that calls through a slot of a table: lock address in RDI; a token returned in RAX and RDX (lock, read)
/// or passed in RSI and RDX (unlock, read-unlock); a function in RSI and its argument in RDX (section); all registers as in the
/// System V ABI.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CallSite {
    /// Address of the instruction.
    pub address: u64,
    /// Address of the slot.
    pub slot: u64,
    /// Length of the instruction.
    pub bytes: u32,
    /// [`OPERATION_LOCK`] and its siblings.
    pub operation: u32,
}

/// The site takes a lock.
pub const OPERATION_LOCK: u32 = 0;
/// The site releases a lock.
pub const OPERATION_UNLOCK: u32 = 1;

/// The site takes a lock for reading.
pub const OPERATION_READ: u32 = 2;
/// The site releases a lock that was taken for reading.
pub const OPERATION_READ_UNLOCK: u32 = 3;
/// The site does something while it holds a lock.
pub const OPERATION_SECTION: u32 = 4;

/// What an image says of one of its locks, workloads or points. The VMM lists these and passes the index back.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Descriptor {
    /// Name on the command line, zero-padded UTF-8; `lock/layout` for a lock that has several layouts.
    pub name: [u8; 32],
    /// One line for `haltkick list`, zero-padded UTF-8.
    pub summary: [u8; 120],
    /// [`LockFlags`], [`WorkloadFlags`], or what a vCPU does that passes the point.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
    /// Workloads: what they report in each of [`Results::times`], zero-padded UTF-8; empty: nothing.
    pub times: [[u8; 16]; TIMES],
}

flags! {
    /// What is special about a lock.
    LockFlags: u32 {
        /// It has a native form (`--pv off`).
        HAS_NATIVE = 0;
        /// It has a paravirtual form (`--pv on`).
        HAS_PARAVIRT = 1;
        /// It excludes nobody: the measure of the ideal, exempt from the exclusion check.
        IS_LOCK_FREE = 2;
        /// It is a way to serve page faults, for workloads with [`WorkloadFlags::FAULTS_PAGES`]. One that is
        /// [`LockFlags::IS_LOCK_FREE`] as well gives each vCPU an address space of its own there.
        SERVES_FAULTS = 3;
        /// It rings [`PORT_POINT`] at those points of its slow path that [`BootBlock::points`] asks for.
        HAS_POINTS = 4;
        /// It can be part of a structure that is made of locks: it is small and needs no token.
        IS_PART = 5;
        /// Readers share it.
        HAS_READERS = 6;
    }
}

flags! {
    /// What is special about a workload.
    WorkloadFlags: u32 {
        /// It ends by failing on purpose, or checks something.
        IS_SELFTEST = 0;
        /// It has a memory manager: the VMM gives the guest a pool ([`BootBlock::pool`]).
        USES_MEMORY = 1;
        /// It takes page faults: its locks are those with [`LockFlags::SERVES_FAULTS`].
        FAULTS_PAGES = 2;
        /// It has a structure that is made of locks: only those with [`LockFlags::IS_PART`] will do.
        NEEDS_PARTS = 3;
        /// It sets something up before it can be warm, finishes what it does after the window, and looks at what is left: the
        /// VMM waits for [`Control::ready`] and [`Control::at_rest`].
        CHECKS_AT_REST = 4;
        /// It notes its critical sections in [`BootBlock::trace_rings`].
        NOTES_SECTIONS = 5;
        /// Nobody ever holds or awaits a lock in it, whichever lock it is given.
        TAKES_NO_LOCK = 6;
        /// Its operations are sections of the length asked for, under one of the locks each: no lock lets more than locks /
        /// hold of them through.
        IDEAL_IS_SERIAL = 7;
        /// Without a lock it does the same work with nobody in the way: no lock lets more through.
        IDEAL_IS_LOCK_FREE = 8;
        /// It keeps [`Activity::awaited_since_tsc`], so that waits which have not ended when the window closes are known.
        NOTES_WAITS = 9;
        /// It is about sleeping and waking: without a paravirtual lock it shows nothing.
        NEEDS_PARAVIRT = 10;
    }
}

// ---------------------------------------------------------------------------------------------------------
// Hypercalls: a 32-bit `out` to one of these ports, argument in EAX. Nothing is returned.

/// First port, and the granularity of the block: ports lie within the I/O bitmap that ring 3 is given.
pub const PORT_BASE: u16 = 0x500;
/// Sleep until the next kick. A kick that came since the last wait is latched and ends it at once.
pub const PORT_WAIT: u16 = 0x500;
/// Wake vCPU EAX; latched if it does not sleep.
pub const PORT_KICK: u16 = 0x504;
/// Give up the rest of the slice, to vCPU EAX or to anyone ([`YIELD_TO_ANY`]).
pub const PORT_YIELD: u16 = 0x508;
/// This vCPU has nothing more to do. EAX is zero.
pub const PORT_EXIT: u16 = 0x50c;
/// The guest gives up. EAX is zero; the reason is in [`VcpuArea::report`].
pub const PORT_PANIC: u16 = 0x510;
/// An exception without a handler of its own. EAX is zero; the frame is in [`VcpuArea::report`].
pub const PORT_EXCEPTION: u16 = 0x514;
/// One byte of text for the console, in AL.
pub const PORT_CONSOLE: u16 = 0x518;
/// The boot vCPU is done with what only it does; the others may start. EAX is zero.
pub const PORT_BOOTED: u16 = 0x51c;
/// Every vCPU whose [`Invalidation::requested`] exceeds its [`HostLine::invalidated`] is to drop the translations that its
/// CPU has cached before it executes its next instruction: it is given an NMI. EAX is zero. The VMM acknowledges by
/// [`HostLine::invalidated`], for vCPUs that are off their pCPU before this returns.
pub const PORT_INVALIDATE: u16 = 0x520;
/// The vCPU passes point EAX of a lock's slow path, and may be kept there.
pub const PORT_POINT: u16 = 0x524;
/// The fixed amount of work is done ([`BootBlock::work_sections`]). EAX is zero.
pub const PORT_WORK_DONE: u16 = 0x528;
/// Last port (inclusive) that ring 3 may use.
pub const PORT_LAST: u16 = 0x53f;

/// Argument of [`PORT_YIELD`]: to whoever is next.
pub const YIELD_TO_ANY: u32 = u32::MAX;

// ---------------------------------------------------------------------------------------------------------
// Boot block: written by the VMM before the first entry, constant afterwards

/// A guest address. The host cannot dereference it: it must go through its guest-memory map.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestAddress(pub u64);

/// Settings of a run. Its address is the first argument (RDI) of the guest's entry point; the vCPU's index is
/// the second (RSI). GS base is the address of the vCPU's [`VcpuArea`], RSP the top of its stack.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BootBlock {
    /// [`ABI_VERSION`] of the VMM.
    pub abi_version: u32,
    /// Number of vCPUs, 1 to [`MAX_VCPUS`].
    pub vcpus: u32,
    /// Index into the image's lock table.
    pub lock: u32,
    /// Index into the image's workload table.
    pub workload: u32,
    /// How to run.
    pub flags: BootFlags,
    /// Number of locks that the workload spreads its sections over.
    pub lock_count: u32,
    /// [`ABI_FINGERPRINT`] of the VMM.
    pub fingerprint: u64,
    /// Address of vCPU 0's [`VcpuArea`]; the others follow without gaps.
    pub vcpu_areas: GuestAddress,
    /// Address of the [`Control`] block.
    pub control: GuestAddress,
    /// Address of `lock_count` [`Oracle`]s.
    pub oracles: GuestAddress,
    /// TSC ticks per millisecond (so: kHz).
    pub tsc_khz: u64,
    /// Work inside a critical section, in nanoseconds.
    pub hold_ns: u64,
    /// Work between two critical sections, in nanoseconds.
    pub think_ns: u64,
    /// Iterations of the work loop per 2^20 ns, or 0: measure it at boot and write [`Control::work_rate`].
    pub work_rate: u64,
    /// How long a paravirtual waiter spins before it sleeps, in TSC ticks.
    pub spin_threshold_ticks: u64,
    /// Seed of everything random in the guest.
    pub seed: u64,
    /// Address of the top-level page table that every vCPU starts with. The first of its 512 entries maps all that the
    /// VMM laid out; the others are free.
    pub page_table: GuestAddress,
    /// Memory for the guest's memory manager, aligned to 2 MiB, not written by the VMM; see [`WorkloadFlags::USES_MEMORY`].
    pub pool: GuestAddress,
    /// Its length, a multiple of 2 MiB, or 0.
    pub pool_bytes: u64,
    /// How many TSC ticks of a slice must be left for locks that ask for that.
    pub slice_margin_ticks: u64,
    /// Address of one [`StealTime`] line for each of [`MAX_VCPUS`] vCPUs, of which only `preempted` is used, in addition to
    /// [`VcpuArea::steal`]; 0: there are none.
    pub preempted_flags: GuestAddress,
    /// Bit n: instrumented locks ring [`PORT_POINT`] at point n.
    pub points: u64,
    /// Sections that all vCPUs together are to complete once the window is open; then one of them rings
    /// [`PORT_WORK_DONE`]. 0: as many as fit into the window.
    pub work_sections: u64,
    /// Work inside a long critical section, in nanoseconds.
    pub long_hold_ns: u64,
    /// One section of so many is long; 0: none.
    pub long_one_in: u32,
    /// One section of so many has a second one inside, under another lock; 0: none.
    pub nested_one_in: u32,
    /// Address of vCPU 0's ring of [`TraceSection`]s, or 0: nobody wants to know.
    pub trace_rings: GuestAddress,
    /// Sections per ring, a power of two; see [`trace_ring_bytes`].
    pub trace_sections: u64,
    /// Address of vCPU 0's row of counters, one (u64) for each lock: how often the vCPU has entered its section since boot,
    /// window or not. The others follow every [`ENTRIES_ROW_BYTES`]. Guest-written.
    pub entries: GuestAddress,
    /// Work inside a section that only reads, in nanoseconds.
    pub read_hold_ns: u64,
    /// Mean time between two sections that a vCPU is to begin, in TSC ticks, whether it is done with the one before or not;
    /// 0: it begins the next when it has worked for `think_ns`.
    pub arrival_ticks: u64,
    /// Sections in a hundred that only read.
    pub read_percent: u32,
    /// How far the length of a section is off `hold_ns`, at most, in percent of it.
    pub hold_jitter_percent: u32,
    /// Lock n (from 1 on) is chosen with a probability that falls with n to this power, in hundredths; 0: in turn.
    pub zipf_hundredths: u32,
    /// Cache lines that a section reads one after the other.
    pub footprint_lines: u32,
    /// Those of them that it writes, too.
    pub dirty_lines: u32,
    /// How many rounds a paravirtual waiter spins before it sleeps, instead of `spin_threshold_ticks`; 0: it goes by those.
    pub spin_rounds: u32,
}

/// Length of a vCPU's row of [`BootBlock::entries`]: room for as many locks as there can be, and out of step with the cache's
/// sets like [`VcpuArea`].
pub const ENTRIES_ROW_BYTES: usize = MAX_LOCKS as usize * 8 + 128;

flags! {
    /// How to run.
    BootFlags: u32 {
        /// Use the lock's paravirtual form.
        PARAVIRT = 0;
        /// `vcpu_is_preempted` reads the flag; else it always says no.
        PREEMPTED_HINT = 1;
        /// When the fixed amount of work is done the vCPUs go on as before, uncounted; else they leave.
        GO_ON = 2;
        /// A slice may be extended for a vCPU that says it holds a lock: mind [`HostLine::yield_wanted`].
        GRACE = 3;
        /// Watch over every section with its lock's [`Oracle`].
        ORACLE = 4;
        /// Read the clock between fences, so that what comes before a reading is over and what comes after has not begun.
        ORDERED_STAMPS = 5;
        /// Times between sections are exponentially distributed; else all alike.
        EXPONENTIAL_THINK = 6;
        /// Ring 0 with KVM's interrupt controller in x2APIC mode, APIC ids equal to indices: `pv_wait` is HLT, and `pv_kick` an
        /// interrupt with vector [`WAKE_VECTOR`], instead of [`PORT_WAIT`] and [`PORT_KICK`].
        HALT = 8;
        /// With [`BootFlags::HALT`]: `pv_kick` is KVM_HC_KICK_CPU.
        KICK_HYPERCALL = 9;
        /// With [`BootFlags::HALT`]: a directed yield is KVM_HC_SCHED_YIELD.
        YIELD_HYPERCALL = 10;
        /// Hypercalls are VMMCALL (AMD), not VMCALL (Intel).
        VMMCALL = 11;
        /// There is no VMM of ours: the guest serves its own hypercalls.
        BARE = 12;
    }
}

/// Interrupt vector that wakes a halted vCPU.
pub const WAKE_VECTOR: u8 = 0xf0;

// ---------------------------------------------------------------------------------------------------------
// Control block: the measuring window, and what the boot vCPU found out

/// One per guest. The window line is read by every vCPU in every round and written twice in a run.
#[repr(C, align(128))]
pub struct Control {
    /// Host-written: [`WINDOW_WARMUP`], then [`WINDOW_OPEN`], then [`WINDOW_CLOSED`].
    pub window: AtomicU32,
    _pad: Padding<124>,
    /// Host-written: vCPUs that are ready and have no pCPU, or [`READY_UNKNOWN`]. A hint.
    pub ready_vcpus: AtomicU32,
    _pad1: Padding<124>,
    /// Guest-written, by vCPU 0 before [`PORT_BOOTED`]: iterations of the work loop per 2^20 ns.
    pub work_rate: AtomicU64,
    /// Guest-written: TSC at which the first vCPU began its workload, and so took its first lock.
    pub workload_tsc: AtomicU64,
    /// Guest-written: vCPUs that have reached their workload.
    pub started: AtomicU32,
    /// Guest-written: vCPUs that have finished, in workloads with [`WorkloadFlags::CHECKS_AT_REST`].
    pub finished: AtomicU32,
    /// Guest-written, by vCPU 0 before [`PORT_BOOTED`]: TSC ticks of 1024 uncontended pairs of lock and unlock, by how
    /// they are called ([`PAIR_COMPILED_IN`] and its siblings). 0: this lock cannot be called like that.
    pub pair_ticks: [AtomicU64; 3],
    /// Guest-written, by vCPU 0 right before [`PORT_BOOTED`]: its TSC, for the host to compare with its own.
    pub booted_tsc: AtomicU64,
    /// Guest-written: not 0 when all vCPUs have finished and what they left was found to be right.
    pub at_rest: AtomicU32,
    /// Guest-written: vCPUs that have set up what they need, in workloads with [`WorkloadFlags::CHECKS_AT_REST`].
    pub ready: AtomicU32,
    /// Guest-written, by vCPU 0 before [`PORT_BOOTED`]: address of lock 0, or 0: nobody knows.
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

/// Where in guest memory those stand that wait for locks of the run's kind, for whoever looks at a guest that failed.
/// Guest-written by vCPU 0 before [`PORT_BOOTED`]; all 0 where nobody says. Sizes and offsets are in bytes.
#[repr(C, align(128))]
pub struct Queues {
    /// Address of vCPU 0's first node. [`WORD_PV_TICKET`]: of its first slot, which holds the address of a lock (u64; 0: not
    /// in use) and a ticket (u32).
    pub nodes: AtomicU64,
    /// Address of vCPU 0's word that says how many of its nodes are in use; [`WORD_MCS`], [`WORD_CLH`]: a mask of them.
    /// [`WORD_CLH`]: behind it the numbers of the nodes that it has instead of its own (u32 each; 0: its own).
    pub in_use: AtomicU64,
    /// Address of the hash table of sleeping heads, whose entries hold the address of a lock (u64; 0: free) and the code of
    /// a node (u32) in 16 bytes; [`WORD_CLH`]: of the nodes that no vCPU had at first, as far apart as all nodes.
    pub table: AtomicU64,
    /// From one vCPU's nodes, and from one vCPU's `in_use`, to the next one's.
    pub cpu_bytes: AtomicU32,
    /// From one node of a vCPU to its next.
    pub node_bytes: AtomicU32,
    /// Nodes of each vCPU.
    pub nodes_per_cpu: AtomicU32,
    /// Where in a node the code of its successor lies (u32; 0: none).
    pub next: AtomicU32,
    /// Where in a node a byte lies that is not 0 once it is first in its queue; [`WORD_CLH`]: while its vCPU waits or holds.
    pub locked: AtomicU32,
    /// Entries of the table.
    pub table_entries: AtomicU32,
    _pad: Padding<80>,
}

/// Nobody says what the lock's word means.
pub const WORD_OPAQUE: u32 = 0;
/// 32 bits: 0 free, 1 held.
pub const WORD_TAS: u32 = 1;
/// Two times 32 bits: the ticket that is drawn next, the ticket that is served.
pub const WORD_TICKET: u32 = 2;
/// The same, with tickets two apart and bit 0 of the second word: somebody may sleep.
pub const WORD_PV_TICKET: u32 = 3;
/// 32 bits: bits 0-7 locked (1 held, 3 held and unlock must look for a sleeper), bit 8 pending, bits 16-17 node and bits
/// 18-31 CPU + 1 of the last in the queue.
pub const WORD_QSPINLOCK: u32 = 4;
/// The same with node in bits 9-10 and CPU + 1 in bits 11-31.
pub const WORD_QSPINLOCK_WHOLE: u32 = 5;
/// 32 bits: 0 free, else 1 + 8 times the CPU + the node of the last in the queue, the owner if nobody waits.
pub const WORD_MCS: u32 = 6;
/// 32 bits: bit 0 locked, bits 1-14 owner, bit 15 an owner was seen preempted, bit 16 no stealing, bits 17-31 CPU + 1 of
/// the last in the queue.
pub const WORD_OWNER_YIELD: u32 = 7;
/// 32 bits: 0 never taken, else the number of the last node in the queue: 1 + 8 times the CPU + the place of a node that a
/// CPU had at first, then the others. The lock is free if that node is not busy.
pub const WORD_CLH: u32 = 8;
/// 32 bits: 0 free, else bits 16-31 how many have tried since it was taken, its owner included.
pub const WORD_UNFAIR_TICKET: u32 = 9;
/// 32 bits: bits 3-31 owner + 1, bit 2 the owner has been named and does not know yet, bit 1 the next unlock names the first
/// sleeper, bit 0 somebody sleeps.
pub const WORD_MUTEX: u32 = 10;
/// 32 bits: 0 free, 1 held, 2 held and somebody may sleep.
pub const WORD_FUTEX: u32 = 11;

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
/// Slot of [`Control::cost_ticks`]: what the oracle does in a section, nobody else about.
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

/// What guards the guards, one per lock, written only by the lock's holder with plain stores.
#[repr(C, align(128))]
pub struct Oracle {
    /// vCPU inside the section plus one, or zero. Found non-zero at entry: exclusion is broken.
    pub owner: AtomicU32,
    /// Times that an entering vCPU found another one inside.
    pub overlaps: AtomicU32,
    /// Incremented by load, add, store in every section: must equal the sum of its [`BootBlock::entries`].
    pub entered: AtomicU64,
    _pad: Padding<112>,
}

impl Oracle {
    /// Nobody has entered yet.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "made in constants")]
    pub const fn new() -> Self {
        Self {
            owner: AtomicU32::new(0),
            overlaps: AtomicU32::new(0),
            entered: AtomicU64::new(0),
            _pad: [const { AtomicU8::new(0) }; 112],
        }
    }
}

// ---------------------------------------------------------------------------------------------------------
// Per-vCPU shared area

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

/// What else the host tells of a vCPU. Host-written.
#[repr(C, align(64))]
pub struct HostLine {
    /// Times that the vCPU was taken off a pCPU while it was running.
    pub generation: AtomicU64,
    /// The [`Invalidation::requested`] up to which this vCPU runs no instruction with a stale translation any more.
    pub invalidated: AtomicU64,
    /// TSC ticks that the vCPU has been off its pCPU since it was made; exact while it runs. The TSC less this is a clock that
    /// stands still while the vCPU is off. Only the VMM's own scheduler keeps it; else it is 0.
    pub off_ticks: AtomicU64,
    /// TSC at which the present slice ends, or ended if the vCPU is off or in its grace; 0: nobody knows.
    pub slice_end_tsc: AtomicU64,
    /// Not 0: the slice is over, and the vCPU goes on only to leave its critical section. Then it is to ring
    /// [`PORT_YIELD`]; if it does not, it is taken off when its grace is over.
    pub yield_wanted: AtomicU32,
    _pad: Padding<28>,
}

/// Who this vCPU is. Written by the VMM before the first entry, constant afterwards unless the guest spoils it.
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

/// What the vCPU is doing, for attribution; and, as [`ACTIVITY_HOLDER`], its plea not to be taken off just now. Guest-written.
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
    /// [`WorkloadFlags::NOTES_WAITS`].
    pub awaited_since_tsc: AtomicU64,
    /// Critical sections that the vCPU is in: what `state` is made of, together with what the locks say. For the guest itself.
    pub sections: AtomicU32,
    _pad: Padding<100>,
}

impl Activity {
    /// Of a vCPU that has done nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(ACTIVITY_OTHER),
            lock: AtomicU32::new(0),
            since_tsc: AtomicU64::new(0),
            awaited_since_tsc: AtomicU64::new(0),
            sections: AtomicU32::new(0),
            _pad: [const { AtomicU8::new(0) }; 100],
        }
    }
}

impl Default for Activity {
    fn default() -> Self {
        Self::new()
    }
}

/// What this vCPU saw of the `preempted` flags of others, in the workload that checks them. Guest-written.
#[repr(C, align(128))]
pub struct HintSamples {
    /// Looks, inside the window, at the flag of a neighbour that was the same before and after a while in which a running vCPU
    /// moves.
    pub samples: AtomicU64,
    /// Those at which the flag was set and the neighbour moved.
    pub moved_while_marked: AtomicU64,
    /// Those at which the flag was clear and the neighbour did not move.
    pub still_while_unmarked: AtomicU64,
    /// Index of the vCPU whose flag was read last.
    pub last_vcpu: AtomicU32,
    /// Whether it was set.
    pub last_marked: AtomicU32,
    /// TSC before it was read; 0 while the two above change.
    pub last_tsc: AtomicU64,
    _pad: Padding<88>,
}

/// What other vCPUs ask of this one. Guest-written, by any vCPU.
#[repr(C, align(128))]
pub struct Invalidation {
    /// Raised before [`PORT_INVALIDATE`], to a number higher than any before: the vCPU must drop its cached translations.
    pub requested: AtomicU64,
    /// What has become stale since the vCPU last took this: 0 nothing, the address of a page, or [`STALE_ALL`].
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
/// What [`WorkProbes::ticks`] counts ticks for.
pub const WORK_PROBE_ITERATIONS: u64 = 1024;

/// In [`Invalidation::stale`]: everything.
pub const STALE_ALL: u64 = 1;

/// Neither holds nor waits for a lock.
pub const ACTIVITY_OTHER: u32 = 0;
/// Holds a lock.
pub const ACTIVITY_HOLDER: u32 = 1;
/// In a lock's slow path, not first in its queue (or the lock has no queue).
pub const ACTIVITY_WAITER: u32 = 2;
/// First in a lock's queue.
pub const ACTIVITY_HEAD: u32 = 3;

/// In [`POINTS_SECTION`]: the point does not tell.
pub const ACTIVITY_ANY: u32 = u32::MAX;

/// Number of slots for lock events; their names are the lock crate's, found in the image's `EVENTS_SECTION`.
pub const LOCK_EVENTS: usize = 96;

/// ELF section with one 32-byte zero-padded name per lock event, in the order of the slots.
pub const EVENTS_SECTION: &str = ".haltkick.events";

/// What the vCPU counted inside the window. Guest-written.
#[repr(C, align(128))]
pub struct Results {
    /// Sections entered since boot, window or not: what a look from outside can see move.
    pub entered: AtomicU64,
    /// Sections completed inside the window (for a workload without locks: operations).
    pub acquisitions: AtomicU64,
    /// Those of them that only read, where readers have sections of their own.
    pub reads: AtomicU64,
    /// Times that the TSC was found to have stepped back between two readings on this vCPU; such a time counts as 0 ticks.
    pub tsc_steps_back: AtomicU64,
    /// Time on a pCPU spent in acquiring and releasing locks, inside the window, in TSC ticks
    /// ([`HostLine::off_ticks`]); 0 from workloads that do not measure it.
    pub lock_ticks: AtomicU64,
    /// Lock events since boot, in the slots of the image's event table.
    pub lock_events: [AtomicU64; LOCK_EVENTS],
    /// Times inside the window, in TSC ticks. What they are of [`Descriptor::times`] says: from asking to having a lock, from there
    /// to the end of the section, and from there to having released it, in workloads that are made of sections.
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

/// Why the vCPU gave up. Guest-written before [`PORT_PANIC`] or [`PORT_EXCEPTION`].
#[repr(C, align(128))]
pub struct Report {
    /// Exception: vector. Panic: line.
    pub code: AtomicU64,
    /// Exception: error code (0 where the vector has none).
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
    _colour: Padding<{ 128 * (1 - VCPU_LINES % 2) }>,
}

/// Pairs of lines in a [`VcpuArea`] without its colour.
const VCPU_LINES: usize = {
    use core::mem::size_of;
    let host = size_of::<StealTime>() + size_of::<HostLine>() + size_of::<Identity>();
    let guest = size_of::<Activity>()
        + size_of::<Invalidation>()
        + size_of::<HintSamples>()
        + size_of::<Report>()
        + size_of::<WorkProbes>();
    (host + guest + size_of::<Results>()) / 128
};

// ---------------------------------------------------------------------------------------------------------
// Trace: one ring per vCPU, guest-written, read by the VMM when the guest has stopped

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

// ---------------------------------------------------------------------------------------------------------
// Histograms: log2-linear, 16 steps per octave (each at most 6.25 % wide)

/// Steps per octave.
pub const HISTOGRAM_STEPS: u64 = 16;
/// Buckets: values from 0 to 2^40 - 1 ticks (minutes); larger ones fall into the last.
pub const HISTOGRAM_BUCKETS: usize = ((40 - 4 + 1) * HISTOGRAM_STEPS) as usize;

/// Counts per bucket. Guest-written, without atomic read-modify-write: one vCPU, one histogram.
#[repr(C)]
pub struct Histogram {
    /// Values seen in each bucket, up to the most that a counter holds.
    pub buckets: [AtomicU32; HISTOGRAM_BUCKETS],
    /// Largest value seen.
    pub max: AtomicU64,
    /// Sum of the values seen.
    pub sum: AtomicU64,
}

/// The bucket that counts `value`.
#[inline]
#[must_use]
pub const fn histogram_bucket(value: u64) -> usize {
    if value < HISTOGRAM_STEPS {
        return value as usize;
    }
    let octave = 63 - value.leading_zeros() as u64; // at least 4
    let step = (value >> (octave - 4)) - HISTOGRAM_STEPS;
    let bucket = ((octave - 3) * HISTOGRAM_STEPS + step) as usize;
    if bucket < HISTOGRAM_BUCKETS { bucket } else { HISTOGRAM_BUCKETS - 1 }
}

/// The smallest value that `bucket` counts. Partner of [`histogram_bucket`].
#[must_use]
pub const fn histogram_lower_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < HISTOGRAM_STEPS {
        return bucket;
    }
    let octave = bucket / HISTOGRAM_STEPS + 3;
    (HISTOGRAM_STEPS + bucket % HISTOGRAM_STEPS) << (octave - 4)
}

// ---------------------------------------------------------------------------------------------------------
// Layout: what the other side relies on

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<StealTime>() == 64);
    assert!(offset_of!(StealTime, preempted) == 16);
    assert!(size_of::<HostLine>() == 64);
    assert!(offset_of!(VcpuArea, identity) + offset_of!(Identity, this) == SELF_OFFSET);
    assert!(offset_of!(VcpuArea, identity) + offset_of!(Identity, cpu) == CPU_OFFSET);
    assert!(offset_of!(VcpuArea, identity) + offset_of!(Identity, exception_stack) == EXCEPTION_STACK_OFFSET);
    assert!(offset_of!(VcpuArea, activity).is_multiple_of(128));
    assert!(offset_of!(VcpuArea, invalidation).is_multiple_of(128));
    assert!(offset_of!(VcpuArea, results).is_multiple_of(128));
    assert!(size_of::<VcpuArea>().is_multiple_of(128) && !(size_of::<VcpuArea>() / 128).is_multiple_of(2));
    assert!(align_of::<VcpuArea>() == 128);
    assert!(!(ENTRIES_ROW_BYTES / 128).is_multiple_of(2));
    assert!(size_of::<WorkProbes>() == 128);
    assert!(offset_of!(VcpuArea, work).is_multiple_of(128));
    assert!(size_of::<Control>() == 512);
    assert!(size_of::<Queues>() == 128);
    assert!(offset_of!(Control, work_rate) == 256);
    assert!(offset_of!(Control, pair_ticks) == 280);
    assert!(size_of::<Oracle>() == 128);
    assert!(size_of::<Descriptor>() == 160 + 16 * TIMES);
    assert!(size_of::<ImageNote>() == 32);
    assert!(size_of::<LockCalls>() == 48);
    assert!(size_of::<CallSite>() == 24);
    assert!(size_of::<BootBlock>() == 240);
    assert!(size_of::<TraceSection>() == TRACE_SECTION_BYTES);
    assert!(
        histogram_bucket(0) == 0
            && histogram_bucket(16) == 16
            && histogram_bucket(u64::MAX) == HISTOGRAM_BUCKETS - 1
    );
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_holds_its_lower_bound_and_nothing_below() {
        for bucket in 0..HISTOGRAM_BUCKETS {
            let lower = histogram_lower_bound(bucket);
            assert_eq!(histogram_bucket(lower), bucket);
            if lower > 0 {
                assert_eq!(histogram_bucket(lower - 1), bucket - 1);
            }
        }
    }

    #[test]
    fn a_bucket_is_at_most_a_sixteenth_wide() {
        for bucket in HISTOGRAM_STEPS as usize..HISTOGRAM_BUCKETS - 1 {
            let (low, high) = (histogram_lower_bound(bucket), histogram_lower_bound(bucket + 1));
            assert!((high - low) * HISTOGRAM_STEPS <= low, "bucket {bucket}: {low}..{high}");
        }
    }
}
