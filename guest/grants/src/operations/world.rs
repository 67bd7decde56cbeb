//! All domains, and the hypervisor's operations on their tables.
//!
//! A domain is granter with its table and its frames, and mapper with its maptrack and its window.

use haltkick_locks::{PerCpuRwDomain, ReaderSlot};

use crate::interface::Status;
use crate::locking::scheme::Readers;
use crate::locking::sync::{AtomicU32, Ordering::*};
use crate::locking::{Kernel, Scheme};
use crate::machine::frames::{Frames, Page};
use crate::machine::iommu::Iommu;
use crate::machine::window::Window;
use crate::machine::{Memory, Sizes, Vcpu};
use crate::tables::maptrack::Maptrack;
use crate::tables::shared::SharedEntry;
use crate::tables::table::Table;

/// No frame at this frame number.
pub(crate) const ABSENT: u32 = u32::MAX;

/// One domain.
pub(crate) struct DomainState<S: Scheme> {
    pub(crate) id: u16,
    pub(crate) table: Table<S>,
    pub(crate) maptrack: Maptrack<S>,
    pub(crate) window: Window,
    pub(crate) iommu: Iommu,
    /// From the domain's frame numbers to the machine's, or [`ABSENT`].
    frames: &'static [AtomicU32],
}

/// Everything.
pub struct World<S: Scheme> {
    pub(crate) domains: &'static [DomainState<S>],
    pub(crate) frames: Frames,
    pub(crate) readers: Readers<S::Kernel>,
}

impl<S: Scheme> DomainState<S> {
    fn new(memory: &impl Memory, id: usize, sizes: Sizes) -> Self {
        let table = Table::new(memory, id as u16, sizes);
        let maptrack = Maptrack::new(memory, sizes.handles, sizes.vcpus, table.handles());
        Self {
            id: id as u16,
            table,
            maptrack,
            window: Window::new(memory, sizes.handles),
            iommu: Iommu::new(memory, if S::STRICT_IOMMU { sizes.frames } else { 0 }),
            frames: memory.slice(sizes.frames, |_| AtomicU32::new(ABSENT)),
        }
    }

    /// The machine frame at the domain's frame number.
    pub(crate) fn machine_frame(&self, number: u32) -> Result<u32, Status> {
        // Acquire: pairs with the release in `set_machine_frame`.
        let frame = self.frames.get(number as usize).map_or(ABSENT, |frame| frame.load(Acquire));
        if frame == ABSENT { Err(Status::BadPage) } else { Ok(frame) }
    }

    /// Exchanges `from` for `to` at the frame number, if it is still `from`.
    pub(crate) fn set_machine_frame(&self, number: u32, from: u32, to: u32) -> Result<(), Status> {
        let slot = self.frames.get(number as usize).ok_or(Status::BadPage)?;
        // AcqRel: a vCPU that finds the frame finds its owner and content.
        slot.compare_exchange(from, to, AcqRel, Relaxed).map(drop).map_err(|_| Status::BadPage)
    }
}

impl<S: Scheme> World<S> {
    /// A world at rest, whose domains own no frame yet.
    pub fn new(memory: &impl Memory, sizes: Sizes) -> Self {
        let slots = memory.slice(sizes.vcpus, |_| ReaderSlot::new());
        Self {
            domains: memory.slice(sizes.domains, |id| DomainState::new(memory, id, sizes)),
            frames: Frames::new(memory, sizes.frames),
            readers: PerCpuRwDomain::new(<S::Kernel as Kernel>::domain(), slots),
        }
    }

    /// Gives an unowned machine frame to a domain, as its frame `number`.
    ///
    /// # Errors
    /// [`Status::BadDomain`], and [`Status::BadPage`] if the domain has a frame of that number.
    pub fn assign(&self, domain: u16, number: u32, frame: u32) -> Result<(), Status> {
        let domain = self.domain(domain)?;
        if frame as usize >= self.frames.len() {
            return Err(Status::BadPage);
        }
        domain.set_machine_frame(number, ABSENT, frame)?;
        self.frames.assign(frame, domain.id);
        Ok(())
    }

    /// The shared entry that `domain`'s kernel sees, in its table or where the table can grow.
    ///
    /// # Panics
    /// If there is none: this is no hypercall, the domain knows its memory.
    pub fn shared(&self, domain: u16, reference: u32) -> &'static SharedEntry {
        &self.domains[usize::from(domain)].table.shared()[reference as usize]
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
