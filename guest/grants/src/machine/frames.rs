//! The machine's page frames: their content, who owns each, and how many pins keep it where it is.

use core::sync::atomic::AtomicU64;

use haltkick_locks::mutant::mutant;

use super::Memory;
use crate::interface::Status;
use crate::locking::{AtomicU32, Ordering::*};

/// Words in a page: few under the model checker, which makes a new machine for each schedule.
pub const PAGE_WORDS: usize = if cfg!(shuttle) { 64 } else { 512 };
/// Bytes in a page.
pub const PAGE_BYTES: usize = PAGE_WORDS * 8;

/// One page of 4 KiB. Words, because that is what is copied; atomic, because a granter may write while others read.
#[derive(Debug)]
#[cfg_attr(not(shuttle), repr(align(4096)))]
pub struct Page([AtomicU64; PAGE_WORDS]);

impl Page {
    /// Word `index`. Relaxed: entries and handles order what happens to a page.
    #[inline(always)]
    pub fn read(&self, index: usize) -> u64 {
        self.0[index].load(Relaxed)
    }

    /// Sets word `index`.
    #[inline(always)]
    pub fn write(&self, index: usize, value: u64) {
        self.0[index].store(value, Relaxed);
    }
}

/// Owner of a frame that has not been assigned yet.
const NOBODY: u16 = u16::MAX;

/// All frames. The state of each is a word: owner in the low half, pins in the high half.
#[derive(Debug)]
pub(crate) struct Frames {
    pub(crate) pages: &'static [Page],
    states: &'static [AtomicU32],
}

impl Frames {
    pub(crate) fn new(memory: &impl Memory, count: usize) -> Self {
        Self {
            pages: memory.slice(count, |_| Page([const { AtomicU64::new(0) }; PAGE_WORDS])),
            states: memory.slice(count, |_| AtomicU32::new(u32::from(NOBODY))),
        }
    }

    pub(crate) fn page(&self, frame: u32) -> &'static Page {
        &self.pages[frame as usize]
    }

    /// Gives an unused frame to `owner`.
    pub(crate) fn assign(&self, frame: u32, owner: u16) {
        // Release: what the last owner wrote comes before. Pairs with `hold`.
        let release = mutant!("grants-relaxed-assign": Release => Relaxed);
        self.states[frame as usize].store(u32::from(owner), release);
    }

    /// Keeps the frame where it is, if it is `owner`'s.
    pub(crate) fn hold(&self, frame: u32, owner: u16) -> Result<(), Status> {
        let one_more = |state: u32| {
            (state & 0xffff == u32::from(owner) && state >> 16 < 0xffff).then(|| state + (1 << 16))
        };
        // Acquire: pairs with `assign`.
        self.states[frame as usize]
            .fetch_update(mutant!("grants-relaxed-hold": Acquire => Relaxed), Relaxed, one_more)
            .map(drop)
            .map_err(|_| Status::BadPage)
    }

    /// Undoes one [`hold`](Self::hold).
    pub(crate) fn release(&self, frame: u32) {
        // Relaxed: no frame is taken away from its owner; how many are held is looked at when all are at rest.
        self.states[frame as usize].fetch_sub(1 << 16, Relaxed);
    }

    /// Frames that are held. Exact at rest.
    pub(crate) fn held(&self) -> usize {
        self.states.iter().filter(|state| state.load(Relaxed) >> 16 != 0).count()
    }
}
