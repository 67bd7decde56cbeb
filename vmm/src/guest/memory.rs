//! Guest memory: who lies where, and the one place where a guest address becomes a host reference.
//!
//! ```text
//!  0x000000  nothing: never mapped in the guest, so that null pointers fault
//!  0x200000  tables: page tables, GDT, IDT, probe code, boot block, control block, oracles
//!  0x240000  one TSS per vCPU, with the I/O bitmap that opens the hypercall ports to ring 3
//!  0x300000  one line per vCPU with its preempted flag, where neither the VMM nor KVM writes it
//!  0x310000  page directories, one per GiB
//!  0x400000  the image (text, constants, data, zeroed data)
//!  image end, rounded up to 2 MiB:
//!            one VcpuArea (16 KiB) per vCPU
//!  rounded up to 4 KiB:
//!            one ring-0 stack (4 KiB) per vCPU, for exceptions
//!            one stack (16 KiB) per vCPU
//!            one row of counters per vCPU, with one for each lock
//!            one ring of trace records per vCPU, if the run is traced
//!  rounded up to 2 MiB:
//!            the pool of the guest's memory manager, for workloads that have one
//! ```
//!
//! Virtual addresses equal physical ones, in 2 MiB pages, open to both rings.
#![expect(
    unsafe_code,
    reason = "guest memory is shared with a guest that runs: references to it are made here only; every access of a simulated CPU comes \
              here, checked once and as fast as it can be"
)]

use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use haltkick_hypercalls::{
    BootBlock, Control, ENTRIES_ROW_BYTES, GuestAddress, MAX_LOCKS, MAX_VCPUS, Oracle, Request, StealTime,
    VcpuArea, trace_ring_bytes,
};
use haltkick_sim::{Partition, board};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
use vm_memory::{
    Bytes as _, GuestAddress as Gpa, GuestMemoryBackend as _, GuestMemoryMmap, GuestRegionMmap, MmapRegion,
};

use crate::host::error::{Known, RunError, system};
use crate::host::memory::{Mapping, Residence};
use crate::image::IMAGE_BASE;

/// Size of the pages that the guest's memory is mapped with.
pub(crate) const LARGE_PAGE: u64 = 2 << 20;

pub(crate) const PML4: u64 = 0x20_0000;
pub(crate) const PAGE_DIRECTORY_POINTERS: u64 = 0x20_1000;
pub(crate) const GDT: u64 = 0x20_3000;
pub(crate) const IDT: u64 = 0x20_4000;
pub(crate) const PROBE_CODE: u64 = 0x20_5000;
const BOOT_BLOCK: u64 = 0x20_6000;
const CONTROL: u64 = 0x20_7000;
const ORACLES: u64 = 0x20_8000;
/// Flags that are written from outside the VMM, mapped over the memory there.
const FLAGS: u64 = 0x30_0000;
const FLAGS_BYTES: usize = MAX_VCPUS * size_of::<StealTime>();
/// One page directory after the other.
pub(crate) const PAGE_DIRECTORIES: u64 = 0x31_0000;
const TSS_BASE: u64 = 0x24_0000;
/// Bytes per TSS: 104, then the I/O bitmap for the ports up to the last hypercall and its terminating byte.
pub(crate) const TSS_BYTES: u64 = 512;
/// The upper half for exceptions, the lower one for the NMI, which may come while an exception is being taken.
const RING0_STACK_BYTES: u64 = 4096;
const STACK_BYTES: u64 = 16384;
const HOST_PAGE: usize = 4096;
/// Pattern at the end of every stack: once it is overwritten, the stack was too short.
const CANARY: [u64; 4] = [0x6861_6c74_6b69_636b; 4];
/// Most memory of a guest: KVM has pages of its own, and interrupt controllers, at the end of the fourth GiB.
const MOST_BYTES: u64 = 3 << 30;

const _: () = assert!(TSS_BASE + MAX_VCPUS as u64 * TSS_BYTES <= FLAGS);
const _: () = assert!(FLAGS + FLAGS_BYTES as u64 <= PAGE_DIRECTORIES);
const _: () = assert!(PAGE_DIRECTORIES + MOST_BYTES / LARGE_PAGE * 8 <= IMAGE_BASE);
const _: () = assert!(ORACLES + MAX_LOCKS as u64 * size_of::<Oracle>() as u64 <= TSS_BASE);

