//! Disks that stream through one grant table: the workload, with the guest's and the backend's part of each request.
//!
//! A guest (the frontend) has disks. For each request of [`SEGMENTS`] pages it publishes a grant per page; a vCPU of the
//! backend maps them, moves a sector through each mapping, and unmaps them; the guest takes its grants back and looks
//! whether all bytes are where they belong. Requests of one disk write to it and read back in turn. Nothing is granted
//! for longer than one request.
//!
//! Next to the disks lie entries for a hostile part of the guest, which changes them at any time and takes back
//! grants of the disks while they are being mapped.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use haltkick_locks::{CachePadded, mutant::mutant};

use crate::{
    interface::{DEVICE_MAP, HOST_MAP, MapRequest, READONLY_MAP, Status},
    locking::{Guarded, Kernel, Scheme, Taken},
    machine::{Memory, PAGE_WORDS, Page, Sizes, Vcpu},
    operations::{CopyRequest, Place, Rest, World},
    tables::{ACCEPT_TRANSFER, ENTRIES_PER_PAGE, PERMIT_ACCESS, READING, READONLY, WRITING},
};

/// Pages of a request: what fits into one slot of a block ring.
pub const SEGMENTS: usize = 11;
/// The mapping domain.
pub const BACKEND: u16 = 0;
/// The granting domain.
pub const FRONTEND: u16 = 1;

/// Words of each page that a request moves: a sector of 512 bytes, an eighth of a page.
const SECTOR_WORDS: usize = PAGE_WORDS / 8;
/// Entries that the hostile part of the guest plays with.
const HOSTILE: usize = 11;
/// Handles per vCPU: a request, a probe, one that always stays in its list, and as many again.
const HANDLES: usize = 2 * (SEGMENTS + 2);

/// Setting around the grant tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrangement {
    /// Each disk is served by one vCPU alone, as its event channel would be bound to it; else by the first vCPU
    /// that comes.
    pub bound: bool,
    /// A lock that each page needs besides.
    pub kernel_lock: Option<KernelLock>,
}

/// Disks, their guest and their backend.
pub struct Stream<S: Scheme> {
    world: World<S>,
    disks: &'static [CachePadded<Disk>],
    vcpus: usize,
    arrangement: Arrangement,
    /// Pages that are granted or mapped, as the kernel of [`Arrangement::kernel_lock`] knows them.
    listed: CachePadded<Listed<S::Kernel>>,
}

#[derive(Debug)]
struct Disk {
    /// A request is on its way.
    busy: AtomicU32,
    /// Requests so far. Written by who has made the disk busy.
    requests: AtomicU32,
    /// Content of the disk: a sector per segment. Written as above.
    media: &'static [AtomicU64],
}

/// A disk's request, while a vCPU works on it.
#[derive(Debug)]
#[must_use = "a disk stays busy until its request is finished"]
pub struct Request {
    disk: usize,
    number: u32,
    handles: [u32; SEGMENTS],
}

impl Request {
    /// From the guest to the disk, or back.
    fn is_write(&self) -> bool {
        self.number.is_multiple_of(2)
    }

    /// Returns the expected word `word` of the sector in `segment` when the request is done: a read finds what
    /// the write before it has left.
    fn expected(&self, segment: usize, word: usize) -> u64 {
        let written_by = u64::from(self.number & !1);
        (written_by << 32 | (self.disk as u64) << 16 | (segment as u64) << 8 | word as u64) ^ 0x5a5a
    }

    fn reference(&self, segment: usize) -> u32 {
        (self.disk * SEGMENTS + segment) as u32
    }
}

impl<S: Scheme> Stream<S> {
    /// `disks` idle disks, served by `vcpus` vCPUs.
    pub fn new(memory: &impl Memory, disks: usize, vcpus: usize, arrangement: Arrangement) -> Self {
        let references = disks * SEGMENTS + HOSTILE + vcpus;
        let backend_frames = 1;
        let sizes = Sizes {
            vcpus,
            domains: 2,
            references,
            most_references: references.next_multiple_of(ENTRIES_PER_PAGE) + ENTRIES_PER_PAGE,
            handles: vcpus * HANDLES,
            frames: references + backend_frames,
        };
        let world = World::new(memory, sizes);
        for number in 0..references as u32 {
            world.assign(FRONTEND, number, number).expect("a new world's frames are free");
        }
        world.assign(BACKEND, 0, references as u32).expect("and there is one more");
        let disk = |_| {
            CachePadded::new(Disk {
                busy: AtomicU32::new(0),
                requests: AtomicU32::new(0),
                media: memory.slice(SEGMENTS * SECTOR_WORDS, |_| AtomicU64::new(0)),
            })
        };
        let (disks, listed) = (memory.slice(disks, disk), CachePadded::new(Listed::new()));
        Self { world, disks, vcpus, arrangement, listed }
    }

