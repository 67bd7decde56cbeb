//! The image's tables: which locks and workloads there are, by name, and the code of every pair.
//!
//! The descriptors lie in sections of their own so that the VMM can list them without running the image; a
//! descriptor's position is the index by which the VMM asks for it.
#![expect(unsafe_code, reason = "places statics into sections that the VMM reads from the file")]

use haltkick_hypercalls::{
    ABI_VERSION, ACTIVITY_ANY, CHECKS_AT_REST, Descriptor, FAULTS_PAGES, HAS_NATIVE, HAS_PARAVIRT,
    HAS_POINTS, IS_LOCK_FREE, IS_PART, IS_SELFTEST, ImageNote, LockCalls, NEEDS_PARTS, NOTE_OWNER, NOTE_TYPE,
    NOTES_SECTIONS, NOTES_WAITS, SERVES_FAULTS, TAKES_NO_LOCK, USES_MEMORY,
};
use haltkick_locks::Point;
use haltkick_mm::Scheme;

use crate::calls::{Called, LockFunction, Sites, UnlockFunction};
use crate::field::padded;
use crate::locks::{GuestLock, Kind, Scoped};
use crate::percpu::boot;
use crate::workloads::{
    compute, critical_section, file_copy, grant, hand_off, hint_check, memory, mixed, nesting, page_fault,
    rwlock, selftest,
};
use crate::{cost, exceptions};

/// The workloads for one form of one lock, in the order of [`WORKLOADS`].
pub(crate) type Form = [fn(); WORKLOAD_COUNT];

/// One lock's code. A form that it lacks is `None`.
pub(crate) struct LockCode {
    pub(crate) native: Option<LockForm>,
    pub(crate) paravirt: Option<LockForm>,
}

/// One form of a lock.
pub(crate) struct LockForm {
    /// What the sites of the workloads call; `None`: the workloads are compiled for this form.
    pub(crate) called: Option<Called>,
    pub(crate) workloads: Form,
    /// Measures [`cost::pair_ticks`] of it, compiled into its caller.
    pub(crate) pair_ticks: fn() -> u64,
    /// How it serves page faults, if it does.
    pub(crate) faults: Option<Scheme>,
    lock_bytes: u32,
    cpu_bytes: u32,
}

impl LockForm {
    const fn called<K: Kind>() -> Self {
        Self {
            called: Some(Called::of::<K>()),
            workloads: form::<Sites>(),
            pair_ticks: cost::pair_ticks::<K>,
            // Without a lock, each vCPU has an address space of its own, which none of them guards better than another.
            faults: if K::EXCLUDES { None } else { Some(Scheme::MmapSem) },
            lock_bytes: size_of::<K::Lock>() as u32,
            cpu_bytes: K::CPU_BYTES as u32,
        }
    }

    const fn scoped<L: Scoped>() -> Self {
        Self {
            called: None,
            workloads: form::<L>(),
            pair_ticks: cost::pair_ticks::<L>,
            faults: L::FAULTS,
            lock_bytes: L::LOCK_BYTES as u32,
            cpu_bytes: L::CPU_BYTES as u32,
        }
    }

    /// What the VMM is told of it.
    const fn calls(form: &Option<Self>) -> Calls {
        let Some(form) = form else {
            return Calls { lock: None, unlock: None, lock_bytes: 0, cpu_bytes: 0 };
        };
        let (lock, unlock) = match form.called {
            Some(called) => (Some(called.lock), Some(called.unlock)),
            None => (None, None),
        };
        Calls { lock, unlock, lock_bytes: form.lock_bytes, cpu_bytes: form.cpu_bytes }
    }
}

/// [`LockCalls`] with functions for addresses: a constant cannot know these.
#[repr(C)]
struct Calls {
    lock: Option<LockFunction>,
    unlock: Option<UnlockFunction>,
    lock_bytes: u32,
    cpu_bytes: u32,
}

const _: () = assert!(size_of::<Calls>() == size_of::<LockCalls>());

const fn descriptor(name: &str, summary: &str, flags: u32) -> Descriptor {
    Descriptor { name: padded(name), summary: padded(summary), flags, reserved: 0 }
}

/// Index of the lock of that name.
pub(crate) fn lock_named(name: &str) -> Option<u32> {
    position(&LOCKS, name)
}

