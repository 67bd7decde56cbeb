//! Requests of a process to its address space: map, unmap, protect, move, all of which hold `mmap_sem` for
//! writing; discard, which holds it for reading.

use haltkick_locks::{Platform as _, RwLock as _, mutant::mutant};

use super::table::{PAGE_BYTES, USER_END, USER_START};
use super::{Scheme, Space};
use crate::contract::{Error, Event, Machine, Step};
use crate::records::Ordering::*;
use crate::records::vma::{ANON, Protection, Tree, Vma};

impl<'a, M: Machine> Space<'a, M> {
    /// Gives the address space its top-level page table.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn open(self) -> Result<(), Error> {
        let root = self.memory.allocate().ok_or(Error::OutOfMemory)?;
        self.memory.machine.prepare_root(root);
        self.mm.root.store(root, Relaxed);
        Ok(())
    }

    /// Physical address of the top-level page table.
    pub fn root(self) -> u64 {
        self.memory.machine.base() + u64::from(self.mm.root.load(Relaxed)) * PAGE_BYTES
    }

    /// From now on the calling CPU uses the address space. Every CPU says so before its first access.
    pub fn join(self) {
        self.mm.cpus.insert(self.memory.machine.platform().cpu());
        self.mm.users.fetch_add(1, Relaxed);
    }

    /// Maps `bytes` of anonymous memory at the highest address where there is room.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::NoRoom`], [`Error::OutOfMemory`].
    pub fn map(self, bytes: u64, protection: Protection) -> Result<u64, Error> {
        check(USER_START, bytes)?;
        self.writing(|| {
            let start = self.highest_gap(bytes).ok_or(Error::NoRoom)?;
            self.map_fixed(start, start + bytes, protection.flags())?;
            Ok(start)
        })
    }

    /// Unmaps what there is in a range.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::OutOfMemory`] if an area would have to be split and there is none to split it into.
    pub fn unmap(self, start: u64, bytes: u64) -> Result<(), Error> {
        let end = check(start, bytes)?;
        self.writing(|| self.unmap_range(start, end))
    }

    /// Changes what may be done with a range, all of which must be mapped.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::OutOfMemory`]; [`Error::NotMapped`] at a hole, with what lies below it changed.
    pub fn protect(self, start: u64, bytes: u64, protection: Protection) -> Result<(), Error> {
        let end = check(start, bytes)?;
        self.writing(|| {
            let mut at = start;
            while at < end {
                at = self.protect_area(at, end, protection.flags())?;
            }
            Ok(())
        })
    }

    /// Gives back the pages of a range, which stays mapped: the next access finds an empty page, as after
    /// `madvise(MADV_DONTNEED)`. No area changes, so that `mmap_sem` is held for reading only.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn discard(self, start: u64, bytes: u64) -> Result<(), Error> {
        let end = check(start, bytes)?;
        self.mm.semaphore.read(self.memory.machine.sleepers());
        let pages = self.take_pages(start, end);
        if pages.length() > 0 {
            self.invalidate(start, bytes, false);
        }
        self.memory.free_all(&pages);
        self.mm.semaphore.read_unlock(self.memory.machine.sleepers(), ());
        Ok(())
    }

    /// Makes a mapping of `old` bytes one of `new` bytes, elsewhere if need be. Its new address.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::NoRoom`], [`Error::OutOfMemory`]; [`Error::NotMapped`] if `start` and the `old` bytes
    /// from there are not of one area. The mapping is as it was then.
    pub fn remap(self, start: u64, old: u64, new: u64) -> Result<u64, Error> {
        let old_end = check(start, old)?;
        check(USER_START, new)?;
        let new_end = start + new;
        self.writing(|| {
            let index = self.tree().find(start).ok_or(Error::NotMapped)?;
            let area = self.memory.vma(index);
            if !area.covers(start) || area.end() < old_end {
                return Err(Error::NotMapped);
            }
            if new <= old {
                return self.unmap_range(new_end, old_end).map(|()| start);
            }
            let next = self.tree().find(old_end).map(|next| self.memory.vma(next).start());
            if area.end() == old_end && new_end <= next.unwrap_or(USER_END) {
                return self.map_fixed(old_end, new_end, area.flags() & !ANON).map(|()| start);
            }
            let target = self.highest_gap(new).ok_or(Error::NoRoom)?;
            self.move_area(start, old_end, target, new)?;
            Ok(target)
        })
    }

    /// Runs `change` as the one writer.
    fn writing<T>(self, change: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let (mm, sleepers) = (self.mm, self.memory.machine.sleepers());
        mm.semaphore.write(sleepers);
        if mm.scheme == Scheme::PerVma {
            mm.writer.store(self.memory.machine.platform().cpu() as u32, Relaxed);
            // Odd. Relaxed: readers are kept out of an area by its own lock; a reader that sees the area's
            // number equal to an old one of these goes on to look at the lock.
            mm.lock_sequence.store(mm.lock_sequence.load(Relaxed).wrapping_add(1), Relaxed);
        }
        let result = change();
        if mm.scheme == Scheme::PerVma {
            // Unlocks all areas at once. Release: pairs with the acquire in `lock_area`: who finds an area unlocked finds
            // it as it is now.
            mm.lock_sequence.store(mm.lock_sequence.load(Relaxed).wrapping_add(1), Release);
        }
        mm.semaphore.write_unlock(sleepers, ());
        result
    }

    pub(crate) fn tree(self) -> Tree<'a> {
        Tree { slots: self.memory.records.vmas, root: &self.mm.tree }
    }

    /// Changes the tree itself, in the way that those who read it without `mmap_sem` rely on.
    fn changing_tree(self, change: impl FnOnce(Tree<'a>)) {
        match self.mm.scheme {
            Scheme::MmapSem => change(self.tree()),
            Scheme::Speculative => {
                self.mm.tree_lock.write(self.memory.machine.spins());
                change(self.tree());
                self.mm.tree_lock.write_unlock(self.memory.machine.spins(), ());
            }
            Scheme::SpeculativeSrcu | Scheme::PerVma => {
                self.mm.tree_sequence.begin();
                change(self.tree());
                self.mm.tree_sequence.end();
            }
        }
    }

    /// Before anything about a mapped area, or what it maps, is changed.
    fn begin_change(self, area: &Vma) {
        match self.mm.scheme {
            Scheme::MmapSem => {}
            Scheme::Speculative | Scheme::SpeculativeSrcu => {
                mutant!("spf-no-mark": area.sequence.begin() => ())
            }
            Scheme::PerVma => self.write_lock_area(area),
        }
        self.memory.machine.step(Step::Marked);
    }

    /// After it. Per-VMA, the area stays locked until `mmap_sem` is released.
    fn end_change(self, area: &Vma) {
        if matches!(self.mm.scheme, Scheme::Speculative | Scheme::SpeculativeSrcu) {
            area.sequence.end();
        }
    }

    /// Changes a border of an area.
    fn resize(self, index: u32, change: impl FnOnce(&Vma)) {
        let area = self.memory.vma(index);
        self.begin_change(area);
        change(area);
        self.end_change(area);
    }

    /// A new area, in the tree.
    fn add_area(self, start: u64, end: u64, flags: u32) -> Result<u32, Error> {
        let index = self.new_area(start, end, flags)?;
        self.publish_area(index);
        Ok(index)
    }

    /// A new area that cannot be found yet. Per-VMA, it is locked until `mmap_sem` is released.
    fn new_area(self, start: u64, end: u64, flags: u32) -> Result<u32, Error> {
        let index = self.memory.allocate_vma().ok_or(Error::OutOfMemory)?;
        let area = self.memory.vma(index);
        // Relaxed: published by the tree's lock or sequence, or read under the semaphore.
        area.start.store(start, Relaxed);
        area.end.store(end, Relaxed);
        area.flags.store(flags, Relaxed);
        area.owner.store(self.mm.root.load(Relaxed), Relaxed);
        if self.mm.scheme == Scheme::PerVma {
            self.attach(area);
        }
        Ok(index)
    }

    /// Puts a new area into the tree.
    fn publish_area(self, index: u32) {
        self.changing_tree(|tree| tree.insert(index));
        self.memory.machine.step(Step::Added);
    }

    /// Takes an area out of the tree for good. It must be marked as changing, and stays so.
    fn remove_area(self, index: u32) {
        self.changing_tree(|tree| tree.erase(index));
        if self.mm.scheme == Scheme::PerVma {
            self.detach(self.memory.vma(index));
        }
        if mutant!("spf-unmark-what-is-gone": false => true) {
            self.end_change(self.memory.vma(index));
        }
        self.put_area(index);
    }

    /// Drops a reference, and with the last one frees the slot.
    pub(crate) fn put_area(self, index: u32) {
        // Release, then acquire by the last one: all others are done with the area when its slot is reused.
        if self.memory.vma(index).references.fetch_sub(1, AcqRel) != 1 {
            return;
        }
        match self.mm.scheme {
            Scheme::SpeculativeSrcu => self.memory.defer_vma(index),
            _ => self.memory.free_vma(index),
        }
    }

    /// Returns the highest address where `bytes` fit.
    fn highest_gap(self, bytes: u64) -> Option<u64> {
        let mut ceiling = USER_END;
        loop {
            let below = self.tree().last_below(ceiling).map(|index| self.memory.vma(index));
            let floor = below.map_or(USER_START, Vma::end);
            if ceiling - floor >= bytes {
                return Some(ceiling - bytes);
            }
            ceiling = below?.start();
        }
    }

    /// Maps a range that is free: as part of a neighbour that is of the same kind, else as an area of its own.
    fn map_fixed(self, start: u64, end: u64, flags: u32) -> Result<(), Error> {
        match self.neighbours(start, end, flags) {
            (None, None) => return self.add_area(start, end, flags).map(drop),
            (Some(low), None) => self.resize(low, |area| area.end.store(end, Relaxed)),
            (None, Some(high)) => self.resize(high, |area| area.start.store(start, Relaxed)),
            (Some(low), Some(high)) => self.join_areas(low, high),
        }
        Ok(())
    }

    /// The area that ends at `start` and the one that begins at `end`, if they have these flags but for `ANON`.
    fn neighbours(self, start: u64, end: u64, flags: u32) -> (Option<u32>, Option<u32>) {
        let is_alike = |index: &u32| self.memory.vma(*index).flags() & !ANON == flags;
        let low = self.tree().last_below(start).filter(|&low| self.memory.vma(low).end() == start);
        let high = self.tree().find(end).filter(|&high| self.memory.vma(high).start() == end);
        (low.filter(is_alike), high.filter(is_alike))
    }

    /// Makes one area of two and the gap between them.
    fn join_areas(self, low: u32, high: u32) {
        let (area, gone) = (self.memory.vma(low), self.memory.vma(high));
        self.begin_change(area);
        self.begin_change(gone);
        // Before it is removed: another address space may have its slot from then on.
        let (end, anon) = (gone.end(), gone.flags() & ANON);
        self.remove_area(high);
        area.flags.fetch_or(anon, Relaxed);
        area.end.store(end, Relaxed);
        self.end_change(area);
    }

    /// Makes two areas of one, so that `at` is a border.
    fn split_area(self, index: u32, at: u64) -> Result<(), Error> {
        let area = self.memory.vma(index);
        if area.start() >= at || area.end() <= at {
            return Ok(());
        }
        let end = area.end();
        self.begin_change(area);
        area.end.store(at, Relaxed);
        let added = self.add_area(at, end, area.flags());
        if added.is_err() {
            area.end.store(end, Relaxed);
        }
        self.end_change(area);
        added.map(drop)
    }

    fn split_at(self, at: u64) -> Result<(), Error> {
        match self.tree().find(at) {
            Some(index) => self.split_area(index, at),
            None => Ok(()),
        }
    }

    fn unmap_range(self, start: u64, end: u64) -> Result<(), Error> {
        let first_hit = || self.tree().find(start).filter(|&index| self.memory.vma(index).start() < end);
        if start == end || first_hit().is_none() {
            return Ok(());
        }
        self.split_at(start)?;
        self.split_at(end)?;
        let (mut first, mut last) = (end, start);
        while let Some(index) = first_hit() {
            let area = self.memory.vma(index);
            first = first.min(area.start());
            last = area.end();
            self.begin_change(area);
            self.remove_area(index);
        }
        self.take_range(first, last);
        Ok(())
    }

    /// Takes away pages and page tables of a range that no area covers now.
    fn take_range(self, start: u64, end: u64) {
        let floor = self.tree().last_below(start).map_or(USER_START, |low| self.memory.vma(low).end());
        let ceiling = self.tree().find(end).map_or(USER_END, |high| self.memory.vma(high).start());
        let pages = self.take_pages(start, end);
        let (floor, ceiling) = mutant!("mm-ignore-neighbours": (floor, ceiling) => (USER_START, USER_END));
        let tables = self.take_tables(start, end, floor, ceiling);
        if mutant!("mm-no-invalidation": pages.length() + tables.length() > 0 => false) {
            self.invalidate(start, end - start, tables.length() > 0);
        }
        self.memory.free_all(&pages);
        self.memory.free_all(&tables);
    }

    fn invalidate(self, start: u64, bytes: u64, tables: bool) {
        self.memory.machine.event(Event::TlbFlush, 1);
        self.memory.machine.invalidate(&self.mm.cpus, start, bytes, tables);
    }

    /// Changes the part of one area that begins at `start` and ends at `end` at the latest. Where it ended.
    fn protect_area(self, start: u64, end: u64, flags: u32) -> Result<u64, Error> {
        let found = self.tree().find(start).filter(|&index| self.memory.vma(index).covers(start));
        self.split_area(found.ok_or(Error::NotMapped)?, start)?;
        let index = self.tree().find(start).ok_or(Error::NotMapped)?;
        self.split_area(index, end)?;
        let area = self.memory.vma(index);
        let end = area.end();
        self.begin_change(area);
        area.flags.store(area.flags() & ANON | flags, Relaxed);
        if self.protect_pages(start, end, flags) && mutant!("mm-no-invalidation": true => false) {
            self.invalidate(start, end - start, false);
        }
        self.end_change(area);
        self.join_with_neighbours(index);
        Ok(end)
    }

    /// Joins an area with its neighbours of the same kind.
    fn join_with_neighbours(self, index: u32) {
        let area = self.memory.vma(index);
        let (low, high) = self.neighbours(area.start(), area.end(), area.flags() & !ANON);
        if let Some(high) = high {
            self.join_areas(index, high);
        }
        if let Some(low) = low {
            self.join_areas(low, index);
        }
    }

    /// Moves `start..end`, which lies in one area, to `target`, where `bytes` are free.
    fn move_area(self, start: u64, end: u64, target: u64, bytes: u64) -> Result<(), Error> {
        self.split_at(start)?;
        self.split_at(end)?;
        let old = self.tree().find(start).expect("it was found before");
        let area = self.memory.vma(old);
        // An area of its own while pages are under way. Marked before anybody finds it: what a fault installed there would be
        // overwritten by the page that is moved to its place.
        let new = self.new_area(target, target + bytes, area.flags())?;
        let copy = self.memory.vma(new);
        self.begin_change(area);
        mutant!("spf-mark-too-late": self.begin_change(copy) => ());
        self.publish_area(new);
        mutant!("spf-mark-too-late": () => self.begin_change(copy));
        let moved = self.move_pages(start, target, end - start);
        if moved.is_err() {
            // Back with what has been moved; those page tables exist.
            let restored = self.move_pages(target, start, end - start);
            debug_assert!(restored.is_ok(), "the page tables are still there");
        }
        let (gone, from, to) = if moved.is_ok() { (old, start, end) } else { (new, target, target + bytes) };
        self.end_change(if moved.is_ok() { copy } else { area });
        self.remove_area(gone);
        if moved != Ok(false) {
            self.invalidate(from, to - from, false);
        }
        self.take_range(from, to);
        if moved.is_ok() {
            self.join_with_neighbours(new);
        }
        moved.map(|_| ())
    }

    /// Areas in the address space. Exact while it does not change.
    pub fn areas(self) -> usize {
        let (mut count, mut at) = (0, USER_START);
        while let Some(index) = self.tree().find(at) {
            at = self.memory.vma(index).end();
            count += 1;
        }
        count
    }
}

/// The end of a range of whole pages of the user's.
fn check(start: u64, bytes: u64) -> Result<u64, Error> {
    let end = start.checked_add(bytes).ok_or(Error::Invalid)?;
    let is_whole = start.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES) && bytes > 0;
    if is_whole && start >= USER_START && end <= USER_END { Ok(end) } else { Err(Error::Invalid) }
}
