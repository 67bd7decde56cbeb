//! Per-VMA locks, as merged in Linux 6.4, in the form with a reference count (6.15).
//!
//! A fault locks the one area that it is about; a writer locks the areas that it changes, one by one, and unlocks all of
//! them at once when it releases `mmap_sem`.
//!
//! ```text
//! fault                                   writer, with mmap_sem held for writing
//!   walk the tree                           references += WRITER
//!   area.sequence == mm.sequence? fall back wait until references == WRITER + 1
//!   references += 1, unless 0 or WRITER     area.sequence := mm.sequence (odd)
//!   area.sequence == mm.sequence? fall back references -= WRITER
//!   bounds, and the fault                   ... changes ...
//!   references -= 1                         mm.sequence += 1: everything is unlocked
//! ```
//!
//! Why they exclude each other: both change `references` by read-modify-write. If the fault's comes first, the writer waits
//! until it is taken back. If the writer's first one does, the fault sees WRITER; if its last one does, the fault's
//! increment reads from it, and the second look sees the area's new sequence: it is locked, unless `mm.sequence` has gone on,
//! by when all changes are complete.

use haltkick_locks::{Platform as _, mutant::mutant};

use super::Space;
use crate::contract::{Event, Machine, Step};
use crate::records::Ordering::*;
use crate::records::vma::{Vma, VmaLock};

/// Walks that find an area gone, or the tree in motion, before the classic path is taken.
const WALKS: u32 = 4;

/// How an attempt to lock an area ended.
enum Lock {
    Got,
    /// It has left the tree.
    Gone,
    /// A writer has it, or it is another one.
    Busy,
}

impl<'a, M: Machine> Space<'a, M> {
    /// The area that covers `address`, locked against writers; `None` where the classic path has to be taken.
    pub(crate) fn lock_area(self, address: u64) -> Option<&'a Vma> {
        let machine = &self.memory.machine;
        for _ in 0..WALKS {
            let seen = self.mm.tree_sequence.read();
            let found = self.tree().find(address);
            if !seen.is_multiple_of(2) || !self.mm.tree_sequence.is_still(seen) {
                machine.event(Event::VmaLockMiss, 1);
                machine.platform().pause();
                continue;
            }
            let area = self.memory.vma(found?);
            machine.step(Step::Found);
            match self.try_lock_area(area, address) {
                Lock::Got => return Some(area),
                Lock::Gone => machine.event(Event::VmaLockMiss, 1),
                Lock::Busy => break,
            }
        }
        machine.event(Event::VmaLockAbort, 1);
        None
    }

    fn try_lock_area(self, area: &Vma, address: u64) -> Lock {
        let (mm, lock) = (self.mm, &area.lock);
        // Relaxed: spares the exchange; looked at again below.
        let is_locked = lock.sequence.load(Relaxed) == mm.lock_sequence.load(Relaxed);
        if mutant!("vma-no-first-look": is_locked => false) {
            return Lock::Busy;
        }
        self.memory.machine.step(Step::BeforeReference);
        let mut seen = lock.references.load(Relaxed);
        loop {
            match seen {
                0 if mutant!("vma-ignore-detached": true => false) => return Lock::Gone,
                VmaLock::WRITER.. if mutant!("vma-ignore-writer": true => false) => return Lock::Busy,
                _ => {}
            }
            // Acquire: pairs with the release that ends `write_lock_area`, and with the one in `attach`.
            match lock.references.compare_exchange_weak(seen, seen + 1, Acquire, Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        // Acquire: pairs with the release of the writer's number; who finds the area unlocked finds it complete.
        let is_locked = lock.sequence.load(Relaxed) == mm.lock_sequence.load(Acquire);
        let is_ours = area.owner.load(Relaxed) == mm.root.load(Relaxed);
        if mutant!("vma-no-second-look": is_locked => false)
            || mutant!("vma-ignore-owner": !is_ours => false)
            || mutant!("vma-ignore-bounds": !area.covers(address) => false)
        {
            self.unlock_area(area);
            return Lock::Busy;
        }
        Lock::Got
    }

    /// Lets writers at the area again.
    pub(crate) fn unlock_area(self, area: &Vma) {
        // Release: pairs with the acquire in `await_readers`. Acquire: a writer that is seen has named itself before.
        let left = area.lock.references.fetch_sub(1, AcqRel) - 1;
        if left == VmaLock::WRITER + 1 {
            self.memory.machine.platform().kick(self.mm.writer.load(Relaxed) as usize);
        }
    }

    /// Keeps new readers out and waits for those inside. The tree's reference is left.
    fn await_readers(self, area: &Vma) {
        let platform = self.memory.machine.platform();
        // Acquire, here and below: pairs with the release in `unlock_area`.
        let before = area.lock.references.fetch_add(VmaLock::WRITER, AcqRel);
        if mutant!("vma-no-wait-for-readers": before == 1 => true) {
            return;
        }
        let are_inside = || area.lock.references.load(Acquire) != VmaLock::WRITER + 1;
        let since = platform.now();
        while are_inside() && platform.now().wrapping_sub(since) < platform.spin_threshold() {
            platform.pause();
        }
        while are_inside() {
            platform.wait(are_inside);
        }
    }

    /// Locks an area until `mmap_sem` is released.
    pub(crate) fn write_lock_area(self, area: &Vma) {
        let sequence = self.mm.lock_sequence.load(Relaxed);
        if area.lock.sequence.load(Relaxed) == sequence || mutant!("vma-no-write-lock": false => true) {
            return;
        }
        self.await_readers(area);
        self.memory.machine.step(Step::ReadersGone);
        area.lock.sequence.store(sequence, Relaxed);
        // Release: a CPU that gets a reference from now on sees the number.
        area.lock.references.fetch_sub(VmaLock::WRITER, Release);
    }

    /// Makes a new area one that can be locked, and locks it until `mmap_sem` is released.
    pub(crate) fn attach(self, area: &Vma) {
        area.lock.sequence.store(self.mm.lock_sequence.load(Relaxed), Relaxed);
        // Release: a late comer that still knows the slot sees the number, and the fields.
        area.lock.references.store(1, Release);
    }

    /// Makes an area unlockable for good, and waits for the CPUs that tried.
    pub(crate) fn detach(self, area: &Vma) {
        if mutant!("vma-no-detach": false => true) {
            return;
        }
        self.await_readers(area);
        // Relaxed: it is not added to while WRITER is set, and there is nothing left to see.
        area.lock.references.store(0, Relaxed);
    }
}