/// Index of the workload of that name.
pub(crate) fn workload_named(name: &str) -> Option<u32> {
    position(&WORKLOADS, name)
}

fn position(entries: &[Descriptor], name: &str) -> Option<u32> {
    let padded = |entry: &Descriptor| {
        entry.name.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.iter().all(|&b| b == 0))
    };
    entries.iter().position(padded).map(|index| index as u32)
}

macro_rules! count {
    () => { 0 };
    ($head:literal $($tail:literal)*) => { 1 + count!($($tail)*) };
}

macro_rules! workloads {
    ($($name:literal, $summary:literal, $flags:expr, $module:ident::$function:ident;)*) => {
        const WORKLOAD_COUNT: usize = count!($($name)*);

        #[used]
        #[unsafe(link_section = ".haltkick.workloads")]
        static WORKLOADS: [Descriptor; WORKLOAD_COUNT] = [$(descriptor($name, $summary, $flags)),*];

        const fn form<L: GuestLock>() -> Form {
            [$($module::$function::<L>),*]
        }
    };
}

const MEASURES_WAITS: u32 = NOTES_SECTIONS | NOTES_WAITS;
const PARTS: u32 = CHECKS_AT_REST | NEEDS_PARTS;
const LOCKLESS_SELFTEST: u32 = IS_SELFTEST | TAKES_NO_LOCK;
const FAULTS: u32 = USES_MEMORY | FAULTS_PAGES | CHECKS_AT_REST;

workloads! {
    "critical-section", "lock, work for --hold, unlock, work for --think", MEASURES_WAITS, critical_section::run;
    "mixed", "several locks (--locks), long sections (--long-hold), nested ones (--nested), fixed work (--work)", MEASURES_WAITS,
        mixed::run;
    "hand-off", "a token goes round by kick and wait, without a lock: what any hand-over to a sleeper costs", TAKES_NO_LOCK,
        hand_off::run;
    "copy-256", "copy blocks of 256 bytes within a file: read under the read lock, write under the lock", MEASURES_WAITS,
        file_copy::blocks_of_256;
    "copy-1024", "the same with blocks of 1024 bytes", MEASURES_WAITS, file_copy::blocks_of_1024;
    "copy-4096", "the same with blocks of 4096 bytes; --locks N copies within N files in turn", MEASURES_WAITS, file_copy::blocks_of_4096;
    "compute", "work for --hold and --think, and take no lock: a control, in which no lock may differ", TAKES_NO_LOCK,
        compute::run;
    "grant-single", "disks (--locks) stream through a grant table: one spinlock per table (G0)", PARTS, grant::single;
    "grant-split", "the same: table rwlock, a spinlock per entry, one for maptrack (G1)", PARTS, grant::split;
    "grant-cleaned", "the same: and no lock is taken under maptrack's or a second entry's (G2)", PARTS, grant::cleaned;
    "grant-lists", "the same: and a list of free handles per vCPU (G3)", PARTS, grant::lists;
    "grant-per-cpu", "the same: and a per-CPU reader lock for the table (G4)", PARTS, grant::per_cpu;
    "grant-fair", "the same: and a fair queued rwlock underneath (G5)", PARTS, grant::fair;
    "rwlock-unfair", "vCPU 0 writes, all others read: a counter of readers; wait is the writer's", PARTS, rwlock::unfair;
    "rwlock-fair", "the same: a fair queued rwlock, whose queue is --lock", PARTS, rwlock::fair;
    "rwlock-per-cpu", "the same: a slot per reading CPU, on the unfair rwlock", PARTS, rwlock::per_cpu;
    "rwlock-per-cpu-fair", "the same: a slot per reading CPU, on the fair rwlock", PARTS, rwlock::per_cpu_fair;
    "hint-check", "every vCPU compares a neighbour's preempted flag with whether that one moves", TAKES_NO_LOCK,
        hint_check::run;
    "selftest-panic", "vCPU 0 panics", IS_SELFTEST | NOTES_SECTIONS, selftest::panic;
    "selftest-exception", "the last vCPU reads through a null pointer", IS_SELFTEST | NOTES_SECTIONS, selftest::exception;
    "selftest-hang", "vCPU 0 takes the lock 100 times and never returns from the last", IS_SELFTEST | NOTES_SECTIONS, selftest::hang;
    "selftest-latch", "every vCPU kicks itself, then sleeps", LOCKLESS_SELFTEST, selftest::latch;
    "selftest-preempted", "every vCPU checks that a neighbour marked as preempted does not run", LOCKLESS_SELFTEST,
        selftest::preempted;
    "selftest-yield", "every vCPU yields to one after the other, and checks that it was named when it goes on",
        LOCKLESS_SELFTEST, selftest::yields;
    "selftest-liar", "vCPU 0 claims for ever to be in a critical section; all do nothing but work", IS_SELFTEST,
        selftest::liar;
    "selftest-exclusion", "every vCPU enters the critical section without the lock", IS_SELFTEST, selftest::exclusion;
    "selftest-nonsense", "every vCPU writes nonsense into all that it shares with the VMM", IS_SELFTEST, selftest::nonsense;
    "selftest-lost-kick", "all kicks get lost, and with them whoever sleeps: needs --pv on", IS_SELFTEST,
        selftest::lost_kick;
    "selftest-page-fault", "every vCPU faults a page in, protects it, is refused, unmaps it", IS_SELFTEST | USES_MEMORY,
        page_fault::selftest;
    "selftest-memory", "random maps, accesses and unmaps of all kinds, every page checked; no page and no area leaks",
        IS_SELFTEST | USES_MEMORY | FAULTS_PAGES, memory::selftest;
    "selftest-leak", "fault-map-touch, in which vCPU 0 forgets to unmap a page", IS_SELFTEST | FAULTS, memory::leak;
    "fault-map-touch", "map one page, touch it, unmap it", FAULTS, memory::map_touch;
    "fault-many", "map 64 pages, touch each, unmap them", FAULTS, memory::many;
    "fault-read-mostly", "fault pages in and discard them; every eighth vCPU maps, protects, unmaps now and then", FAULTS,
        memory::read_mostly;
    "fault-private", "map one page, touch it, unmap it, each vCPU in an address space of its own", FAULTS,
        memory::private;
    "selftest-nesting", "slow paths interrupted in slow paths, five levels deep, packed words (--locks 5)", IS_SELFTEST,
        nesting::packed;
    "selftest-nesting-whole", "the same with whole words", IS_SELFTEST, nesting::whole;
}

