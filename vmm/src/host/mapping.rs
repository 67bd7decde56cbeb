//! Mappings of this process's memory, each of which ends when it is dropped.
#![expect(unsafe_code, reason = "maps memory, and makes some of it executable")]

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

/// Memory that is mapped for as long as this lives.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to no thread in particular; code that uses its addresses is responsible for how.
unsafe impl Send for Mapping {}
// SAFETY: as above: it gives nothing but addresses.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `bytes` of `file` from `offset` on, shared with all who map it, to be read and written.
    pub(crate) fn shared(file: BorrowedFd<'_>, offset: usize, bytes: usize) -> io::Result<Self> {
        Self::of_file(file, offset, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// `bytes` of `file` from `offset` on, shared with all who map it, to be read only.
    #[cfg(feature = "bpf")]
    pub(crate) fn shared_to_read(file: BorrowedFd<'_>, offset: usize, bytes: usize) -> io::Result<Self> {
        Self::of_file(file, offset, bytes, ProtFlags::READ)
    }

    fn of_file(file: BorrowedFd<'_>, offset: usize, bytes: usize, access: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start =
            unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, offset as u64) };
        Ok(Self { start: NonNull::new(start?.cast()).expect("mappings do not begin at 0"), bytes })
    }

    /// Zeroed memory at exactly `range`, where nothing may be yet.
    pub(crate) fn at(range: &Range<u64>) -> io::Result<Self> {
        let bytes = (range.end - range.start) as usize;
        let wanted = range.start as *mut std::ffi::c_void;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: a new mapping that replaces none.
        let got = unsafe { mmap_anonymous(wanted, bytes, access, flags) }?;
        let mapping = Self { start: NonNull::new(got.cast()).expect("mappings do not begin at 0"), bytes };
        // A kernel before 4.17 takes the address for a wish.
        if got == wanted { Ok(mapping) } else { Err(io::Error::from_raw_os_error(libc::EEXIST)) }
    }

    /// Zeroed memory of this process alone, whose address is a multiple of `alignment`, which is one of pages.
    pub(crate) fn aligned(bytes: usize, alignment: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let got = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes + alignment, access, flags) }?;
        let before = (got as usize).next_multiple_of(alignment) - got as usize;
        let start = got.wrapping_byte_add(before);
        // SAFETY: the two ends of the new mapping, without what is kept between them.
        unsafe {
            if before > 0 {
                munmap(got, before)?;
            }
            munmap(start.wrapping_byte_add(bytes), alignment - before)?;
        }
        Ok(Self { start: NonNull::new(start.cast()).expect("mappings do not begin at 0"), bytes })
    }

    /// Address of the first byte.
    pub(crate) fn start<T>(&self) -> NonNull<T> {
        self.start.cast()
    }

    /// Its length.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes the pages of `range`, whose first address begins one, executable instead of writable. The caller no longer
    /// writes there.
    pub(crate) fn make_executable(&self, range: &Range<u64>) -> io::Result<()> {
        const PAGE: u64 = 4096;
        let (start, end) = (self.start.as_ptr() as u64, self.start.as_ptr() as u64 + self.bytes as u64);
        assert!(range.start.is_multiple_of(PAGE) && start <= range.start && range.end <= end);
        let bytes = (range.end - range.start).next_multiple_of(PAGE) as usize;
        let access = MprotectFlags::READ | MprotectFlags::EXEC;
        // SAFETY: within the mapping, as just checked.
        unsafe { mprotect(range.start as *mut std::ffi::c_void, bytes, access) }.map_err(io::Error::from)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: a mapping that was made here, of that length; any use of its addresses was within its life.
        _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_memory_begins_where_it_is_to_and_is_whole() {
        const ALIGNMENT: usize = 256 << 20;
        for bytes in [4096, 3 << 20] {
            let mapping = Mapping::aligned(bytes, ALIGNMENT).unwrap();
            assert!((mapping.start::<u8>().as_ptr() as usize).is_multiple_of(ALIGNMENT));
            // SAFETY: the last byte of a mapping that is this test's.
            unsafe { mapping.start::<u8>().add(bytes - 1).write(1) };
        }
    }
}
