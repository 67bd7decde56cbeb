//! All domains, and the hypervisor's operations on their tables.
//!
//! A domain is granter with its table and its frames, and mapper with its maptrack and its window.

mod copy;
mod map;

use haltkick_locks::{ReaderSlot, mutant::mutant};

use crate::{
    interface::Status,
    locking::{AtomicU32, Guarded, MaptrackLocking, Ordering::*, Scheme},
    machine::{Counter, Memory, NOT, Page, Sizes, Vcpu, frames::Frames, window::Window},
    tables::{PERMIT_ACCESS, READING, SharedEntry, TYPE, WRITING, maptrack::Maptrack, table::Table},
};

pub use copy::{CopyRequest, Place};
pub use map::BATCH;

/// No frame at this frame number.
const ABSENT: u32 = u32::MAX;

pub(crate) struct DomainState<S: Scheme> {
    pub(crate) id: u16,
    pub(crate) table: Table<S>,
    pub(crate) maptrack: Maptrack<S>,
    pub(crate) window: Window,
    /// How far the domain's devices reach, by machine frame: see `settle_reach` in `map.rs`. None unless the scheme is strict.
    /// Each is protected by the table lock of the domain that has the frame, held for writing.
    pub(crate) reach: &'static [Guarded],
    /// From the domain's frame numbers to the machine's, or [`ABSENT`].
    frames: &'static [AtomicU32],
}

/// Everything.
pub struct World<S: Scheme> {
    pub(crate) domains: &'static [DomainState<S>],
    pub(crate) frames: Frames,
}

impl<S: Scheme> DomainState<S> {
    fn new(memory: &impl Memory, id: usize, sizes: Sizes, slots: &'static [ReaderSlot]) -> Self {
        let table = Table::new(memory, id as u16, sizes, slots);
        let maptrack = Maptrack::new(memory, sizes.handles, sizes.vcpus, table.handles());
        let reachable = if S::STRICT_IOMMU { sizes.frames } else { 0 };
        Self {
            id: id as u16,
            table,
            maptrack,
            window: Window::new(memory, sizes.handles),
            reach: memory.slice(reachable, |_| Guarded::new(NOT)),
            frames: memory.slice(sizes.frames, |_| AtomicU32::new(ABSENT)),
        }
    }

    /// Does `section` with the free handles, under the table's lock where that protects them.
    pub(crate) fn with_handles<R>(&self, vcpu: &Vcpu, section: impl FnOnce() -> R) -> R {
        match S::MAPTRACK {
            MaptrackLocking::Table => self.table.write(vcpu, section),
            _ => section(),
        }
    }

    /// The machine frame at the domain's frame number.
    pub(crate) fn machine_frame(&self, number: u32) -> Result<u32, Status> {
        // Acquire: pairs with the release in `World::assign`.
        let frame = self.frames.get(number as usize).map_or(ABSENT, |frame| frame.load(Acquire));
        if frame == ABSENT { Err(Status::BadPage) } else { Ok(frame) }
    }
}

impl<S: Scheme> World<S> {
    /// A world at rest, whose domains own no frame yet.
    pub fn new(memory: &impl Memory, sizes: Sizes) -> Self {
        let slots = memory.slice(sizes.vcpus, |_| ReaderSlot::new());
        Self {
            domains: memory.slice(sizes.domains, |id| DomainState::new(memory, id, sizes, slots)),
            frames: Frames::new(memory, sizes.frames),
        }
    }

    /// Gives an unowned machine frame to a domain, as its frame `number`.
    ///
    /// # Errors
    /// [`Status::BadDomain`], and [`Status::BadPage`] if the domain has a frame of that number.
    pub fn assign(&self, domain: u16, number: u32, frame: u32) -> Result<(), Status> {
        let domain = self.domain(domain)?;
        if frame as usize >= self.frames.pages.len() {
            return Err(Status::BadPage);
        }
        let slot = domain.frames.get(number as usize).ok_or(Status::BadPage)?;
        // AcqRel: a vCPU that finds the frame finds its owner and content.
        slot.compare_exchange(ABSENT, frame, AcqRel, Relaxed).map_err(|_| Status::BadPage)?;
        self.frames.assign(frame, domain.id);
        Ok(())
    }

    /// The shared entry that `domain`'s kernel sees, in its table or where the table can grow.
    ///
    /// # Panics
    /// If there is none: this is no hypercall, the domain knows its memory.
    pub fn shared(&self, domain: u16, reference: u32) -> &'static SharedEntry {
        &self.domains[usize::from(domain)].table.shared[reference as usize]
    }

    /// A page as the domain that has it sees it.
    ///
    /// # Errors
    /// [`Status::BadDomain`], or [`Status::BadPage`] if it has none of that number.
    pub fn page(&self, domain: u16, number: u32) -> Result<&'static Page, Status> {
        Ok(self.frames.page(self.domain(domain)?.machine_frame(number)?))
    }

    /// A page as the domain that has mapped it sees it, and whether it may write there.
    ///
    /// # Errors
    /// [`Status::BadDomain`], or [`Status::BadHandle`] where nothing is mapped: a page fault.
    pub fn mapped(&self, vcpu: &Vcpu, mapper: u16, handle: u32) -> Result<(&'static Page, bool), Status> {
        let translation = self.domain(mapper)?.window.translate(&vcpu.tlb, handle);
        let frame = translation.frame().ok_or(Status::BadHandle)?;
        Ok((self.frames.page(frame), translation.is_writable()))
    }

    pub(crate) fn domain(&self, id: u16) -> Result<&'static DomainState<S>, Status> {
        self.domains.get(usize::from(id)).ok_or(Status::BadDomain)
    }
}

