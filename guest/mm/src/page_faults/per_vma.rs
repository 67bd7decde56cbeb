//! The fault path that locks the one area that it is about (`address_space/vma_lock.rs`).

use haltkick_locks::mutant::mutant;

use super::classic::{Attempt, allows};
use crate::address_space::mm::Space;
use crate::contract::Event;
use crate::contract::machine::{Access, Error, Machine, Step};
use crate::records::vma::ANON;

impl<M: Machine> Space<'_, M> {
    pub(crate) fn fault_with_area_locked(self, address: u64, access: Access) -> Attempt {
        let machine = &self.memory.machine;
        let Some(area) = self.lock_area(address) else { return Attempt::GiveUp(None) };
        machine.step(Step::VmaLocked);
        let result = if mutant!("vma-ignore-access": !allows(area.flags(), access) => false) {
            Some(Err(Error::NotAllowed))
        } else if mutant!("vma-ignore-anon": area.flags() & ANON == 0 => false) {
            // Attaching an anon_vma looks at the neighbours.
            None
        } else {
            Some(self.serve_allowed(area, address))
        };
        self.unlock_area(area);
        machine.event(if result.is_some() { Event::VmaLockSuccess } else { Event::VmaLockRetry }, 1);
        match result {
            Some(Ok(())) => Attempt::Served,
            Some(Err(error)) => Attempt::Wrong(error),
            None => Attempt::GiveUp(None),
        }
    }
}