/// Structures that host and guest share while the guest runs.
///
/// # Safety
/// `repr(C)`, valid for every bit pattern, and every field that either side writes while the guest runs is atomic.
unsafe trait Shared {}
// SAFETY: definition in the ABI: atomics of integers and padding.
unsafe impl Shared for Control {}
// SAFETY: as above.
unsafe impl Shared for Oracle {}
// SAFETY: as above.
unsafe impl Shared for VcpuArea {}
// SAFETY: definition in the ABI: atomics of integers and padding.
unsafe impl Shared for StealTime {}

/// Structures of the ABI whose bytes a guest is given.
///
/// # Safety
/// `repr(C)`, without padding: all bytes are initialised.
pub(crate) unsafe trait Plain: Sized {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the trait's: they are initialised, and borrowed as long as the structure is.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }
}
// SAFETY: definition in the ABI, which asserts the size that its fields add up to.
unsafe impl Plain for BootBlock {}
// SAFETY: as above.
unsafe impl Plain for Request {}

/// Starts of the parts whose place depends on the image and on the number of vCPUs.
struct Extent {
    areas: u64,
    pool: u64,
    size: u64,
}

impl Extent {
    fn new(image_end: u64, vcpus: u32, pool_bytes: u64, trace_sections: u64) -> Result<Self, RunError> {
        let areas = image_end.next_multiple_of(LARGE_PAGE);
        let trace_bytes = if trace_sections > 0 { trace_ring_bytes(trace_sections) } else { 0 };
        let per_vcpu = RING0_STACK_BYTES + STACK_BYTES + ENTRIES_ROW_BYTES as u64 + trace_bytes;
        let stacks = stacks_after(areas, u64::from(vcpus));
        let pool = (stacks + u64::from(vcpus) * per_vcpu).next_multiple_of(LARGE_PAGE);
        let size = pool + pool_bytes.next_multiple_of(LARGE_PAGE);
        if size > MOST_BYTES {
            return Err(RunError::usage(format!(
                "a guest of {vcpus} vCPUs with a pool of {} MiB needs {} MiB, and a guest has {} MiB at most: ask for less memory, or use several guests",
                pool_bytes >> 20,
                size >> 20,
                MOST_BYTES >> 20
            )));
        }
        Ok(Self { areas, pool, size })
    }
}

/// Start of the stacks, after the areas of `vcpus` vCPUs.
fn stacks_after(areas: u64, vcpus: u64) -> u64 {
    (areas + vcpus * size_of::<VcpuArea>() as u64).next_multiple_of(HOST_PAGE as u64)
}

fn cannot_map(size: u64, source: std::io::Error) -> RunError {
    system(&format!("map {} MiB of guest memory", size >> 20))(source)
}

pub(crate) struct Memory {
    pub(crate) map: GuestMemoryMmap,
    /// Memory of `map`, unmapped when this is dropped.
    mapping: Mapping,
    /// The guest's address of its first byte.
    start: u64,
    vcpus: u64,
    extent: Extent,
    /// Sections per ring of trace records; 0: there are none.
    trace_sections: u64,
}

impl Memory {
    /// Maps memory for `vcpus` vCPUs above an image that ends at `image_end`, with a pool of `pool_bytes` and with
    /// `trace_sections` records in each vCPU's trace ring. It starts zeroed.
    pub(crate) fn new(
        image_end: u64,
        vcpus: u32,
        pool_bytes: u64,
        trace_sections: u64,
    ) -> Result<Self, RunError> {
        let extent = Extent::new(image_end, vcpus, pool_bytes, trace_sections)?;
        let mapping = Mapping::aligned(extent.size as usize, LARGE_PAGE as usize)
            .map_err(|error| cannot_map(extent.size, error))?;
        // Large host pages save both the host's faults and the guest's TLB; without them all still works.
        // SAFETY: advice on a whole mapping.
        _ = unsafe { madvise(mapping.start().as_ptr(), mapping.bytes(), Advice::LinuxHugepage) };
        Ok(Self::of(mapping, 0, vcpus, extent, trace_sections))
    }