macro_rules! form_of {
    (-) => {
        None
    };
    ((scoped $lock:ident)) => {
        Some(LockForm::scoped::<$lock>())
    };
    ($lock:ident) => {
        Some(LockForm::called::<$lock>())
    };
}

macro_rules! flag_of {
    ($flag:ident, -) => {
        0
    };
    ($flag:ident, $lock:tt) => {
        $flag
    };
}

macro_rules! locks {
    ($($name:literal, $summary:literal, $flags:expr, native $native:tt, paravirt $paravirt:tt;)*) => {
        const LOCK_COUNT: usize = count!($($name)*);

        #[used]
        #[unsafe(link_section = ".haltkick.locks")]
        static LOCKS: [Descriptor; LOCK_COUNT] = [$(descriptor(
            $name, $summary, $flags | flag_of!(HAS_NATIVE, $native) | flag_of!(HAS_PARAVIRT, $paravirt),
        )),*];

        #[used]
        #[unsafe(link_section = ".haltkick.calls")]
        static CALLS: [[Calls; 2]; LOCK_COUNT] = [$([
            LockForm::calls(&form_of!($native)),
            LockForm::calls(&form_of!($paravirt)),
        ]),*];

        /// The code of every lock, in the order of the descriptors.
        pub(crate) static CODE: [LockCode; LOCK_COUNT] = [$(LockCode {
            native: form_of!($native),
            paravirt: form_of!($paravirt),
        }),*];
    };
}

use crate::locks::{
    Clh, Mcs, Mcslock, McslockBarging, McslockBargingHalt, McslockBargingYield, McslockHalt, McslockYield,
    MmapSem, NoLock, OwnerYield, PerVma, QspinlockNative, QspinlockNativeWhole, QspinlockParavirt,
    QspinlockParavirtWhole, QspinlockV16, QspinlockWc, Speculative, SpinMutex, SpinMutexHalt, SpinMutexYield,
    SpinTicket, SpinTicketHalt, SpinTicketYield, SpinningTop, SpinningTopHalt, SpinningTopYield, Tas, Ticket,
    TicketParavirt, UnfairTicket, VirtTas,
};
use crate::locks::{
    Futex, MutexCached, MutexPacked, MutexPrevCpu, MutexSplit, RwSemCached, RwSemPacked, RwSemPrevCpu,
    RwSemSplit,
};
use crate::locks::{
    OwnerYieldPoints, QspinlockNativePoints, QspinlockParavirtPoints, SliceTas, TicketPoints,
};

