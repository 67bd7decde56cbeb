//! Two small BPF programs on the kernel's scheduler: they mark the vCPUs whose threads lost their CPU, and report what
//! each vCPU did when it lost or got one.
//!
//! The marks are for hosts whose KVM does not set the flag of the steal-time record. Their meaning is KVM's: set while
//! the thread could go on but has no CPU, clear while it runs or sleeps. They lie in an array map that is mapped into
//! the guest, so the guest reads what the kernel wrote at the switch, and no thread is woken for it.
//!
//! The reports are for `switch_books`, which attributes preemptions and knows who ran where. They come through a ring of
//! fixed size; what does not fit is dropped and counted. What the vCPU did is what the guest has written into its area,
//! which for that lies in a map as well: the program reads it at the switch itself, however long ago that is when
//! the report is read.
//!
//! See `programs` for what they do. The kernel takes them out when the descriptors of the links are closed, and so with
//! the process at the latest.
//!
//! The kernel's ring buffer for BPF programs, from the side of the reader ([`Ring`]):
//!
//! ```text
//! page 0   position of the reader            (this process writes it)
//! page 1   position of the writers           (the kernel does)
//! data     records: length and flags (4 bytes), 4 bytes of the kernel's, contents, rounded up to 8;
//!          mapped twice in a row, so that no record is cut at the end
//! ```
#![expect(unsafe_code, reason = "bpf(2) has no wrapper in libc; maps are shared with the kernel")]

mod programs;

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use haltkick_hypercalls::{MAX_VCPUS, Oracle, StealTime, VcpuArea};

use crate::host::memory::Mapping;
use crate::host::sandbox::privileges;
use crate::host::threads::lock;

// bpf(2): commands, types, flags (include/uapi/linux/bpf.h names them).
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_RINGBUF: u32 = 27;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// One report of the BPF program. The layout is the program's, too.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Switch {
    pub(crate) at_ns: u64,
    /// Start of the vCPU's wait, by its own statement, in TSC ticks.
    pub(crate) since_tsc: u64,
    /// Sections that it says it has entered.
    pub(crate) entered: u64,
    /// Sections entered of the lock that it says it is at.
    pub(crate) lock_entered: u64,
    pub(crate) vcpu: u32,
    pub(crate) pcpu: u32,
    /// The lock that the vCPU is at, by its own statement.
    pub(crate) lock: u32,
    /// vCPU inside that lock's section plus one, or zero.
    pub(crate) lock_owner: u32,
    /// The vCPU's activity, by its own statement.
    pub(crate) state: u32,
    /// One of [`OUT_READY`] and its siblings.
    pub(crate) kind: u32,
    /// A [`ThreadDoes`].
    pub(crate) thread_does: u32,
    pub(crate) unused: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reported<'a> {
    pub(crate) vcpus: u32,
    pub(crate) locks: u32,
    pub(crate) pcpus: &'a [u32],
}

/// The thread lost its CPU and could go on.
pub(crate) const OUT_READY: u32 = 1;
/// The thread gave its CPU up: it sleeps.
pub(crate) const OUT_BLOCKED: u32 = 2;
/// The thread got a CPU.
pub(crate) const IN: u32 = 3;
/// Another thread got a CPU, and may have kept this vCPU waiting, which runs.
pub(crate) const LOOK: u32 = 4;
/// The thread sleeps no more.
pub(crate) const WOKEN: u32 = 5;

/// Activity of a vCPU's thread, as far as it tells what a switch means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ThreadDoes {
    /// Runs the vCPU, or serves it.
    Runs = 0,
    /// Sleeps for it, in `pv_wait`.
    Waits = 1,
    /// Keeps it out on purpose.
    KeepsOut = 2,
    /// Yields for it.
    Yields = 3,
    /// Is done with it.
    Left = 4,
}

/// Bytes per flag: a line of its own for each vCPU, with the layout of the steal-time record.
pub(crate) const FLAG_BYTES: usize = size_of::<StealTime>();