    fn of(mapping: Mapping, start: u64, vcpus: u32, extent: Extent, trace_sections: u64) -> Self {
        // SAFETY: a live mapping of that length, which is dropped after what is made here.
        let region = unsafe {
            MmapRegion::build_raw(
                mapping.start().as_ptr(),
                mapping.bytes(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            )
        };
        let region = region.expect("a mapping is of whole pages");
        let region = GuestRegionMmap::new(region, Gpa(start)).expect("a guest ends in the fourth GiB");
        let map = GuestMemoryMmap::from_regions(vec![region]).expect("one region overlaps no other");
        Self { map, mapping, start, vcpus: u64::from(vcpus), extent, trace_sections }
    }

    /// The size of that without trace rings, if it can be mapped.
    pub(crate) fn bytes_of(image_end: u64, vcpus: u32, pool_bytes: u64) -> Option<u64> {
        Some(Extent::new(image_end, vcpus, pool_bytes, 0).ok()?.size)
    }

    /// Memory at the guest's own addresses, for an image that this process runs itself. The first large page stays
    /// as it is: unmapped, as in any process.
    pub(crate) fn at_its_own_addresses(
        image_end: u64,
        vcpus: u32,
        trace_sections: u64,
    ) -> Result<Self, RunError> {
        let extent = Extent::new(image_end, vcpus, 0, trace_sections)?;
        let size = extent.size;
        let mapping = Mapping::at(&(LARGE_PAGE..size)).map_err(|error| match error.raw_os_error() {
            Some(libc::EEXIST | libc::EPERM) => RunError::HostLacks(format!(
                "addresses {LARGE_PAGE:#x} to {size:#x} of this process are taken or forbidden ({error}); \
                 --engine threads runs one guest at a time, in a position-independent haltkick"
            )),
            _ => cannot_map(size, error),
        })?;
        Ok(Self::of(mapping, LARGE_PAGE, vcpus, extent, trace_sections))
    }

    /// Makes `range`, which was written, executable instead of writable. Only for memory at its own addresses.
    pub(crate) fn make_executable(&self, range: Range<u64>) -> Result<(), RunError> {
        self.mapping.make_executable(&range).map_err(system("make the image's code executable"))
    }

    pub(crate) fn mapped(&self) -> Range<u64> {
        self.start..self.start + self.mapping.bytes() as u64
    }

    pub(crate) fn pool_start(&self) -> u64 {
        self.extent.pool
    }

    /// Rows with a place for each vCPU: their starts, and the bytes of a place.
    pub(crate) fn rows_of_vcpus(&self) -> impl Iterator<Item = (u64, u64)> {
        let rows = [
            (self.extent.areas, size_of::<VcpuArea>() as u64),
            (self.ring0_stack_top(0) - RING0_STACK_BYTES, RING0_STACK_BYTES),
            (self.stack_top(0) - STACK_BYTES, STACK_BYTES),
            (self.entries(0), ENTRIES_ROW_BYTES as u64),
        ];
        let rings = self.trace_rings().map(|rings| (rings, trace_ring_bytes(self.trace_sections)));
        rows.into_iter().chain(rings)
    }

    pub(crate) fn vcpus(&self) -> u32 {
        self.vcpus as u32
    }

    /// Size in bytes; the guest's physical addresses end there.
    pub(crate) fn size(&self) -> u64 {
        self.extent.size
    }

    pub(crate) fn pool_bytes(&self) -> u64 {
        self.extent.size - self.extent.pool
    }

    /// Address of the guest's first byte of memory in this process.
    pub(crate) fn host_base(&self) -> *mut u8 {
        self.mapping.start().as_ptr()
    }

    /// Address in this process of the guest's `address`, which has memory.
    pub(crate) fn host_address(&self, address: u64) -> NonNull<u8> {
        let offset = address - self.mapped().start;
        NonNull::new(self.host_base().wrapping_add(offset as usize)).expect("no mapping begins at 0")
    }

    pub(crate) fn residence(&self) -> Known<Residence> {
        let start = self.host_base() as u64;
        Residence::of(&(start..start + (self.extent.size - self.mapped().start)))
    }

    /// Copies `bytes` to `address`.
    ///
    /// # Panics
    /// If they do not fit: addresses of what the VMM writes are its own, and the image's were checked.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        self.map.write_slice(bytes, Gpa(address)).expect("the VMM writes within the memory it laid out");
    }