locks! {
    "none", "no lock at all: what the hardware could do", IS_LOCK_FREE | SERVES_FAULTS | IS_PART, native NoLock, paravirt -;
    "tas", "test and test-and-set, unfair", IS_PART, native Tas, paravirt -;
    "slice-tas", "test-and-set that is not taken when the slice is about to end (--slice-margin)", 0,
        native SliceTas, paravirt -;
    "virt-tas", "test-and-set on the qspinlock word: Linux on a hypervisor without PV", 0, native VirtTas, paravirt -;
    "ticket", "two counters, first come first served; paravirtual: halts, as Linux 3.12 to 4.1", IS_PART,
        native Ticket, paravirt TicketParavirt;
    "unfair-ticket", "ticket lock whose unlock frees it for everybody (2010)", 0, native UnfairTicket, paravirt -;
    "mcs", "queue of per-CPU nodes, first come first served", 0, native Mcs, paravirt -;
    "clh", "queue in which each waits for its predecessor's node", 0, native Clh, paravirt -;
    "qspinlock", "Linux-style queued spinlock; paravirtual: hybrid stealing, halted waiters, hashed head", IS_PART,
        native QspinlockNative, paravirt QspinlockParavirt;
    "qspinlock-whole", "qspinlock whose word is only ever changed whole, as on other machines (up to 2^21 CPUs)", 0,
        native QspinlockNativeWhole, paravirt QspinlockParavirtWhole;
    "qspinlock-v16", "the paravirtual qspinlock as first posted (2015): no stealing", 0,
        native -, paravirt QspinlockV16;
    "qspinlock-wc", "qspinlock whose thieves and woken heads sleep too, instead of spinning behind a preempted owner", 0,
        native -, paravirt QspinlockWc;
    "owner-yield", "queued lock whose word names the owner; waiters yield to it when it is preempted", 0,
        native -, paravirt OwnerYield;
    "mmap-sem", "page faults under mmap_sem, held for reading", SERVES_FAULTS, native -, paravirt (scoped MmapSem);
    "speculative", "page faults without it, validated by a sequence count per area (2018)", SERVES_FAULTS,
        native -, paravirt (scoped Speculative);
    "per-vma", "page faults under the lock of one area (Linux 6.4)", SERVES_FAULTS, native -, paravirt (scoped PerVma);
    "spin-mutex", "spin's SpinMutex: test-and-set; paravirtual: its relax hook halts", 0,
        native SpinMutex, paravirt SpinMutexHalt;
    "spin-mutex-yield", "spin's SpinMutex whose relax hook yields to anyone", 0,
        native -, paravirt SpinMutexYield;
    "spin-ticket", "spin's TicketMutex; paravirtual: its relax hook halts, each unlock wakes all", 0,
        native SpinTicket, paravirt SpinTicketHalt;
    "spin-ticket-yield", "spin's TicketMutex whose relax hook yields to anyone", 0,
        native -, paravirt SpinTicketYield;
    "spinning-top", "spinning_top's Spinlock: test-and-set; paravirtual: its relax hook halts", 0,
        native SpinningTop, paravirt SpinningTopHalt;
    "spinning-top-yield", "spinning_top's Spinlock whose relax hook yields to anyone", 0,
        native -, paravirt SpinningTopYield;
    "mcslock", "mcslock's raw MCS lock; paravirtual: its relax hook halts, each unlock wakes all", 0,
        native (scoped Mcslock), paravirt (scoped McslockHalt);
    "mcslock-yield", "mcslock's raw MCS lock whose relax hook yields to anyone", 0,
        native -, paravirt (scoped McslockYield);
    "mcslock-barging", "mcslock's test-and-set before a queue; paravirtual: the head halts, the queue yields", 0,
        native (scoped McslockBarging), paravirt (scoped McslockBargingHalt);
    "mcslock-barging-yield", "mcslock's test-and-set before a queue; both yield to anyone", 0,
        native -, paravirt (scoped McslockBargingYield);
    "qspinlock-points", "qspinlock that can be stopped at points of its slow path (--deschedule at=)", HAS_POINTS,
        native QspinlockNativePoints, paravirt QspinlockParavirtPoints;
    "ticket-points", "paravirtual ticket lock that can be stopped at points", HAS_POINTS,
        native -, paravirt TicketPoints;
    "owner-yield-points", "owner-yield that can be stopped at points", HAS_POINTS,
        native -, paravirt OwnerYieldPoints;
    "mutex/packed", "sleeping lock; spins, queued, while its owner runs; a sleeper that is overtaken is handed the lock", 0,
        native -, paravirt MutexPacked;
    "mutex/split", "sleeping lock; spins, queued, while its owner runs; a sleeper that is overtaken is handed the lock", 0,
        native -, paravirt MutexSplit;
    "mutex/cached", "sleeping lock; spins, queued, while its owner runs; a sleeper that is overtaken is handed the lock", 0,
        native -, paravirt MutexCached;
    "mutex/prev-cpu", "sleeping lock; spins, queued, while its owner runs; a sleeper that is overtaken is handed the lock", 0,
        native -, paravirt MutexPrevCpu;
    "rwsem/packed", "reader-writer sleeping lock; writers spin as in mutex; one that sleeps for 4 ms is handed the lock", 0,
        native -, paravirt (scoped RwSemPacked);
    "rwsem/split", "reader-writer sleeping lock; writers spin as in mutex; one that sleeps for 4 ms is handed the lock", 0,
        native -, paravirt (scoped RwSemSplit);
    "rwsem/cached", "reader-writer sleeping lock; writers spin as in mutex; one that sleeps for 4 ms is handed the lock", 0,
        native -, paravirt (scoped RwSemCached);
    "rwsem/prev-cpu", "reader-writer sleeping lock; writers spin as in mutex; one that sleeps for 4 ms is handed the lock", 0,
        native -, paravirt (scoped RwSemPrevCpu);
    "futex-mutex", "three-state sleeping lock of the futex kind, with a short spin before it", 0,
        native -, paravirt Futex;
}