    /// The disks that `vcpu` serves, in the order in which it looks for requests.
    pub fn disks_of(&self, vcpu: &Vcpu) -> impl Iterator<Item = usize> + Clone + use<S> {
        let disks = self.disks.len();
        let (count, step) = if self.arrangement.bound {
            (disks.saturating_sub(vcpu.index).div_ceil(self.vcpus), self.vcpus)
        } else {
            (disks, 1)
        };
        let first = vcpu.index % disks;
        (0..count).map(move |i| (first + i * step) % disks)
    }

    /// A page comes under the lock of `kernel`, or goes: by this change of their number.
    #[inline(always)]
    fn list(&self, vcpu: &Vcpu, kernel: KernelLock, change: i32) {
        if self.arrangement.kernel_lock == Some(kernel) {
            self.listed.change(vcpu, change);
        }
    }

    /// The next request of a disk that has none on its way.
    pub fn claim(&self, disk: usize) -> Option<Request> {
        // Acquire: pairs with the release in `finish`.
        let was_busy = self.disks[disk].busy.swap(1, Acquire);
        // Relaxed: the disk is this vCPU's.
        let number = self.disks[disk].requests.load(Relaxed);
        (was_busy == 0).then_some(Request { disk, number, handles: [0; SEGMENTS] })
    }

    /// The guest's part: data into the pages of a write, nothing into those of a read; a grant for each.
    pub fn publish(&self, vcpu: &Vcpu, request: &Request) {
        for segment in 0..SEGMENTS {
            self.list(vcpu, KernelLock::Granter, 1);
            let page = self.page(request, segment);
            for word in 0..SECTOR_WORDS {
                page.write(word, if request.is_write() { request.expected(segment, word) } else { 0 });
            }
            self.grant(request, segment);
        }
    }

    fn grant(&self, request: &Request, segment: usize) {
        let reference = request.reference(segment);
        let readonly = if request.is_write() { READONLY } else { 0 };
        self.world.shared(FRONTEND, reference).publish(BACKEND, PERMIT_ACCESS | readonly, reference);
    }

