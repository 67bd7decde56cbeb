//! Pages: a list of free ones per CPU, and one for all.

use haltkick_locks::{Lock as _, Platform as _};

use crate::contract::{Event, Machine};
use crate::records::vma::{self, Vma};
use crate::records::{CpuList, Deferred, FREE, List, Ordering::Relaxed, Page, Records, USED};

/// Pages that go between a CPU's list and the common one at a time.
const BATCH: u32 = 16;

/// All memory there is, and all areas.
#[derive(Debug)]
pub struct Memory<M: Machine> {
    /// The machine below.
    pub machine: M,
    pub(crate) records: Records<M::Spin>,
    /// Protects the lists, those of `deferred` too.
    pub(crate) lock: M::Spin,
    pages: List,
    pub(crate) vmas: List,
    /// Areas that are not free yet.
    pub(crate) deferred: Deferred,
}

impl<M: Machine> Memory<M> {
    /// All pages and areas are free.
    pub fn new(machine: M, records: Records<M::Spin>, lock: M::Spin) -> Self {
        let (pages, vmas, deferred) = (List::new(), List::new(), Deferred::new());
        let memory = Self { machine, records, lock, pages, vmas, deferred };
        for page in (0..memory.records.pages.len() as u32).rev() {
            memory.page(page).state.store(FREE, Relaxed);
            memory.push(&memory.pages, page);
        }
        for index in (0..memory.records.vmas.len() as u32).rev() {
            memory.vma(index).priority.store(vma::priority(index), Relaxed);
            memory.push_vma(&memory.vmas, index);
        }
        memory
    }

    /// Does `section` under a spinlock.
    pub(crate) fn locked<T>(&self, lock: &M::Spin, section: impl FnOnce() -> T) -> T {
        lock.lock(self.machine.spins());
        let result = section();
        lock.unlock(self.machine.spins(), ());
        result
    }

    pub(crate) fn page(&self, page: u32) -> &Page<M::Spin> {
        &self.records.pages[page as usize]
    }

    pub(crate) fn vma(&self, index: u32) -> &Vma {
        &self.records.vmas[index as usize]
    }

    pub(crate) fn of_this_cpu(&self) -> &CpuList {
        &self.records.cpus[self.machine.platform().cpu()]
    }

    /// Pages in use, page tables included. Exact while no CPU allocates or frees.
    pub fn used_pages(&self) -> usize {
        let of_cpus = self.records.cpus.iter().map(|list| list.pages.length());
        self.records.pages.len() - (self.pages.length() + of_cpus.sum::<u32>()) as usize
    }

    /// Areas in use. Exact while no CPU maps or unmaps.
    pub fn used_vmas(&self) -> usize {
        self.records.vmas.len() - (self.vmas.length() + self.deferred.slots()) as usize
    }

    pub(crate) fn push(&self, list: &List, page: u32) {
        list.push(page, &self.page(page).next);
    }

    fn pop(&self, list: &List) -> Option<u32> {
        list.pop(|page| &self.page(page).next)
    }

    /// Most pages that a CPU keeps: all CPUs together not more than an eighth.
    fn most_kept(&self) -> u32 {
        let share = self.records.pages.len() / (8 * self.records.cpus.len());
        (share as u32).min(2 * BATCH)
    }

    /// A page full of zeros.
    pub(crate) fn allocate(&self) -> Option<u32> {
        let list = &self.of_this_cpu().pages;
        let page = self.pop(list).or_else(|| self.refill(list));
        let Some(page) = page else {
            self.machine.event(Event::OutOfMemory, 1);
            return None;
        };
        assert!(self.page(page).state.swap(USED, Relaxed) == FREE, "page {page} was allocated twice");
        self.machine.clear(page);
        Some(page)
    }

    #[cold]
    fn refill(&self, list: &List) -> Option<u32> {
        self.locked(&self.lock, || {
            let page = self.pop(&self.pages);
            for _ in 1..BATCH.min(self.most_kept()) {
                let Some(page) = self.pop(&self.pages) else { break };
                self.push(list, page);
            }
            page
        })
    }

    /// Gives back a page that nothing refers to.
    pub(crate) fn free(&self, page: u32) {
        assert!(self.page(page).state.swap(FREE, Relaxed) == USED, "page {page} was freed twice");
        let list = &self.of_this_cpu().pages;
        self.push(list, page);
        if list.length() > self.most_kept() {
            self.locked(&self.lock, || {
                for _ in 0..BATCH {
                    let Some(page) = self.pop(list) else { break };
                    self.push(&self.pages, page);
                }
            });
        }
    }

    pub(crate) fn free_all(&self, pages: &List) {
        while let Some(page) = self.pop(pages) {
            self.free(page);
        }
    }

    pub(crate) fn push_vma(&self, list: &List, index: u32) {
        list.push(index, &self.vma(index).next_free);
    }

    pub(crate) fn pop_vma(&self, list: &List) -> Option<u32> {
        list.pop(|index| &self.vma(index).next_free)
    }

    /// A free slot; waits for one if some are only not free yet.
    fn free_slot(&self) -> Option<u32> {
        loop {
            let (index, waiting) =
                self.locked(&self.lock, || (self.pop_vma(&self.vmas), self.deferred.slots()));
            if index.is_some() || waiting == 0 {
                return index;
            }
            // Faults do not wait while they look at areas.
            self.advance(1);
            self.machine.platform().pause();
        }
    }

    /// A slot for an area, with one reference.
    pub(crate) fn allocate_vma(&self) -> Option<u32> {
        let Some(index) = self.free_slot() else {
            self.machine.event(Event::OutOfMemory, 1);
            return None;
        };
        let area = self.vma(index);
        // There is no other reference. Even again: later searches find this new area.
        area.references.store(1, Relaxed);
        area.sequence.end();
        Some(index)
    }

    /// Gives back a slot without references.
    pub(crate) fn free_vma(&self, index: u32) {
        self.locked(&self.lock, || self.push_vma(&self.vmas, index));
    }
}