    /// Puts eight bytes at `offset` of the control block, an oracle, a vCPU's area or its counters of sections, as another
    /// machine's record has them. What lies outside is left out.
    pub(crate) fn deposit(&self, structure: &str, index: u32, offset: u64, value: u64) {
        let (address, bytes, count) = match structure {
            "control" => (CONTROL, size_of::<Control>(), 1),
            "oracle" => (ORACLES, size_of::<Oracle>(), MAX_LOCKS),
            "vcpu" => (self.extent.areas, size_of::<VcpuArea>(), self.vcpus()),
            "entries" => (self.entries(0), ENTRIES_ROW_BYTES, self.vcpus()),
            _ => return,
        };
        let bytes = bytes as u64;
        if index < count && offset.is_multiple_of(8) && offset < bytes {
            self.write(address + u64::from(index) * bytes + offset, &value.to_le_bytes());
        }
    }

    /// Puts zeros where the guest and the VMM speak to each other: the control block, the areas, the oracles and counters of so
    /// many locks.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn clear_shared(&self, locks: u32) {
        let zero = |address: u64, bytes: usize| self.write(address, &vec![0; bytes]);
        zero(CONTROL, size_of::<Control>());
        zero(ORACLES, locks as usize * size_of::<Oracle>());
        zero(self.extent.areas, self.vcpus as usize * size_of::<VcpuArea>());
        for vcpu in 0..self.vcpus() {
            zero(self.entries(vcpu), locks as usize * size_of::<u64>());
        }
    }

    /// A copy of `len` bytes at `address`; `None` where there is no memory. A running guest may change them meanwhile.
    pub(crate) fn read(&self, address: u64, len: u64) -> Option<Vec<u8>> {
        if address.checked_add(len).is_none_or(|end| end > self.extent.size) {
            return None;
        }
        let mut bytes = vec![0; len as usize];
        self.map.read_slice(&mut bytes, Gpa(address)).ok()?;
        Some(bytes)
    }

    fn shared<T: Shared>(&self, address: u64) -> &T {
        let slice =
            self.map.get_slice(Gpa(address), size_of::<T>()).expect("shared structures lie in guest memory");
        let pointer = slice.ptr_guard().as_ptr().cast::<T>();
        assert!(pointer.is_aligned(), "shared structures are aligned");
        // SAFETY: `get_slice` checked that the whole structure lies in the mapping, which `self` keeps alive; it is
        // aligned; `Shared` says that a guest which writes at the same time changes values and nothing else.
        unsafe { &*pointer }
    }

    /// The guest's address of something that it shares.
    pub(crate) fn address_of<T>(&self, shared: &T) -> u64 {
        (&raw const *shared) as u64 - self.host_base() as u64 + self.start
    }

    pub(crate) fn control(&self) -> &Control {
        self.shared(CONTROL)
    }

    /// The exclusion checker of lock `lock`, below [`MAX_LOCKS`].
    pub(crate) fn oracle(&self, lock: u32) -> &Oracle {
        assert!(lock < MAX_LOCKS);
        self.shared(ORACLES + u64::from(lock) * size_of::<Oracle>() as u64)
    }

    pub(crate) fn area(&self, vcpu: u32) -> &VcpuArea {
        self.shared(self.area_address(vcpu).0)
    }

    pub(crate) fn area_address(&self, vcpu: u32) -> GuestAddress {
        assert!(u64::from(vcpu) < self.vcpus);
        GuestAddress(self.extent.areas + u64::from(vcpu) * size_of::<VcpuArea>() as u64)
    }

    pub(crate) fn tss_address(vcpu: u32) -> u64 {
        TSS_BASE + u64::from(vcpu) * TSS_BYTES
    }

    pub(crate) fn ring0_stack_top(&self, vcpu: u32) -> u64 {
        stacks_after(self.extent.areas, self.vcpus) + (u64::from(vcpu) + 1) * RING0_STACK_BYTES
    }

    pub(crate) fn nmi_stack_top(&self, vcpu: u32) -> u64 {
        self.ring0_stack_top(vcpu) - RING0_STACK_BYTES / 2
    }

    pub(crate) fn stack_top(&self, vcpu: u32) -> u64 {
        self.ring0_stack_top(self.vcpus as u32 - 1) + (u64::from(vcpu) + 1) * STACK_BYTES
    }

    /// The lowest addresses of the stacks of vCPU `vcpu`, and what each is for.
    fn stack_ends(&self, vcpu: u32) -> [(&'static str, u64); 3] {
        [
            ("stack", self.stack_top(vcpu) - STACK_BYTES),
            ("exception stack", self.nmi_stack_top(vcpu)),
            ("NMI stack", self.ring0_stack_top(vcpu) - RING0_STACK_BYTES),
        ]
    }

    /// The first stack of vCPU `vcpu` that was too short, if one was.
    pub(crate) fn overrun_stack(&self, vcpu: u32) -> Option<&'static str> {
        let whole = |end| {
            self.read(end, 32).is_some_and(|found| found == CANARY.map(u64::to_le_bytes).as_flattened())
        };
        self.stack_ends(vcpu).into_iter().find(|(_, end)| !whole(*end)).map(|(name, _)| name)
    }

    /// Start of vCPU 0's ring of trace records; `None` when the run is not traced.
    fn trace_rings(&self) -> Option<u64> {
        (self.trace_sections > 0).then(|| self.entries(self.vcpus as u32))
    }

    fn entries(&self, vcpu: u32) -> u64 {
        self.stack_top(self.vcpus as u32 - 1) + u64::from(vcpu) * ENTRIES_ROW_BYTES as u64
    }

    pub(crate) fn entered(&self, vcpu: u32, lock: u32) -> u64 {
        assert!(u64::from(vcpu) < self.vcpus && lock < MAX_LOCKS);
        let bytes =
            self.read(self.entries(vcpu) + u64::from(lock) * 8, 8).expect("the rows lie in guest memory");
        bytes.try_into().map_or(0, u64::from_le_bytes)
    }

    /// A copy of the ring of vCPU `vcpu`, as far as it has been written.
    pub(crate) fn trace_ring(&self, vcpu: u32) -> Option<Vec<u8>> {
        let bytes = trace_ring_bytes(self.trace_sections);
        self.read(self.trace_rings()? + u64::from(vcpu) * bytes, bytes)
    }

    /// Puts the memory of `file`, which holds a [`StealTime`] line for each of [`MAX_VCPUS`] vCPUs, under the guest's eyes,
    /// and tells it so. After [`Self::write_boot_block`].
    pub(crate) fn map_flags(&self, file: BorrowedFd<'_>) -> std::io::Result<()> {
        self.map_over(FLAGS, FLAGS_BYTES, file)?;
        self.write(BOOT_BLOCK + offset_of!(BootBlock, preempted_flags) as u64, &FLAGS.to_le_bytes());
        Ok(())
    }

    /// Puts the memory of `areas`, one [`VcpuArea`] for each vCPU, in the place of the guest's own, and that of `oracles`,
    /// one for each of `locks`, which both go on with what was there. Before the guest runs, and before anybody refers to
    /// either. A vCPU that something was tried on has run: KVM drops its translations when the process's mapping changes.
    pub(crate) fn share_with(
        &self,
        [areas, oracles]: [BorrowedFd<'_>; 2],
        locks: u32,
    ) -> std::io::Result<()> {
        let whole = |bytes: usize| bytes.next_multiple_of(HOST_PAGE);
        self.map_over(self.extent.areas, whole(self.vcpus as usize * size_of::<VcpuArea>()), areas)?;
        self.map_over(ORACLES, whole(locks as usize * size_of::<Oracle>()), oracles)
    }

    /// Puts the memory of `file` in the place of the guest's own, with the contents of the latter.
    fn map_over(&self, address: u64, bytes: usize, file: BorrowedFd<'_>) -> std::io::Result<()> {
        let was = self.read(address, bytes as u64).expect("what is replaced lies in guest memory");
        let place = self.map.get_slice(Gpa(address), bytes).expect("as above").ptr_guard_mut().as_ptr();
        // SAFETY: replaces pages of the mapping that this struct owns, before anything refers to them (the flags have a place
        // of their own, asserted above; the callers see to the others); they are unmapped with the rest.
        unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(place.cast(), bytes, access, MapFlags::SHARED | MapFlags::FIXED, file, 0)?;
        }
        self.write(address, &was);
        Ok(())
    }

    /// The line with the flag of vCPU `vcpu` that [`Self::map_flags`] has put there; else all zeros.
    pub(crate) fn flag(&self, vcpu: u32) -> &StealTime {
        assert!(u64::from(vcpu) < self.vcpus);
        self.shared(FLAGS + u64::from(vcpu) * size_of::<StealTime>() as u64)
    }

    /// Writes the boot block and what each vCPU must know of itself, and says where the block is.
    pub(crate) fn write_boot_block(&self, mut boot: BootBlock) -> GuestAddress {
        boot.vcpu_areas = self.area_address(0);
        boot.control = GuestAddress(CONTROL);
        boot.oracles = GuestAddress(ORACLES);
        boot.trace_rings = GuestAddress(self.trace_rings().unwrap_or(0));
        boot.trace_sections = self.trace_sections;
        boot.entries = GuestAddress(self.entries(0));
        boot.page_table = GuestAddress(PML4);
        (boot.pool, boot.pool_bytes) = (GuestAddress(self.extent.pool), self.pool_bytes());
        self.write(BOOT_BLOCK, boot.bytes());
        for vcpu in 0..self.vcpus as u32 {
            let this = self.area_address(vcpu).0;
            self.write(this + haltkick_hypercalls::SELF_OFFSET as u64, &this.to_le_bytes());
            self.write(this + haltkick_hypercalls::CPU_OFFSET as u64, &vcpu.to_le_bytes());
            let stack = self.ring0_stack_top(vcpu);
            self.write(this + haltkick_hypercalls::EXCEPTION_STACK_OFFSET as u64, &stack.to_le_bytes());
            for (_, end) in self.stack_ends(vcpu) {
                self.write(end, CANARY.map(u64::to_le_bytes).as_flattened());
            }
        }
        GuestAddress(BOOT_BLOCK)
    }
}