/// Length of the ring per pCPU, and of the shortest and longest. A pCPU that switches 50 000 times a second fills 200
/// KB in the 20 ms between two looks.
const RING_BYTES_PER_PCPU: usize = 1 << 20;
const RING_BYTES: std::ops::RangeInclusive<usize> = (1 << 20)..=(64 << 20);

/// Index in [`Doing`] of the count of reports that did not fit: behind the vCPUs.
const DROPPED: usize = MAX_VCPUS;

/// The programs in the kernel, and the maps that they share with this process.
#[derive(Debug)]
pub(crate) struct SwitchProbe {
    maps: Maps,
    reports: Option<Reports>,
    _links: Vec<OwnedFd>,
}

/// Maps from threads to vCPUs, and the flags.
#[derive(Debug)]
struct Maps {
    pids: OwnedFd,
    tasks: OwnedFd,
    flags: OwnedFd,
    namespace: [u64; 2],
}

/// Namespace of processes in which this process knows its threads by their numbers: its device, as the kernel has that inside, and its
/// number there.
fn own_namespace() -> io::Result<[u64; 2]> {
    const MINOR_BITS: u32 = 20;
    let file = std::fs::metadata("/proc/self/ns/pid")?;
    let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
    Ok([u64::from(major) << MINOR_BITS | u64::from(minor), file.ino()])
}

/// Maps that reports are made from, and the ring that they go through.
#[derive(Debug)]
struct Reports {
    /// One [`VcpuArea`] for each vCPU, to be mapped into the guest.
    areas: OwnedFd,
    /// One [`Oracle`] for each lock, to be mapped into the guest.
    oracles: OwnedFd,
    /// Which vCPU runs on a pCPU, plus one.
    current: OwnedFd,
    doing: Doing,
    ring: Ring,
    consumer: Mutex<()>,
    /// The first and the last pCPU of the run.
    pcpus: (u32, u32),
}

impl SwitchProbe {
    /// Loads and attaches the programs; without `reported` the one for the flags alone.
    pub(crate) fn attach(reported: Option<Reported<'_>>) -> io::Result<Self> {
        privileges::with_kept(|| Self::attach_privileged(reported))
    }

    fn attach_privileged(reported: Option<Reported<'_>>) -> io::Result<Self> {
        let entries = MAX_VCPUS as u32;
        let maps = Maps {
            pids: create_map(BPF_MAP_TYPE_HASH, 4, 4, entries, 0)?,
            tasks: create_map(BPF_MAP_TYPE_HASH, 8, 4, entries, 0)?,
            flags: create_map(BPF_MAP_TYPE_ARRAY, 4, FLAG_BYTES as u32, entries, BPF_F_MMAPABLE)?,
            namespace: own_namespace()?,
        };
        let reports = reported.map(Reports::new).transpose()?;
        let mut links = Vec::new();
        let mut attach = |name, code: &[u64]| {
            links.push(open_raw_tracepoint(name, load(code)?.as_fd())?);
            io::Result::Ok(())
        };
        attach(c"sched_switch", &programs::on_switch(&maps, reports.as_ref()))?;
        if let Some(reports) = &reports {
            attach(c"sched_wakeup", &programs::on_wakeup(&maps, reports))?;
        }
        Ok(Self { maps, reports, _links: links })
    }

