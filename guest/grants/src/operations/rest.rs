//! Invariants of a state without any operation under way.

use core::fmt;

use super::World;
use crate::locking::Scheme;
use crate::tables::shared::{PERMIT_ACCESS, READING, TYPE, WRITING};

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
}

impl Rest {
    /// Whether everything is where it belongs.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        *self == Self { handles: self.handles, handles_home: self.handles, ..Self::default() }
    }
}

impl fmt::Display for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pinned, in_use, mapped, reachable, held_frames, readers, handles, handles_home } = self;
        write!(
            f,
            "{pinned} entries pinned, {in_use} marked as in use, {mapped} pages mapped, {reachable} within reach of devices, \
             {held_frames} frames held, {readers} readers, {handles_home} of {handles} handles home"
        )
    }
}

impl<S: Scheme> World<S> {
    /// Looks at everything. Exact when no operation is going on.
    pub fn rest(&self) -> Rest {
        let mut rest =
            Rest { held_frames: self.frames.held(), readers: self.readers.readers(), ..Rest::default() };
        for domain in self.domains {
            rest.pinned += domain.table.active().iter().filter(|active| active.pin.get() != 0).count();
            let in_use = |word: u32| word & TYPE == PERMIT_ACCESS && word & (READING | WRITING) != 0;
            rest.in_use += domain.table.shared().iter().filter(|entry| in_use(entry.word())).count();
            rest.mapped += domain.window.mapped();
            rest.reachable += domain.iommu.reachable();
            let (handles, home) = domain.maptrack.census();
            rest.handles += handles;
            rest.handles_home += home;
        }
        rest
    }
}
