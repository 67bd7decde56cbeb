//! The mapping domain's window: from handles to pages, with cached translations that must be invalidated.
//!
//! A page table in miniature: an entry per handle, and a small cache of entries in each vCPU. Removing an entry does not
//! empty the caches; raising the window's epoch does, for a vCPU looks at the epoch at each access. One raise serves
//! a whole batch of removed entries, and no page may be unpinned before it.

use core::cell::Cell;

use haltkick_locks::mutant::mutant;

use super::Memory;
use crate::locking::{AtomicU32, AtomicU64, Ordering::*};

/// Cached translations of one vCPU.
const CACHED: usize = 32;
/// Bit of an entry: may be written.
const WRITABLE: u32 = 1;

/// A translation: 0 is none, else frame + 1 and [`WRITABLE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Translation(u32);

impl Translation {
    fn new(frame: u32, writable: bool) -> Self {
        Self((frame + 1) << 1 | if writable { WRITABLE } else { 0 })
    }

    pub(crate) fn frame(self) -> Option<u32> {
        (self.0 >> 1).checked_sub(1)
    }

    pub(crate) fn is_writable(self) -> bool {
        self.0 & WRITABLE != 0
    }
}

#[derive(Debug)]
pub(crate) struct Window {
    entries: &'static [AtomicU32],
    epoch: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Tlb {
    epoch: Cell<u64>,
    /// Handle + 1, and what it translates to.
    cached: [Cell<(u32, Translation)>; CACHED],
}

impl Tlb {
    pub(crate) const fn new() -> Self {
        Self { epoch: Cell::new(0), cached: [const { Cell::new((0, Translation(0))) }; CACHED] }
    }
}

impl Window {
    pub(crate) fn new(memory: &impl Memory, handles: usize) -> Self {
        Self { entries: memory.slice(handles, |_| AtomicU32::new(0)), epoch: AtomicU64::new(0) }
    }

    /// Makes a mapping. Release: pairs with the walk in `translate`.
    pub(crate) fn install(&self, handle: u32, frame: u32, writable: bool) {
        let release = mutant!("grants-relaxed-install": Release => Relaxed);
        self.entries[handle as usize].store(Translation::new(frame, writable).0, release);
    }

    /// Removes a mapping. Caches may have it until [`invalidate`](Self::invalidate).
    pub(crate) fn remove(&self, handle: u32) {
        // Relaxed: published by the invalidation.
        self.entries[handle as usize].store(0, Relaxed);
    }

    /// Makes every vCPU forget what it has cached, before its next access.
    pub(crate) fn invalidate(&self) {
        // Release: removed entries come before. Pairs with the acquire in `translate`.
        self.epoch.fetch_add(1, mutant!("grants-relaxed-invalidate": Release => Relaxed));
    }

    /// Returns the page that `handle` maps, out of the cache or by a walk.
    pub(crate) fn translate(&self, tlb: &Tlb, handle: u32) -> Translation {
        // Acquire: pairs with `invalidate`.
        let epoch = self.epoch.load(mutant!("grants-relaxed-epoch": Acquire => Relaxed));
        if tlb.epoch.replace(epoch) != epoch {
            tlb.cached.iter().for_each(|cached| cached.set((0, Translation(0))));
        }
        let cached = &tlb.cached[handle as usize % CACHED];
        let (cached_handle, translation) = cached.get();
        if cached_handle == handle + 1 {
            return translation;
        }
        // Acquire: pairs with `install`.
        let acquire = mutant!("grants-relaxed-walk": Acquire => Relaxed);
        let walked =
            self.entries.get(handle as usize).map_or(Translation(0), |it| Translation(it.load(acquire)));
        cached.set((handle + 1, walked));
        walked
    }

    /// Mappings that there are. Exact at rest.
    pub(crate) fn mapped(&self) -> usize {
        self.entries.iter().filter(|entry| entry.load(Relaxed) != 0).count()
    }
}
