//! How far the devices of a mapping domain reach, page by page, where an IOMMU is strict. See `operations/reach.rs`.

use super::Memory;
use crate::locking::guarded::Guarded;

/// How far devices reach, in order.
pub(crate) const NOT: u32 = 0;
pub(crate) const FOR_READING: u32 = 1;
pub(crate) const FOR_WRITING: u32 = 2;

/// One domain's.
#[derive(Debug)]
pub(crate) struct Iommu {
    /// By machine frame; none unless the scheme is strict. Each is protected by the table lock of the domain that has the frame,
    /// held for writing.
    pub(crate) reach: &'static [Guarded],
}

impl Iommu {
    pub(crate) fn new(memory: &impl Memory, frames: usize) -> Self {
        Self { reach: memory.slice(frames, |_| Guarded::new(NOT)) }
    }

    /// Frames that can be reached. Exact at rest.
    pub(crate) fn reachable(&self) -> usize {
        self.reach.iter().filter(|reach| reach.get() != NOT).count()
    }
}
