//! The boot block: written by the VMM before the first entry, constant afterwards.

use core::time::Duration;

use crate::flags::flags;

/// Most vCPUs a guest can have (KVM's own limit on x86-64).
pub const MAX_VCPUS: usize = 1024;

/// Most locks that a workload can spread its sections over.
pub const MAX_LOCKS: u32 = 256;

/// A guest address. The host cannot dereference it: it must go through its guest-memory map.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestAddress(pub u64);

/// Settings of a run. Its address is the first argument (RDI) of the guest's entry point; the vCPU's index is
/// the second (RSI). GS base is the address of the vCPU's [`VcpuArea`](crate::VcpuArea), RSP the top of its stack.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BootBlock {
    /// [`ABI_VERSION`](crate::ABI_VERSION) of the VMM.
    pub abi_version: u32,
    /// Number of vCPUs, 1 to [`MAX_VCPUS`](crate::MAX_VCPUS).
    pub vcpus: u32,
    /// Index into the image's lock table.
    pub lock: u32,
    /// Index into the image's workload table.
    pub workload: u32,
    /// How to run.
    pub flags: BootFlags,
    /// Number of locks that the workload spreads its sections over.
    pub lock_count: u32,
    /// [`ABI_FINGERPRINT`](crate::ABI_FINGERPRINT) of the VMM.
    pub fingerprint: u64,
    /// Address of vCPU 0's [`VcpuArea`](crate::VcpuArea); the others follow without gaps.
    pub vcpu_areas: GuestAddress,
    /// Address of the [`Control`](crate::Control) block.
    pub control: GuestAddress,
    /// Address of `lock_count` [`Oracle`](crate::Oracle)s.
    pub oracles: GuestAddress,
    /// TSC ticks per millisecond (so: kHz).
    pub tsc_khz: u64,
    /// Work inside a critical section, in nanoseconds.
    pub hold_ns: u64,
    /// Work between two critical sections, in nanoseconds.
    pub think_ns: u64,
    /// Iterations of the work loop per 2^20 ns, or 0: measure it at boot and write
    /// [`Control::work_rate`](crate::Control::work_rate).
    pub work_rate: u64,
    /// How long a paravirtual waiter spins before it sleeps, in TSC ticks.
    pub spin_threshold_ticks: u64,
    /// Seed of everything random in the guest.
    pub seed: u64,
    /// Address of the top-level page table that every vCPU starts with. The first of its 512 entries maps all that the
    /// VMM laid out; the others are free.
    pub page_table: GuestAddress,
    /// Memory for the guest's memory manager, aligned to 2 MiB, not written by the VMM; see
    /// [`WorkloadFlags::USES_MEMORY`](crate::WorkloadFlags::USES_MEMORY).
    pub pool: GuestAddress,
    /// Its length, a multiple of 2 MiB, or 0.
    pub pool_bytes: u64,
    /// How many TSC ticks of a slice must be left for locks that ask for that.
    pub slice_margin_ticks: u64,
    /// Address of one [`StealTime`](crate::StealTime) line for each of [`MAX_VCPUS`](crate::MAX_VCPUS) vCPUs, of which only
    /// `preempted` is used, in addition to [`VcpuArea::steal`](crate::VcpuArea::steal); 0: there are none.
    pub preempted_flags: GuestAddress,
    /// Bit n: instrumented locks ring [`PORT_POINT`](crate::PORT_POINT) at point n.
    pub points: u64,
    /// Address of vCPU 0's ring of [`TraceSection`](crate::TraceSection)s; 0: no trace is wanted.
    pub trace_rings: GuestAddress,
    /// Sections per ring, a power of two; see [`trace_ring_bytes`](crate::trace_ring_bytes).
    pub trace_sections: u64,
    /// Address of vCPU 0's row of counters, one (u64) for each lock: how often the vCPU has entered its section since boot,
    /// window or not. The others follow every [`ENTRIES_ROW_BYTES`]. Guest-written.
    pub entries: GuestAddress,
    /// TSC ticks between two samples of the guest's governor, which then changes that number; 0: it has none.
    pub fold_interval_ticks: u64,
    /// Variations of sections, for workloads that have them.
    pub shape: Shape,
    /// How many rounds a paravirtual waiter spins before it sleeps, instead of `spin_threshold_ticks`; 0: it goes by those.
    pub spin_rounds: u32,
    /// Tasks of a workload that has such, at most [`MAX_VCPUS`](crate::MAX_VCPUS).
    pub tasks: u32,
    /// Number of vCPUs that these are to run on at first, 1 to `vcpus`.
    pub preferred_vcpus: u32,
    /// Stolen time up to which the governor prefers one vCPU more, in hundredths of a percent.
    pub fold_low: u32,
    /// Stolen time above which it prefers one fewer.
    pub fold_high: u32,
    /// The number that a lock object gets from `hk_parameter`.
    pub lock_parameter: u32,
}

// Without padding: the VMM copies the bytes of both.
const _: () = assert!(size_of::<BootBlock>() == 272 && size_of::<Request>() == size_of::<BootBlock>() + 32);