// Operations on a table as a whole: growth, and the exchange of two entries.

impl<S: Scheme> World<S> {
    /// Grows `domain`'s table to `references` entries. It never shrinks.
    ///
    /// # Errors
    /// [`Status::BadDomain`], or [`Status::NoSpace`] beyond what it can have.
    pub fn grow(&self, vcpu: &Vcpu, domain: u16, references: u32) -> Result<(), Status> {
        let grown = self
            .domain(domain)
            .and_then(|domain| domain.table.write(vcpu, || domain.table.grow_to(references)));
        vcpu.settle(Counter::Grow, grown)
    }

    /// Entries of `domain`'s table.
    ///
    /// # Errors
    /// [`Status::BadDomain`].
    pub fn references(&self, vcpu: &Vcpu, domain: u16) -> Result<u32, Status> {
        let domain = vcpu.settle_refusal(self.domain(domain))?;
        Ok(domain.table.read(vcpu, || domain.table.count.get()))
    }

    /// Exchanges two unmapped entries of `domain`'s table.
    ///
    /// # Errors
    /// [`Status::BadDomain`], [`Status::BadReference`], or [`Status::Again`] if one is mapped.
    pub fn swap(&self, vcpu: &Vcpu, domain: u16, a: u32, b: u32) -> Result<(), Status> {
        let swapped = self.domain(domain).and_then(|domain| {
            let swap = || self.swap_entries(vcpu, domain, a, b);
            if S::SWAP_UNDER_READ { domain.table.read(vcpu, swap) } else { domain.table.write(vcpu, swap) }
        });
        vcpu.settle(Counter::Swap, swapped)
    }

    fn swap_entries(&self, vcpu: &Vcpu, domain: &DomainState<S>, a: u32, b: u32) -> Result<(), Status> {
        let (entry_a, entry_b) = (domain.table.entry(a)?, domain.table.entry(b)?);
        let exchange = || {
            let mapped = entry_a.active.pin.get() != 0 || entry_b.active.pin.get() != 0;
            if mutant!("grants-swap-mapped": mapped => false) {
                return Err(Status::Again);
            }
            entry_a.shared.swap(entry_b.shared);
            Ok(())
        };
        // Itself: one lock is taken once.
        if mutant!("grants-swap-itself": a == b => false) {
            return Ok(());
        }
        // ABBA: two swaps of one pair must take its locks in one order. As posted in 2013, they took them as given.
        let in_order = mutant!("grants-swap-as-given": a < b => true);
        let (first, second) = if in_order { (&entry_a, &entry_b) } else { (&entry_b, &entry_a) };
        first.locked(vcpu, || second.locked(vcpu, exchange))
    }
}

// Invariants of a state without any operation under way.

/// Sums over all domains. All but `handles` must be 0, and `handles_home` equal it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// Active entries with a pin.
    pub pinned: usize,
    /// Shared entries that are marked as in use.
    pub in_use: usize,
    /// Windows' mappings.
    pub mapped: usize,
    /// Frames that devices can reach by what was mapped.
    pub reachable: usize,
    /// Frames that are held.
    pub held_frames: usize,
    /// Readers in their slots.
    pub readers: usize,
    /// Handles that there are.
    pub handles: usize,
    /// Handles that are free, in the list that is their home, once.
    pub handles_home: usize,
    /// Words of pages and disks of a [`Stream`](crate::Stream) that are not what they should be.
    pub misplaced: usize,
    /// Pages of a stream that a kernel still lists.
    pub listed: u32,
}

impl Rest {
    /// Whether everything is where it belongs.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        *self == Self { handles: self.handles, handles_home: self.handles, ..Self::default() }
    }
}

impl<S: Scheme> World<S> {
    /// Looks at everything. Exact when no operation is going on.
    pub fn rest(&self) -> Rest {
        // The domains' tables have their readers in the same slots.
        let readers = self.domains.first().map_or(0, |domain| domain.table.readers.readers());
        let mut rest = Rest { held_frames: self.frames.held(), readers, ..Rest::default() };
        for domain in self.domains {
            rest.pinned += domain.table.active.iter().filter(|active| active.pin.get() != 0).count();
            let in_use = |word: u32| word & TYPE == PERMIT_ACCESS && word & (READING | WRITING) != 0;
            rest.in_use += domain.table.shared.iter().filter(|entry| in_use(entry.word())).count();
            rest.mapped += domain.window.mapped();
            rest.reachable += domain.reach.iter().filter(|reach| reach.get() != NOT).count();
            let (handles, home) = domain.maptrack.census();
            rest.handles += handles;
            rest.handles_home += home;
        }
        rest
    }
}