/// Name of the lock that this run asks for.
pub(crate) fn lock_name() -> &'static str {
    let name = &LOCKS[boot().lock as usize].name;
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    core::str::from_utf8(&name[..length]).expect("the names above are text")
}

const fn points() -> [Descriptor; Point::ALL.len()] {
    let mut points = [descriptor("", "", 0); Point::ALL.len()];
    let mut i = 0;
    while i < points.len() {
        let point = Point::ALL[i];
        assert!(point as usize == i && i < u64::BITS as usize, "points are numbered from 0, and fit a mask");
        let activity = match point.activity() {
            Some(activity) => activity as u32,
            None => ACTIVITY_ANY,
        };
        points[i] = descriptor(point.name(), point.summary(), activity);
        i += 1;
    }
    points
}

#[used]
#[unsafe(link_section = ".haltkick.points")]
static POINTS: [Descriptor; Point::ALL.len()] = points();

/// An ELF note: sizes, type, owner padded to four bytes, descriptor.
#[repr(C)]
struct Note {
    owner_bytes: u32,
    descriptor_bytes: u32,
    kind: u32,
    owner: [u8; NOTE_OWNER.len().next_multiple_of(4)],
    abi_version: u32,
    vector_stub_bytes: u32,
    vector_stubs: Unaligned,
}

/// A pointer that an ELF note holds at four-byte alignment.
#[repr(C, packed(4))]
struct Unaligned(*const u8);

// SAFETY: an address in a note that only the VMM's loader reads.
unsafe impl Sync for Unaligned {}

#[used]
#[unsafe(link_section = ".note.haltkick")]
static NOTE: Note = Note {
    owner_bytes: NOTE_OWNER.len() as u32,
    descriptor_bytes: size_of::<ImageNote>() as u32,
    kind: NOTE_TYPE,
    owner: {
        let mut owner = [0; NOTE_OWNER.len().next_multiple_of(4)];
        let mut i = 0;
        while i < NOTE_OWNER.len() {
            owner[i] = NOTE_OWNER[i];
            i += 1;
        }
        owner
    },
    abi_version: ABI_VERSION,
    vector_stub_bytes: exceptions::STUB_BYTES,
    vector_stubs: Unaligned(&raw const exceptions::STUBS),
};