    /// The map of the flags: one of [`FLAG_BYTES`] for each vCPU.
    pub(crate) fn flags(&self) -> BorrowedFd<'_> {
        self.maps.flags.as_fd()
    }

    /// The maps of the vCPUs' areas and of the locks' oracles, which the guest must find in its memory.
    pub(crate) fn watched(&self) -> Option<[BorrowedFd<'_>; 2]> {
        self.reports.as_ref().map(|reports| [reports.areas.as_fd(), reports.oracles.as_fd()])
    }

    /// From its next switch on, thread `thread` is vCPU `vcpu`, below [`MAX_VCPUS`].
    pub(crate) fn watch(&self, thread: libc::pid_t, vcpu: u32) -> io::Result<()> {
        let (key, value) = (thread as u32, vcpu);
        let map = self.maps.pids.as_raw_fd() as u64;
        // Map, key, value, flags. Newer kernels ask for the descriptor only.
        let attributes = [map, (&raw const key) as u64, (&raw const value) as u64, 0];
        privileges::with_kept(|| bpf(BPF_MAP_UPDATE_ELEM, &attributes)).map(drop)
    }

    /// The calling thread, which runs `vcpu`, does this from now on; the reports say so.
    pub(crate) fn thread_does(&self, vcpu: u32, what: ThreadDoes) {
        if let Some(reports) = &self.reports {
            reports.doing.word(vcpu as usize).store(what as u64, Ordering::Relaxed);
        }
    }

    /// Hands out what has been reported since the last time, in order.
    pub(crate) fn drain(&self, each: impl FnMut(Switch)) {
        if let Some(reports) = &self.reports {
            let _one_at_a_time = lock(&reports.consumer);
            reports.ring.drain(each);
        }
    }

    /// Reports that were dropped because the ring was full.
    pub(crate) fn dropped(&self) -> u64 {
        self.reports.as_ref().map_or(0, |reports| reports.doing.word(DROPPED).load(Ordering::Relaxed))
    }
}

impl Reports {
    fn new(reported: Reported<'_>) -> io::Result<Self> {
        let shared =
            |bytes: usize, count: u32| create_map(BPF_MAP_TYPE_ARRAY, 4, bytes as u32, count, BPF_F_MMAPABLE);
        let (first, last) = range_of(reported.pcpus)?;
        let ring_bytes = (reported.pcpus.len() * RING_BYTES_PER_PCPU)
            .next_power_of_two()
            .clamp(*RING_BYTES.start(), *RING_BYTES.end());
        Ok(Self {
            areas: shared(size_of::<VcpuArea>(), reported.vcpus)?,
            oracles: shared(size_of::<Oracle>(), reported.locks)?,
            current: create_map(BPF_MAP_TYPE_ARRAY, 4, 4, last.saturating_add(1), 0)?,
            doing: Doing::new()?,
            ring: Ring::new(create_map(BPF_MAP_TYPE_RINGBUF, 0, 0, ring_bytes as u32, 0)?, ring_bytes)?,
            consumer: Mutex::default(),
            pcpus: (first, last),
        })
    }
}

/// A map of words that the VMM writes and the programs read, one per vCPU, and one that the programs count in.
#[derive(Debug)]
struct Doing {
    fd: OwnedFd,
    words: Mapping,
}

impl Doing {
    const BYTES: usize = (DROPPED + 1) * size_of::<u64>();

    fn new() -> io::Result<Self> {
        let entries = DROPPED as u32 + 1;
        let fd = create_map(BPF_MAP_TYPE_ARRAY, 4, size_of::<u64>() as u32, entries, BPF_F_MMAPABLE)?;
        let words = Mapping::shared(fd.as_fd(), 0, Self::BYTES, true)?;
        Ok(Self { fd, words })
    }

    // Relaxed wherever it is used: the thread's own program order is what the program sees of its word; the other is a
    // count.
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index <= DROPPED);
        // SAFETY: the mapping has room for that many aligned words, lives as long as `self`, and is only ever accessed
        // atomically.
        unsafe { self.words.start::<AtomicU64>().add(index).as_ref() }
    }
}

/// The first and the last of `pcpus`, if the programs can look at all between them. Waiters on others would silently be missing.
fn range_of(pcpus: &[u32]) -> io::Result<(u32, u32)> {
    let (first, last) =
        pcpus.iter().fold((u32::MAX, 0), |(first, last), &pcpu| (first.min(pcpu), last.max(pcpu)));
    if last - first.min(last) >= programs::MOST_PCPUS {
        let most = programs::MOST_PCPUS;
        return Err(io::Error::other(format!(
            "it looks at {most} pCPU numbers in a row, and the run has pCPUs {first} to {last}: use fewer (--cpus node:0)"
        )));
    }
    Ok((first, last))
}

/// Calls the kernel with the words of a command's structure.
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of attributes, and what their pointers name, all of which the
    // callers keep alive; it takes a shorter structure than its own for one that ends in zeros.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(result: libc::c_long) -> OwnedFd {
    // SAFETY: the descriptor that the kernel has just made for this process.
    unsafe { OwnedFd::from_raw_fd(result as libc::c_int) }
}

