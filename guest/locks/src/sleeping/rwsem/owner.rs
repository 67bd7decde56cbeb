//! The owner of a [`RwSem`]: a hint for spinning waiters. All accesses are relaxed, and no protocol depends on them.

use super::super::{osq::Layout, sleep::SleepDomain};
use super::{RwSem, RwSemRules};
use crate::{contract::Platform, memory::sync::Ordering::*};

pub(super) const READER_OWNED: u32 = 1;
pub(super) const NONSPINNABLE: u32 = 1 << 1;
pub(super) const OWNER_SHIFT: u32 = 2;

impl<L: Layout, R: RwSemRules> RwSem<L, R> {
    /// Notes who owns it. Relaxed, as everywhere where `owner` is used: a hint.
    pub(super) fn name_writer(&self, me: u32) {
        self.owner.store(me << OWNER_SHIFT, Relaxed);
    }

    /// Notes that readers own it. Not written again by each of many readers.
    pub(super) fn name_reader(&self, me: u32) {
        let seen = self.owner.load(Relaxed);
        if seen & READER_OWNED == 0 {
            self.owner.store(me << OWNER_SHIFT | READER_OWNED | seen & NONSPINNABLE, Relaxed);
        }
    }

    /// The readers that kept it for long are gone.
    pub(super) fn allow_spinning(&self) {
        if self.owner.load(Relaxed) & NONSPINNABLE != 0 {
            self.owner.fetch_and(!NONSPINNABLE, Relaxed);
        }
    }

    /// Whether a writer owns it that does not run.
    pub(super) fn is_owner_off<P: Platform, const CPUS: usize>(
        &self,
        domain: &SleepDomain<P, L, CPUS>,
        owner: u32,
    ) -> bool {
        let number = owner >> OWNER_SHIFT;
        owner & READER_OWNED == 0 && number != 0 && !domain.is_running(number)
    }
}
