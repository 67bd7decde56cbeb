//! Memory of this process at the guest's own addresses, for an image whose code this process runs itself.
#![expect(unsafe_code, reason = "maps memory at given addresses, and makes some of it executable")]

use std::io;
use std::ops::Range;

use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// Memory of this process whose addresses are the guest's.
pub(crate) struct Identity(Range<u64>);

impl Identity {
    /// Maps zeroed memory at exactly `range`.
    pub(crate) fn map(range: Range<u64>) -> io::Result<Self> {
        let length = (range.end - range.start) as usize;
        let wanted = range.start as *mut libc::c_void;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping that replaces none.
        let got = unsafe { libc::mmap(wanted, length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if got == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if got != wanted {
            // A kernel before 4.17 takes the address for a wish.
            // SAFETY: the mapping just made, which nothing refers to.
            unsafe { libc::munmap(got, length) };
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        Ok(Self(range))
    }

    /// It as guest memory, to be dropped before this is.
    pub(crate) fn guest_memory(&self) -> io::Result<GuestMemoryMmap> {
        let other = |error: String| io::Error::other(error);
        let length = (self.0.end - self.0.start) as usize;
        // SAFETY: a live mapping of that length; the caller drops what is made here first.
        let region = unsafe {
            MmapRegion::build_raw(
                self.0.start as *mut u8,
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            )
        };
        let region = region.map_err(|error| other(error.to_string()))?;
        let region = GuestRegionMmap::new(region, GuestAddress(self.0.start))
            .ok_or_else(|| other("the guest's addresses overflow".into()))?;
        GuestMemoryMmap::from_regions(vec![region]).map_err(|error| other(error.to_string()))
    }

    /// Makes `range` executable instead of writable.
    pub(crate) fn make_executable(&self, range: Range<u64>) -> io::Result<()> {
        const PAGE: u64 = 4096;
        assert!(range.start.is_multiple_of(PAGE) && self.0.start <= range.start && range.end <= self.0.end);
        let length = (range.end - range.start).next_multiple_of(PAGE) as usize;
        // SAFETY: within the mapping, as just checked; nobody writes to the image's code after it was loaded.
        let result = unsafe {
            libc::mprotect(range.start as *mut libc::c_void, length, libc::PROT_READ | libc::PROT_EXEC)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made, of the same length; `Memory` holds both this and all references to it.
        unsafe { libc::munmap(self.0.start as *mut libc::c_void, (self.0.end - self.0.start) as usize) };
    }
}