/// The memory of a simulated machine: that of its guests, one behind the other. One thread at a time runs the CPUs and looks at what they
/// share with the VMM.
pub(crate) struct Ram<'a>(Vec<Part<'a>>);

struct Part<'a> {
    partition: Partition,
    base: *mut u8,
    /// Keeps the mapping alive.
    _memory: &'a Memory,
}

impl<'a> Ram<'a> {
    pub(crate) fn new(memories: impl IntoIterator<Item = &'a Memory>) -> Self {
        let mut start = 0_u64;
        let part = |memory: &'a Memory| {
            let partition = Partition { start, bytes: memory.size() };
            start = (start + partition.bytes).next_multiple_of(LARGE_PAGE);
            Part { partition, base: memory.host_base(), _memory: memory }
        };
        Self(memories.into_iter().map(part).collect())
    }

    pub(crate) fn partitions(&self) -> impl Iterator<Item = Partition> {
        self.0.iter().map(|part| part.partition)
    }

    /// Pointer to `bytes` at a physical address, all of one guest: between two guests lies a page's border.
    #[inline(always)]
    fn at(&self, physical: u64, bytes: usize) -> Option<*mut u8> {
        self.0.iter().find_map(|part| {
            let offset = physical.wrapping_sub(part.partition.start);
            let end = offset.checked_add(bytes as u64)?;
            // SAFETY: within the mapping, which `_memory` keeps alive.
            (end <= part.partition.bytes).then(|| unsafe { part.base.add(offset as usize) })
        })
    }
}

