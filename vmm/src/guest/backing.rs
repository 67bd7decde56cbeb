//! Memory of this process that a guest has as its own.
#![expect(unsafe_code, reason = "presents a mapping as guest memory")]

use std::io;
use std::ops::Range;

use rustix::mm::{Advice, madvise};
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

use crate::host::mapping::Mapping;

/// A mapping, and the guest's address of its first byte.
pub(crate) struct Backing {
    start: u64,
    mapping: Mapping,
}

impl Backing {
    /// Maps `bytes` of zeroed memory for the guest's addresses from 0 on, to be backed by pages of `page_bytes` where the kernel has such.
    pub(crate) fn of_pages(bytes: u64, page_bytes: u64) -> io::Result<Self> {
        let mapping = Mapping::aligned(bytes as usize, page_bytes as usize)?;
        // Large host pages save both the host's faults and the guest's TLB; without them all still works.
        // SAFETY: advice on a whole mapping.
        _ = unsafe { madvise(mapping.start().as_ptr(), mapping.bytes(), Advice::LinuxHugepage) };
        Ok(Self { start: 0, mapping })
    }

    /// Maps zeroed memory at exactly `range` of this process, for a guest with the same addresses.
    pub(crate) fn at_its_own_addresses(range: &Range<u64>) -> io::Result<Self> {
        Ok(Self { start: range.start, mapping: Mapping::at(range)? })
    }

    /// The guest's addresses that have memory.
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start + self.mapping.bytes() as u64
    }

    /// Address of the first byte in this process.
    pub(crate) fn host_start(&self) -> *mut u8 {
        self.mapping.start().as_ptr()
    }

    /// The mapping as guest memory, to be dropped before this is.
    pub(crate) fn guest_memory(&self) -> io::Result<GuestMemoryMmap> {
        let other = |error: String| io::Error::other(error);
        // SAFETY: a live mapping of that length; the caller drops what is made here first.
        let region = unsafe {
            MmapRegion::build_raw(
                self.mapping.start().as_ptr(),
                self.mapping.bytes(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            )
        };
        let region = region.map_err(|error| other(error.to_string()))?;
        let region = GuestRegionMmap::new(region, GuestAddress(self.start))
            .ok_or_else(|| other("the guest's addresses overflow".into()))?;
        GuestMemoryMmap::from_regions(vec![region]).map_err(|error| other(error.to_string()))
    }

    /// Makes `range` executable instead of writable, in memory at the guest's own addresses. The image's code is never written after it
    /// was loaded.
    pub(crate) fn make_executable(&self, range: &Range<u64>) -> io::Result<()> {
        self.mapping.make_executable(range)
    }
}