/// Variations of sections: memory touched, length, time of arrival, their number, what else is in them. What is zero is left out:
/// as many sections as fit into the window, of one length, one after the other, under each lock in turn.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Sections that all vCPUs together are to complete once the window is open; then one of them rings
    /// [`PORT_WORK_DONE`](crate::PORT_WORK_DONE). 0: as many as fit into the window.
    pub work_sections: u64,
    /// Mean time between two sections that a vCPU is to begin, in nanoseconds, whether it is done with the one before or not;
    /// 0: it begins the next when it has thought.
    pub arrivals_ns: u64,
    /// Work inside a long critical section, in nanoseconds.
    pub long_hold_ns: u64,
    /// Work inside a section that only reads, in nanoseconds.
    pub read_hold_ns: u64,
    /// One section in this many is long; 0: none.
    pub long_one_in: u32,
    /// One section in this many has a second one inside, under another lock; 0: none.
    pub nested_one_in: u32,
    /// Sections in a hundred that only read.
    pub read_percent: u32,
    /// How far the length of a section is off [`BootBlock::hold_ns`], at most, in percent of it.
    pub hold_jitter_percent: u32,
    /// Lock n (from 1 on) is chosen with a probability that falls with n to this power, in hundredths; 0: in turn.
    pub zipf_hundredths: u32,
    /// Cache lines that a section reads one after the other.
    pub footprint_lines: u32,
    /// Number of these lines that it writes, too.
    pub dirty_lines: u32,
    /// Switches.
    pub flags: ShapeFlags,
}

impl Shape {
    /// Mean work inside a section, where a short one takes `hold`.
    #[must_use]
    pub fn mean_hold(&self, hold: Duration) -> Duration {
        match self.long_one_in {
            0 => hold,
            n => (hold * (n - 1) + Duration::from_nanos(self.long_hold_ns)) / n,
        }
    }

    /// Whether all sections are of the length asked for, one after the other.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.footprint_lines == 0 && self.read_percent == 0 && self.arrivals_ns == 0
    }

    /// Sections of a fixed amount of work.
    #[must_use]
    pub fn work(&self) -> Option<u64> {
        Some(self.work_sections).filter(|&sections| sections > 0)
    }
}

flags! {
    /// Switches of a [`Shape`].
    ShapeFlags: u32 {
        /// Times between sections are exponentially distributed; else all alike.
        EXPONENTIAL_THINK = 0;
        /// The first line of a section's footprint is the line in which its lock ends, as where a kernel's object contains its lock.
        EMBED = 1;
        /// When the fixed amount of work is done the vCPUs go on as before, uncounted; else they leave.
        GO_ON = 2;
        /// With [`BootFlags::GRACE`]: long sections ask for none.
        ONLY_SHORT_ASK = 3;
    }
}

/// ELF section with the image's [`Request`], for a monitor that does not write the boot block.
pub const REQUEST_SECTION: &str = ".haltkick.request";

/// Request to an image that runs by itself: the VMM writes it into the copy of the image that the monitor starts. The guest adds what
/// only it can know there: addresses, how to kick, the clock.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The boot block for a clock of a nanosecond a tick, without addresses. `vcpus` 0: nothing is asked.
    pub boot: BootBlock,
    /// Time between start and window, in nanoseconds.
    pub warmup_ns: u64,
    /// Length of the window, in nanoseconds.
    pub window_ns: u64,
    /// TSC ticks per millisecond; 0: the guest measures them.
    pub tsc_khz: u64,
    /// How vCPUs are woken: one of the [`WAKES`].
    pub wakes: u32,
    /// Memory of the machine, in MiB, in one piece from address 0 on.
    pub memory_mib: u32,
}

/// Port for bytes of text where the image runs by itself: QEMU's debug console.
pub const QEMU_CONSOLE_PORT: u16 = 0xe9;

/// Port for the exit code there: QEMU's debug exit.
pub const QEMU_EXIT_PORT: u16 = 0xf4;

/// Ways to wake a vCPU, by their numbers in [`Request::wakes`]: as CPUID offers, by hypercall, by interrupt.
pub const WAKES: [&str; 3] = ["auto", "kvm", "ipi"];

/// Ticks of a [`Request`]'s clock in a millisecond.
pub const NANOSECOND_TICKS_KHZ: u64 = 1_000_000;

/// Length of a vCPU's row of [`BootBlock::entries`]: room for as many locks as there can be, and out of step with the cache's
/// sets like [`VcpuArea`](crate::VcpuArea).
pub const ENTRIES_ROW_BYTES: usize = MAX_LOCKS as usize * 8 + 128;

flags! {
    /// How to run.
    BootFlags: u32 {
        /// Use the lock's paravirtual form.
        PARAVIRT = 0;
        /// `vcpu_is_preempted` reads the flag; else it always says no.
        PREEMPTED_HINT = 1;
        /// A slice may be extended for a vCPU that says it holds a lock: mind
        /// [`HostLine::yield_wanted`](crate::HostLine::yield_wanted).
        GRACE = 2;
        /// Watch over every section with its lock's [`Oracle`](crate::Oracle).
        ORACLE = 3;
        /// Read the clock between fences, so that what comes before a reading is over and what comes after has not begun.
        ORDERED_STAMPS = 4;
        /// Ring 0 with KVM's interrupt controller in x2APIC mode, APIC ids equal to indices: `pv_wait` is HLT, and `pv_kick` an
        /// interrupt with vector [`WAKE_VECTOR`], instead of [`PORT_WAIT`](crate::PORT_WAIT) and
        /// [`PORT_KICK`](crate::PORT_KICK).
        HALT = 5;
        /// With [`BootFlags::HALT`]: `pv_kick` is KVM_HC_KICK_CPU.
        KICK_HYPERCALL = 6;
        /// With [`BootFlags::HALT`]: a directed yield is KVM_HC_SCHED_YIELD.
        YIELD_HYPERCALL = 7;
        /// Hypercalls are VMMCALL (AMD), not VMCALL (Intel).
        VMMCALL = 8;
        /// There is no VMM of ours: the guest serves its own hypercalls.
        BARE = 9;
        /// Each vCPU rings [`PORT_STARTED`](crate::PORT_STARTED) once, when it is about to enter its workload.
        EACH_SAYS_STARTED = 10;
    }
}

/// Interrupt vector that wakes a halted vCPU.
pub const WAKE_VECTOR: u8 = 0xf0;
