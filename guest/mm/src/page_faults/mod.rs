//! The fault paths of three generations.

mod speculative;

use haltkick_locks::{RwLock as _, mutant::mutant};

use crate::{
    address_space::{Scheme, Space},
    contract::{Access, Error, Event, Machine},
    records::{
        Ordering::Relaxed,
        vma::{ANON, READ, Vma, WRITE},
    },
};

// The fault path that holds `mmap_sem` for reading, and what all three have in common.

/// How an attempt without `mmap_sem` ended: as the fault does; or given up, with a reference to the area if there is one.
pub(crate) type Attempt = Result<Result<(), Error>, Option<u32>>;

/// Whether an area with `flags` allows it.
pub(crate) fn allows(flags: u32, access: Access) -> bool {
    let needed = match access {
        Access::Read => READ,
        Access::Write => WRITE,
    };
    flags & needed != 0
}

impl<M: Machine> Space<'_, M> {
    /// Serves a page fault of the calling CPU.
    ///
    /// # Errors
    /// [`Error::NotMapped`], [`Error::NotAllowed`], [`Error::OutOfMemory`]: what the process is to be told.
    pub fn fault(self, address: u64, access: Access) -> Result<(), Error> {
        self.memory.machine.event(Event::PgFault, 1);
        let attempt = match self.mm.scheme {
            Scheme::Speculative | Scheme::SpeculativeSrcu if self.mm.is_shared() => {
                self.fault_speculatively(address, access)
            }
            Scheme::PerVma => self.fault_with_area_locked(address, access),
            Scheme::MmapSem | Scheme::Speculative | Scheme::SpeculativeSrcu => Err(None),
        };
        let result = attempt.unwrap_or_else(|held| self.fault_with_semaphore(address, access, held));
        if matches!(result, Err(Error::NotMapped | Error::NotAllowed)) {
            self.memory.machine.event(Event::SegmentationFault, 1);
        }
        result
    }

    /// `held` is an area that a speculative attempt still has a reference to.
    fn fault_with_semaphore(self, address: u64, access: Access, held: Option<u32>) -> Result<(), Error> {
        self.mm.semaphore.read(self.memory.machine.sleepers());
        // An area whose sequence is even is in the tree, and stays there while the semaphore is held.
        let found = held.filter(|&index| {
            let area = self.memory.vma(index);
            mutant!("spf-trust-held": area.sequence.read().is_multiple_of(2) => true) && area.covers(address)
        });
        let found = found.or_else(|| self.tree().find(address)).map(|index| self.memory.vma(index));
        let result = match found {
            Some(area) if area.covers(address) => self.serve(area, address, access),
            _ => Err(Error::NotMapped),
        };
        self.mm.semaphore.read_unlock(self.memory.machine.sleepers(), ());
        if let Some(index) = held {
            self.put_area(index);
        }
        result
    }

    /// Serves a fault in an area that cannot change meanwhile.
    fn serve(self, area: &Vma, address: u64, access: Access) -> Result<(), Error> {
        if !allows(area.flags(), access) {
            return Err(Error::NotAllowed);
        }
        // Relaxed: a flag that is only ever set while the area is mapped.
        area.flags.fetch_or(ANON, Relaxed);
        self.serve_allowed(area, address)
    }

    /// Installs a page where there is none. The area cannot change meanwhile, and allows the access.
    pub(crate) fn serve_allowed(self, area: &Vma, address: u64) -> Result<(), Error> {
        let leaf = self.make_leaf(address)?;
        let slot = self.entry(leaf);
        // Without the lock: the access is tried again. Another CPU was faster, or this one had an old
        // translation.
        if slot.load(Relaxed) != 0 {
            self.memory.machine.event(Event::PgFaultSpurious, 1);
            return Ok(());
        }
        let page = self.memory.allocate().ok_or(Error::OutOfMemory)?;
        let is_first = self.memory.locked(&self.memory.page(leaf.table).lock, || {
            let is_first = mutant!("mm-ignore-pte": slot.load(Relaxed) == 0 => true);
            if is_first {
                slot.store(self.page_entry(page, area.flags()), Relaxed);
            }
            is_first
        });
        if !is_first {
            self.memory.machine.event(Event::PgFaultSpurious, 1);
            self.memory.free(page);
        }
        Ok(())
    }
}

// The fault path that locks the one area that it is about (`address_space/vma_lock.rs`).

impl<M: Machine> Space<'_, M> {
    pub(crate) fn fault_with_area_locked(self, address: u64, access: Access) -> Attempt {
        let machine = &self.memory.machine;
        let Some(area) = self.lock_area(address) else { return Err(None) };
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
        result.ok_or(None)
    }
}
