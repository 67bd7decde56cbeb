//! The kernel's ring buffer for BPF programs, from the side of the reader.
//!
//! ```text
//! page 0   position of the reader            (this process writes it)
//! page 1   position of the writers           (the kernel does)
//! data     records: length and flags (4 bytes), 4 bytes of the kernel's, contents, rounded up to 8;
//!          mapped twice in a row, so that no record is cut at the end
//! ```

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::host::mapping::Mapping;
use crate::host::switches::Switch;

/// In a record's length: it is still being written; it is to be left out.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER_BYTES: usize = 8;
const PAGE_BYTES: usize = 4096;

/// One ring, for one reader at a time.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) fd: OwnedFd,
    reader: Mapping,
    writers: Mapping,
    data_bytes: usize,
}

impl Ring {
    /// The ring of `data_bytes`, a power of two.
    pub(super) fn new(fd: OwnedFd, data_bytes: usize) -> io::Result<Self> {
        let reader = Mapping::shared(fd.as_fd(), 0, PAGE_BYTES)?;
        let writers = Mapping::shared_to_read(fd.as_fd(), PAGE_BYTES, PAGE_BYTES + 2 * data_bytes)?;
        Ok(Self { fd, reader, writers, data_bytes })
    }

    /// Takes out what has been written. The caller ensures that no other thread does so meanwhile.
    pub(super) fn drain(&self, mut each: impl FnMut(Switch)) {
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