fn create_map(kind: u32, key_bytes: u32, value_bytes: u32, entries: u32, flags: u32) -> io::Result<OwnedFd> {
    bpf(BPF_MAP_CREATE, &[kind, key_bytes, value_bytes, entries, flags]).map(owned)
}

fn load(code: &[u64]) -> io::Result<OwnedFd> {
    // They call no function that the kernel keeps for GPL programs.
    let licence = c"Dual MIT/GPL";
    // Type and number of instructions, where these are, the licence. No log.
    let kind = u64::from(BPF_PROG_TYPE_RAW_TRACEPOINT) | (code.len() as u64) << 32;
    bpf(BPF_PROG_LOAD, &[kind, code.as_ptr() as u64, licence.as_ptr() as u64]).map(owned)
}

fn open_raw_tracepoint(name: &std::ffi::CStr, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    bpf(BPF_RAW_TRACEPOINT_OPEN, &[name.as_ptr() as u64, program.as_raw_fd() as u64]).map(owned)
}

/// In a record's length: it is still being written; it is to be left out.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER_BYTES: usize = 8;
const PAGE_BYTES: usize = 4096;

/// One ring, for one reader at a time.
#[derive(Debug)]
struct Ring {
    fd: OwnedFd,
    reader: Mapping,
    writers: Mapping,
    data_bytes: usize,
}

impl Ring {
    /// The ring of `data_bytes`, a power of two.
    fn new(fd: OwnedFd, data_bytes: usize) -> io::Result<Self> {
        let reader = Mapping::shared(fd.as_fd(), 0, PAGE_BYTES, true)?;
        let writers = Mapping::shared(fd.as_fd(), PAGE_BYTES, PAGE_BYTES + 2 * data_bytes, false)?;
        Ok(Self { fd, reader, writers, data_bytes })
    }

    /// Takes out what has been written. The caller ensures that no other thread does so meanwhile.
    fn drain(&self, mut each: impl FnMut(Switch)) {
        // SAFETY: each at the beginning of a page that is mapped while `self` lives.
        let (read, written) = unsafe {
            (self.reader.start::<AtomicU64>().as_ref(), self.writers.start::<AtomicU64>().as_ref())
        };
        // Relaxed: only readers write it. Acquire: pairs with the kernel's release; what lies before it is a record.
        let mut at = read.load(Ordering::Relaxed);
        // The writers' position now: a run that switches faster than this reads must not keep it here forever.
        let end = written.load(Ordering::Acquire);
        while at < end {
            let offset = at as usize & (self.data_bytes - 1);
            // SAFETY: within the first of the two copies of the data, which follow the writers' page; records are
            // aligned to 8 bytes.
            let record = unsafe { self.writers.start::<u8>().add(PAGE_BYTES + offset) };
            // SAFETY: as above; the kernel writes this word once more, when the record is complete.
            let header = unsafe { record.cast::<AtomicU32>().as_ref() }.load(Ordering::Acquire);
            if header & BUSY != 0 {
                break;
            }
            let bytes = (header & !DISCARDED) as usize;
            if header & DISCARDED == 0 && bytes == size_of::<Switch>() {
                // SAFETY: `bytes` bytes follow the header, in the second copy if need be; any bits are a `Switch`, and
                // no writer changes them before the reader's position has moved on.
                each(unsafe { record.add(HEADER_BYTES).cast::<Switch>().read() });
            }
            at += (HEADER_BYTES + bytes).next_multiple_of(8) as u64;
            // Release: pairs with the kernel's acquire; what lies before it may be overwritten.
            read.store(at, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pcpus_beyond_what_the_programs_look_at_are_refused() {
        assert_eq!(range_of(&[300, 45, 80]).unwrap(), (45, 300));
        let error = range_of(&[300, 44]).unwrap_err().to_string();
        assert!(error.contains("256 pCPU numbers") && error.contains("44 to 300"), "{error}");
    }
}
