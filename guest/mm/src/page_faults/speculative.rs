//! Speculative page faults, after the series of 2018 (version 10), which was never merged.
//!
//! The fault takes no lock that a writer of the address space holds for long. It looks the area up under the tree's own
//! lock, keeps it by a reference, and validates the area's sequence count before it acts on anything it has read. What it
//! must not do without `mmap_sem` it leaves to the classic path: page tables are never made here, so that the first fault in
//! each of them is a classic one.
//!
//! # Why a page is never installed where the area is gone
//!
//! The last look at the sequence happens with the page lock of the table held. A CPU that takes an area away
//! marks its sequence first and takes that page lock afterwards.
//! 1. The fault gets the page lock first. The entry that it installs is there when the other one gets the lock, and is
//!    taken out with the rest.
//! 2. It gets it second. The lock orders the mark before its look: it gives up.
//!
//! An area that has left the tree stays marked, so that a fault which only now begins with its reference is
//! case 2, too. The same holds for the table itself, which is taken out under its page lock and with no mapped
//! area in its range. The lock is only tried: its holder may be waiting for this CPU to drop translations (in a
//! kernel with interrupts disabled here, forever).

use haltkick_locks::{Lock as _, RwLock as _, mutant::mutant};

use super::{Attempt, allows};
use crate::address_space::deferred::Inside;
use crate::address_space::table::Leaf;
use crate::address_space::{Scheme, Space};
use crate::contract::{Access, Error, Event, Machine, Step};
use crate::records::Ordering::Relaxed;
use crate::records::vma::{ANON, Vma};

impl<M: Machine> Space<'_, M> {
    pub(crate) fn fault_speculatively(self, address: u64, access: Access) -> Attempt {
        let held = match self.mm.scheme {
            Scheme::SpeculativeSrcu => self.enter_and_find(address),
            _ => self.get_area(address),
        };
        let Some((index, inside)) = held else { return Err(None) };
        self.memory.machine.step(Step::VmaHeld);
        let attempt = self.speculate(index, address, access);
        match attempt {
            Ok(Ok(())) => self.memory.machine.event(Event::SpeculativePgfault, 1),
            Ok(Err(Error::NotAllowed)) => self.memory.machine.event(Event::SpfVmaAccess, 1),
            // Out of memory, which has been counted.
            Ok(Err(_)) => {}
            Err(event) => self.memory.machine.event(event, 1),
        }
        match inside {
            Some(inside) => self.memory.leave(inside),
            // The classic path may use it.
            None if attempt.is_err() => return Err(Some(index)),
            None => self.put_area(index),
        }
        attempt.map_err(|_| None)
    }

    /// Finds the area at or above `address` without the tree's lock. Kept from being used anew by this fault, which has counted
    /// itself in.
    fn enter_and_find(self, address: u64) -> Option<(u32, Option<Inside>)> {
        let inside = self.memory.enter();
        let seen = self.mm.tree_sequence.read();
        let found = self.tree().find(address);
        let is_whole = seen.is_multiple_of(2) && self.mm.tree_sequence.is_still(seen);
        if let (true, Some(index)) = (is_whole, found) {
            return Some((index, Some(inside)));
        }
        self.memory.leave(inside);
        if !is_whole {
            self.memory.machine.event(Event::SpfVmaChanged, 1);
        }
        None
    }

    /// Finds the area at or above `address`. Kept from being used anew by a reference.
    fn get_area(self, address: u64) -> Option<(u32, Option<Inside>)> {
        self.mm.tree_lock.read(self.memory.machine.spins());
        let found = self.tree().find(address);
        if let Some(index) = found {
            // Relaxed: the tree has a reference, which is not dropped before the tree's lock has been held for writing.
            self.memory.vma(index).references.fetch_add(mutant!("spf-no-reference": 1 => 0), Relaxed);
        }
        self.mm.tree_lock.read_unlock(self.memory.machine.spins(), ());
        found.map(|index| (index, None))
    }

    /// How the fault ends, or which event says why it is given up.
    fn speculate(self, index: u32, address: u64, access: Access) -> Result<Result<(), Error>, Event> {
        let machine = &self.memory.machine;
        let area = self.memory.vma(index);
        let seen = area.sequence.read();
        if mutant!("spf-ignore-odd": !seen.is_multiple_of(2) => false) {
            return Err(Event::SpfVmaChanged);
        }
        machine.step(Step::SequenceRead);
        let flags = area.flags();
        if mutant!("spf-ignore-anon": flags & ANON == 0 => false) {
            return Err(Event::SpfVmaNoanon);
        }
        if mutant!("spf-ignore-bounds": !area.covers(address) => false) {
            return Err(Event::SpfVmaChanged);
        }
        if mutant!("spf-ignore-access": !allows(flags, access) => false) {
            // The values may be half of a change: an error counts only if the area is still.
            let is_still = mutant!("spf-refuse-at-once": area.sequence.is_still(seen) => true);
            return if is_still { Ok(Err(Error::NotAllowed)) } else { Err(Event::SpfVmaChanged) };
        }
        machine.step(Step::Checked);
        let leaf = mutant!("spf-make-tables": self.find_leaf(address) => self.make_leaf(address).ok());
        let leaf = leaf.ok_or(Event::SpfVmaNotsup)?;
        machine.step(Step::Walked);
        if mutant!("spf-no-look-after-walk": !area.sequence.is_still(seen) => false) {
            return Err(Event::SpfVmaChanged);
        }
        let slot = self.entry(leaf);
        if slot.load(Relaxed) != 0 && area.sequence.is_still(seen) {
            // Another CPU was faster, or this one had an old translation.
            machine.event(Event::PgFaultSpurious, 1);
            return Ok(Ok(()));
        }
        let Some(page) = self.memory.allocate() else { return Ok(Err(Error::OutOfMemory)) };
        machine.step(Step::Allocated);
        let installed = self.install_if_unchanged(area, seen, leaf, page, flags);
        match installed {
            Ok(true) => {}
            Ok(false) => {
                machine.event(Event::PgFaultSpurious, 1);
                self.memory.free(page);
            }
            Err(_) => self.memory.free(page),
        }
        installed.map(|_| Ok(()))
    }

    /// Installs `page` unless something changed since the area's sequence was `seen`; `false` if a page is there already.
    fn install_if_unchanged(
        self,
        area: &Vma,
        seen: u32,
        leaf: Leaf,
        page: u32,
        flags: u32,
    ) -> Result<bool, Event> {
        let machine = &self.memory.machine;
        if mutant!("spf-no-look-after-allocation": !area.sequence.is_still(seen) => false) {
            return Err(Event::SpfVmaChanged);
        }
        machine.step(Step::Rechecked);
        if mutant!("spf-ignore-pmd": !self.is_in_place(leaf) => false) {
            return Err(Event::SpfPmdChanged);
        }
        machine.step(Step::BeforeLock);
        let (lock, spins) = (&self.memory.page(leaf.table).lock, machine.spins());
        if !mutant!("spf-wait-for-ptl": lock.try_lock(spins).is_some() => { lock.lock(spins); true }) {
            return Err(Event::SpfPteLock);
        }
        let result = if mutant!("spf-no-last-look": area.sequence.is_still(seen) => true) {
            let slot = self.entry(leaf);
            let is_empty = mutant!("spf-ignore-pte": slot.load(Relaxed) == 0 => true);
            if is_empty {
                slot.store(self.page_entry(page, flags), Relaxed);
            }
            Ok(is_empty)
        } else {
            Err(Event::SpfVmaChanged)
        };
        lock.unlock(spins, ());
        result
    }
}