    fn page(&self, request: &Request, segment: usize) -> &'static Page {
        self.world.page(FRONTEND, request.reference(segment)).expect("a disk's pages stay the guest's")
    }

    /// The backend maps what is granted. Grants that were taken back meanwhile are given anew by the guest.
    pub fn map(&self, vcpu: &Vcpu, request: &mut Request) {
        let flags = HOST_MAP | if request.is_write() { READONLY_MAP } else { 0 };
        for segment in 0..SEGMENTS {
            let map = MapRequest { granter: FRONTEND, reference: request.reference(segment), flags };
            request.handles[segment] = loop {
                match self.world.map(vcpu, BACKEND, map) {
                    Ok(handle) => break handle,
                    Err(Status::GeneralError) => self.grant(request, segment),
                    Err(status) => panic!("disk {}: a page cannot be mapped: {status}", request.disk),
                }
            };
            self.list(vcpu, KernelLock::Mapper, 1);
        }
    }

    /// The backend moves a sector through each mapping.
    pub fn move_data(&self, vcpu: &Vcpu, request: &Request) {
        let media = self.disks[request.disk].media;
        for (segment, handle) in request.handles.into_iter().enumerate() {
            let (page, writable) =
                self.world.mapped(vcpu, BACKEND, handle).expect("a handle that was given maps a page");
            assert_eq!(writable, !request.is_write(), "disk {}: mapped for something else", request.disk);
            let reached = || self.world.device_reaches(vcpu, BACKEND, handle, writable);
            assert!(!S::STRICT_IOMMU || reached(), "disk {}: a page is out of its reach", request.disk);
            let sector = &media[segment * SECTOR_WORDS..][..SECTOR_WORDS];
            for (word, on_disk) in sector.iter().enumerate() {
                // Relaxed: the disk is this vCPU's.
                if request.is_write() {
                    on_disk.store(page.read(word), Relaxed);
                } else {
                    page.write(word, on_disk.load(Relaxed));
                }
            }
        }
    }

    /// The backend unmaps all pages, in one batch.
    pub fn unmap(&self, vcpu: &Vcpu, request: &Request) {
        for _ in request.handles {
            self.list(vcpu, KernelLock::Mapper, -1);
        }
        let refused = |handle, status| panic!("disk {}: handle {handle}: {status}", request.disk);
        self.world.unmap(vcpu, BACKEND, &request.handles, refused).expect("the backend exists");
    }

    /// The guest takes its grants back, checks every byte, and lets the disk go.
    pub fn finish(&self, vcpu: &Vcpu, request: Request) {
        for segment in 0..SEGMENTS {
            let revoked = self.world.shared(FRONTEND, request.reference(segment)).revoke();
            assert!(revoked, "disk {}: a page is in use after it was unmapped", request.disk);
            self.list(vcpu, KernelLock::Granter, -1);
        }
        assert_eq!(self.misplaced(&request), 0, "disk {}: words are not where they belong", request.disk);
        let disk = &self.disks[request.disk];
        // Relaxed: published by the store below.
        disk.requests.store(request.number + 1, Relaxed);
        // Release: pairs with `claim`.
        disk.busy.store(0, Release);
    }

    /// Words of the guest's pages and of the disk that are not what the request must have left.
    fn misplaced(&self, request: &Request) -> usize {
        let media = self.disks[request.disk].media;
        let of_segment = |segment: usize| {
            let page = self.page(request, segment);
            let wrong = |word: &usize| {
                let expected = request.expected(segment, *word);
                page.read(*word) != expected || media[segment * SECTOR_WORDS + word].load(Relaxed) != expected
            };
            (0..SECTOR_WORDS).filter(wrong).count()
        };
        (0..SEGMENTS).map(of_segment).sum()
    }

    /// One act of the hostile part of the guest.
    pub fn torment(&self, vcpu: &Vcpu) {
        let hostile = self.world.shared(FRONTEND, self.hostile_reference(vcpu));
        match vcpu.random(5) {
            // Its own entries: anything goes, but for marking them as in use itself, which only it would suffer from.
            0 => hostile.overwrite(vcpu.random(usize::MAX >> 32) as u32 & !(READING | WRITING)),
            1 => hostile.overwrite_frame(vcpu.random(2 * self.disks.len() * SEGMENTS) as u32),
            2 => _ = hostile.revoke(),
            3 => {
                let kind = [PERMIT_ACCESS, PERMIT_ACCESS | READONLY, ACCEPT_TRANSFER][vcpu.random(3)];
                hostile.publish(BACKEND, kind, vcpu.random(self.disks.len() * SEGMENTS) as u32);
            }
            // A disk's entry: what its owner may do at any time.
            _ => {
                let victim = vcpu.random(self.disks.len() * SEGMENTS) as u32;
                self.world.shared(FRONTEND, victim).revoke();
            }
        }
    }

    /// The backend tries what is granted by the hostile part of the guest: it must be refused or work, and leave nothing.
    pub fn probe(&self, vcpu: &Vcpu) {
        let reference = self.hostile_reference(vcpu);
        let flags = [HOST_MAP, HOST_MAP | READONLY_MAP, DEVICE_MAP | HOST_MAP | READONLY_MAP][vcpu.random(3)];
        if let Ok(handle) = self.world.map(vcpu, BACKEND, MapRequest { granter: FRONTEND, reference, flags })
        {
            let (page, _) =
                self.world.mapped(vcpu, BACKEND, handle).expect("a handle that was given maps a page");
            core::hint::black_box(page.read(0));
            self.unmap_one(vcpu, handle);
        }
        let copy = CopyRequest {
            source: Place::Granted { granter: FRONTEND, reference },
            source_offset: 0,
            destination: Place::Own { number: 0 },
            destination_offset: 0,
            length: 64,
        };
        // Refused or done: both are right.
        _ = self.world.copy(vcpu, BACKEND, copy);
    }

    /// The occasional writer: lets the table grow, a little at a time, and asks again when it cannot grow
    /// further.
    pub fn grow(&self, vcpu: &Vcpu) {
        let references = self.world.references(vcpu, FRONTEND).expect("the frontend exists");
        // Refused at the end: the lock has been taken, which is what matters.
        _ = self.world.grow(vcpu, FRONTEND, references + 1);
    }

    /// Endless work of a hostile mapper: it maps the page that it was granted for itself alone, and unmaps it.
    pub fn map_in_vain(&self, vcpu: &Vcpu) {
        let request =
            MapRequest { granter: FRONTEND, reference: self.page_of(vcpu), flags: HOST_MAP | READONLY_MAP };
        let handle = self.world.map(vcpu, BACKEND, request).expect("it has been granted");
        self.unmap_one(vcpu, handle);
    }

    fn unmap_one(&self, vcpu: &Vcpu, handle: u32) {
        let refused = |handle, status| panic!("handle {handle}: {status}");
        self.world.unmap(vcpu, BACKEND, &[handle], refused).expect("the backend exists");
    }

    /// Grants `vcpu` a page to [`map_in_vain`](Self::map_in_vain).
    pub fn grant_in_vain(&self, vcpu: &Vcpu) {
        let page = self.page_of(vcpu);
        self.world.shared(FRONTEND, page).publish(BACKEND, PERMIT_ACCESS | READONLY, page);
    }

    fn page_of(&self, vcpu: &Vcpu) -> u32 {
        (self.disks.len() * SEGMENTS + HOSTILE + vcpu.index) as u32
    }

    /// A writer who wants nothing: the table is as large as it asks for.
    pub fn grow_in_vain(&self, vcpu: &Vcpu) {
        self.world.grow(vcpu, FRONTEND, 1).expect("the frontend exists");
    }

    /// Exchanges two of the hostile entries.
    pub fn swap(&self, vcpu: &Vcpu) {
        let (a, b) = (self.hostile_reference(vcpu), self.hostile_reference(vcpu));
        // Refused while one is mapped.
        _ = self.world.swap(vcpu, FRONTEND, a, b);
    }

    fn hostile_reference(&self, vcpu: &Vcpu) -> u32 {
        (self.disks.len() * SEGMENTS + vcpu.random(HOSTILE)) as u32
    }

    /// Looks at everything, when all requests are finished.
    ///
    /// # Errors
    /// What is not where it belongs.
    pub fn rest(&self) -> Result<(), Rest> {
        let last = |(index, disk): (usize, &CachePadded<Disk>)| {
            let number = disk.requests.load(Relaxed).checked_sub(1)?;
            Some(Request { disk: index, number, handles: [0; SEGMENTS] })
        };
        let misplaced = self.disks.iter().enumerate().filter_map(last).map(|it| self.misplaced(&it)).sum();
        let rest = Rest { misplaced, listed: self.listed.pages.get(), ..self.world.rest() };
        if rest.is_clean() { Ok(()) } else { Err(rest) }
    }
}

// A global lock of a domain's own kernel, which every page needs besides the locks of the hypervisor.
//
// Kernels that map foreign pages, or hand out references to their own, keep lists of them. Where such a list has one lock,
// splitting those of the grant tables does not help beyond it. Here the list is its length.

/// The domain whose kernel has such a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelLock {
    /// The granting one: taken when it grants a page and when it takes the grant back.
    Granter,
    /// The mapping one: taken when it has mapped a page and before it unmaps it.
    Mapper,
}

/// The list. Its lock and its length share a line.
struct Listed<K: Kernel> {
    lock: K::Lock,
    pages: Guarded,
}

impl<K: Kernel> Listed<K> {
    fn new() -> Self {
        Self { lock: K::new_lock(), pages: Guarded::new(0) }
    }

    fn change(&self, vcpu: &Vcpu, change: i32) {
        let section = || self.pages.set(self.pages.get().wrapping_add_signed(change));
        if mutant!("grants-kernel-unlocked": false => true) {
            return section();
        }
        let taken = (Taken::Kernel, core::ptr::from_ref(self).addr());
        vcpu.locked::<K, _>(taken, &self.lock, section);
    }
}
