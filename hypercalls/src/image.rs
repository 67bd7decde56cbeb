//! How an image introduces itself: one ELF note, and tables in sections of their own.

use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::vcpu::TIMES;

/// Owner name of the ELF note (with its terminating zero, as ELF notes have it).
pub const NOTE_OWNER: [u8; 9] = *b"Haltkick\0";

/// Type of the ELF note that holds an [`ImageNote`].
pub const NOTE_TYPE: u32 = 1;

/// Descriptor of the ELF note. Addresses are guest-virtual, which equals guest-physical.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ImageNote {
    /// [`ABI_VERSION`](crate::ABI_VERSION) of the image.
    pub abi_version: u32,
    /// Size of one vector stub in bytes; stub n is at `vector_stubs + n * vector_stub_bytes`.
    pub vector_stub_bytes: u32,
    /// Address of 256 interrupt and exception stubs.
    pub vector_stubs: u64,
    /// [`ABI_FINGERPRINT`](crate::ABI_FINGERPRINT) of the image; 0: it was not compiled from these files, but written to its
    /// version.
    pub fingerprint: u64,
}

/// ELF section with one [`Descriptor`] per lock, in the order of the lock's index.
pub const LOCKS_SECTION: &str = ".haltkick.locks";

/// ELF section with one [`Descriptor`] per point in the slow paths of instrumented locks, in the order of the points' numbers.
/// Its flags are what a vCPU that passes it does: [`ACTIVITY_HOLDER`](crate::ACTIVITY_HOLDER) and its siblings, or
/// [`ACTIVITY_ANY`](crate::ACTIVITY_ANY).
pub const POINTS_SECTION: &str = ".haltkick.points";

/// ELF section with one [`Descriptor`] per workload, in the order of the workload's index.
pub const WORKLOADS_SECTION: &str = ".haltkick.workloads";

/// ELF section with two [`LockCalls`] per lock, in the order of the lock's index: native form, paravirtual form.
pub const CALLS_SECTION: &str = ".haltkick.calls";

/// How one form of a lock is called, and what memory it takes. Addresses of functions; 0: there is no such form.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LockCalls {
    /// Function for a lock site, called with the address of the lock; it returns a token.
    pub lock: u64,
    /// Function for an unlock site, called with the address of the lock and the token.
    pub unlock: u64,
    /// Function for a read-lock site: `lock` where there are no readers.
    pub read: u64,
    /// Function for a read-unlock site.
    pub read_unlock: u64,
    /// Bytes of one lock.
    pub lock_bytes: u32,
    /// Bytes that each vCPU needs for all locks of this kind.
    pub cpu_bytes: u32,
}

/// ELF section with one [`CallSite`] per place where the workloads take or release a lock. The VMM may rewrite what
/// lies there before the guest starts.
pub const SITES_SECTION: &str = ".haltkick.sites";

/// One instruction that calls through a slot of a table: lock address in RDI; a token returned in RAX and RDX (lock, read)
/// or passed in RSI and RDX (unlock, read-unlock); all registers as in the System V ABI.
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

/// ELF section with one [`LockObjects`]: what a VMM has linked behind the image. An image without it takes no lock objects.
pub const OBJECTS_SECTION: &str = ".haltkick.objects";

/// Most lock objects that can be linked behind one image.
pub const MAX_OBJECTS: usize = 16;

/// The locks that a VMM has linked behind the image. Their indices follow those of the image's own. Written into the image by
/// the VMM, before it is loaded; atomics, so that the image is not compiled for the zeros that stand there.
#[repr(C)]
pub struct LockObjects {
    /// End of everything that was linked; 0: nothing was.
    pub end: AtomicU64,
    /// Each of them.
    pub objects: [LockObject; MAX_OBJECTS],
}

/// One lock that was linked behind the image. Addresses of functions; 0: there is none.
#[repr(C)]
pub struct LockObject {
    /// Native form, paravirtual form; each: lock, unlock, read, read-unlock, as in [`LockCalls`].
    pub functions: [[AtomicU64; 4]; 2],
    /// Native form, paravirtual form: what takes a lock if it is free, and says whether it did.
    pub try_lock: [AtomicU64; 2],
    /// Makes a free lock of zeros.
    pub init: AtomicU64,
    /// Bytes of one lock.
    pub lock_bytes: AtomicU32,
    /// Bytes that each vCPU has for all locks of this kind.
    pub cpu_bytes: AtomicU32,
    /// Memory of zeros that `init` may give to its locks: address and end.
    pub heap: [AtomicU64; 2],
}

/// ELF section with one [`Import`] for each symbol that a lock object may refer to and does not define.
pub const IMPORTS_SECTION: &str = ".haltkick.imports";

/// A symbol that the image has for lock objects.
#[repr(C)]
pub struct Import {
    /// Its name, zero-padded.
    pub name: [u8; 32],
    /// Its value: an address, or a number. A pointer is what a linker can fill in.
    pub value: *const (),
}

/// Description of one of the image's locks, workloads or points. The VMM lists these and passes the index back.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Descriptor {
    /// Name on the command line, zero-padded UTF-8; `lock/layout` for a lock that has several layouts.
    pub name: [u8; 32],
    /// One line for `haltkick list`, zero-padded UTF-8.
    pub summary: [u8; 120],
    /// [`LockFlags`](crate::LockFlags), [`WorkloadFlags`](crate::WorkloadFlags), or what a vCPU does that passes the point.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
    /// Workloads: what they report in each of [`Results::times`](crate::Results::times), zero-padded UTF-8; empty: nothing.
    pub times: [[u8; 16]; TIMES],
}