impl board::Memory for Ram<'_> {
    #[inline(always)]
    fn load(&self, physical: u64, bytes: usize) -> u64 {
        let Some(from) = self.at(physical, bytes) else { return 0 };
        let mut value = [0; 8];
        // SAFETY: `at` has checked the source, and at most eight bytes are asked for. References to this memory are to atomics,
        // and no other thread writes it now.
        unsafe {
            match bytes {
                // One instruction each, in place of a call.
                8 => return from.cast::<u64>().read_unaligned(),
                4 => return from.cast::<u32>().read_unaligned().into(),
                _ => from.copy_to_nonoverlapping(value.as_mut_ptr(), bytes.min(8)),
            }
        }
        u64::from_le_bytes(value)
    }

    fn store(&mut self, physical: u64, bytes: usize, value: u64) {
        let Some(to) = self.at(physical, bytes) else { return };
        // SAFETY: as above, the other way round.
        unsafe {
            match bytes {
                8 => to.cast::<u64>().write_unaligned(value),
                4 => to.cast::<u32>().write_unaligned(value as u32),
                _ => to.copy_from_nonoverlapping(value.to_le_bytes().as_ptr(), bytes.min(8)),
            }
        }
    }

    fn end(&self) -> u64 {
        self.0.last().map_or(0, |last| last.partition.start + last.partition.bytes)
    }
}
