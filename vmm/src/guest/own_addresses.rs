//! Memory of this process at the guest's own addresses, for an image whose code this process runs itself.
#![expect(unsafe_code, reason = "presents a mapping as guest memory")]

use std::io;
use std::ops::Range;

use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

use crate::host::mapping::Mapping;

/// Memory of this process whose addresses are the guest's.
pub(crate) struct OwnAddresses {
    range: Range<u64>,
    mapping: Mapping,
}

impl OwnAddresses {
    /// Maps zeroed memory at exactly `range`.
    pub(crate) fn map(range: Range<u64>) -> io::Result<Self> {
        Ok(Self { mapping: Mapping::at(&range)?, range })
    }

    /// It as guest memory, to be dropped before this is.
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
        let region = GuestRegionMmap::new(region, GuestAddress(self.range.start))
            .ok_or_else(|| other("the guest's addresses overflow".into()))?;
        GuestMemoryMmap::from_regions(vec![region]).map_err(|error| other(error.to_string()))
    }

    /// Makes `range` executable instead of writable: the image's code is never written after it was loaded.
    pub(crate) fn make_executable(&self, range: &Range<u64>) -> io::Result<()> {
        self.mapping.make_executable(range)
    }
}
