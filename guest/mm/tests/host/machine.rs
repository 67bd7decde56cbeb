//! A machine for tests: memory is words, the CPUs are threads, and each has translations cached until it is told to forget.
//!
//! It catches what the memory manager must not do: hand out a page that some CPU still has cached, or lose one.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64 as Count, Ordering::Relaxed};

use haltkick_locks::{Lock, Platform as _, Tas, UnfairRwLock};
use haltkick_mm::*;
use haltkick_testing::Cpus as Threads;

#[cfg(shuttle)]
use shuttle::sync::Mutex;
#[cfg(not(shuttle))]
use std::sync::Mutex;

pub(crate) const BASE: u64 = 1 << 20;
/// Pages that are enough for every test. Page tables are small under Miri, which takes the longer for an access the more there are.
pub(crate) const PAGES: usize = if cfg!(miri) { 80 } else { 600 };
const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;

type Interference = Box<dyn FnOnce()>;

std::thread_local! {
    /// Interference at the next such step of this thread.
    static AT_STEP: RefCell<Option<(Step, Interference)>> = const { RefCell::new(None) };
    /// Page-table locks are found taken.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is this CPU from now on.
pub(crate) fn be(cpu: usize) {
    Threads::become_cpu(cpu);
}

/// Runs `interference` on CPU 1 when the calling thread next comes by `step`.
pub(crate) fn at(step: Step, interference: impl FnOnce() + 'static) {
    AT_STEP.with(|at| *at.borrow_mut() = Some((step, Box::new(interference))));
}

/// Whether the step has not been reached.
pub(crate) fn was_not_reached() -> bool {
    AT_STEP.with(|at| at.borrow_mut().take().is_some())
}

/// Makes page-table locks appear taken, or free again.
pub(crate) fn let_locks_be_busy(busy: bool) {
    BUSY.with(|it| it.set(busy));
}

/// A test-and-set lock that appears taken to those who try while a test says so.
#[derive(Debug)]
pub(crate) struct Spin(Tas);

impl Spin {
    fn new() -> Self {
        Self(Tas::new())
    }
}

impl Lock<Threads> for Spin {
    type Token = ();

    fn lock(&self, threads: &Threads) {
        self.0.lock(threads);
    }

    fn try_lock(&self, threads: &Threads) -> Option<()> {
        if BUSY.with(Cell::get) { None } else { self.0.try_lock(threads) }
    }

    fn unlock(&self, threads: &Threads, (): ()) {
        self.0.unlock(threads, ());
    }
}

/// Translations that a CPU has cached: an address of a page, and the entry that was found.
type Cache = Mutex<HashMap<u64, u64>>;

#[derive(Debug)]
pub(crate) struct Host {
    /// The page tables that the pages may be.
    #[allow(
        clippy::vec_box,
        reason = "each table is memory of its own: Miri is quadratic in the size of what races are looked for in"
    )]
    tables: Vec<Box<[AtomicU64; ENTRIES]>>,
    caches: Vec<Cache>,
    /// One word of what is in each page.
    contents: Vec<Count>,
    events: Vec<Count>,
    threads: Threads,
}

impl Host {
    fn new(cpus: usize, pages: usize) -> Self {
        Self {
            // Each for itself: Miri keeps book on the whole piece of memory at every access to a word of it.
            tables: (0..pages).map(|_| Box::new([const { AtomicU64::new(0) }; ENTRIES])).collect(),
            caches: (0..cpus).map(|_| Mutex::new(HashMap::new())).collect(),
            contents: (0..pages).map(|_| Count::new(0)).collect(),
            events: (0..Event::COUNT).map(|_| Count::new(0)).collect(),
            threads: Threads::impatient(cpus),
        }
    }

    pub(crate) fn count_of(&self, event: Event) -> u64 {
        self.events[event as usize].load(Relaxed)
    }
}

pub(crate) type World = (Memory<Host>, Mm<Host>);

/// Memory, and an address space that CPUs 0 and 1 share.
pub(crate) fn world(scheme: Scheme, cpus: usize, pages: usize, vmas: usize) -> World {
    let records = Records {
        pages: records(pages, || Page::new(Spin::new())),
        vmas: records(vmas, Vma::new),
        cpus: records(cpus, CpuList::new),
    };
    let memory = Memory::new(Host::new(cpus, pages), records, Spin::new());
    let mm = unopened(scheme);
    let space = Space { memory: &memory, mm: &mm };
    space.open().unwrap();
    for cpu in (0..cpus).rev() {
        be(cpu);
        space.join();
    }
    (memory, mm)
}

/// Records that stay until the process ends.
fn records<T>(count: usize, new: fn() -> T) -> &'static [T] {
    (0..count).map(|_| new()).collect::<Vec<_>>().leak()
}

/// An address space that is not open yet.
pub(crate) fn unopened(scheme: Scheme) -> Mm<Host> {
    Mm::new(scheme, UnfairRwLock::new(), UnfairRwLock::new(), Spin::new())
}

pub(crate) fn space(world: &World) -> Space<'_, Host> {
    Space { memory: &world.0, mm: &world.1 }
}

/// Does the work of the CPU: looks into its cache, walks the page table, sets accessed and dirty, takes a
/// fault. Returns the page's number.
fn translate(space: Space<'_, Host>, address: u64, access: Access) -> Result<usize, Error> {
    let machine = &space.memory.machine;
    let needed = PRESENT | if access == Access::Write { WRITABLE } else { 0 };
    let page_of = |entry: u64| ((entry & !0xfff).wrapping_sub(BASE) / PAGE_BYTES) as usize;
    let address = address / PAGE_BYTES * PAGE_BYTES;
    loop {
        {
            let mut cache = machine.caches[machine.threads.cpu()].lock().unwrap();
            if let Some(entry) = cache.get(&address)
                && entry & needed == needed
            {
                return Ok(page_of(*entry));
            }
            if let Some(entry) = walk(space, address, needed) {
                cache.insert(address, entry);
                return Ok(page_of(entry));
            }
        }
        space.fault(address, access)?;
    }
}

fn walk(space: Space<'_, Host>, address: u64, needed: u64) -> Option<u64> {
    let machine = &space.memory.machine;
    let bits = ENTRIES.trailing_zeros();
    let mut table = ((space.root() - BASE) / PAGE_BYTES) as u32;
    for level in (0..4).rev() {
        let slot = machine.entry(table, (address >> (12 + level * bits)) as usize % ENTRIES);
        let entry = slot.load(Relaxed);
        if level == 0 {
            let used = entry | ACCESSED | if needed & WRITABLE != 0 { DIRTY } else { 0 };
            let allowed = entry & needed == needed;
            // As the CPU does it: in one step with the look, else from the start.
            let set = allowed && slot.compare_exchange(entry, used, Relaxed, Relaxed).is_ok();
            return set.then_some(used);
        }
        if entry & PRESENT == 0 {
            return None;
        }
        table = ((entry & !0xfff).wrapping_sub(BASE) / PAGE_BYTES) as u32;
        assert!((table as usize) < machine.tables.len(), "the CPU walks into nowhere");
    }
    unreachable!()
}

pub(crate) fn store(space: Space<'_, Host>, address: u64, value: u64) -> Result<(), Error> {
    let page = translate(space, address, Access::Write)?;
    space.memory.machine.contents[page].store(value, Relaxed);
    Ok(())
}

pub(crate) fn load(space: Space<'_, Host>, address: u64) -> Result<u64, Error> {
    let page = translate(space, address, Access::Read)?;
    Ok(space.memory.machine.contents[page].load(Relaxed))
}

/// Whether the page table maps `address`, without a fault.
pub(crate) fn is_present(space: Space<'_, Host>, address: u64) -> bool {
    walk(space, address, PRESENT).is_some()
}

/// Whether a store would succeed without a fault.
#[cfg_attr(not(shuttle), expect(dead_code, reason = "for the tests with a model checker"))]
pub(crate) fn is_writable(space: Space<'_, Host>, address: u64) -> bool {
    walk(space, address, PRESENT | WRITABLE).is_some()
}

impl Machine for Host {
    type Spin = Spin;
    type TreeLock = UnfairRwLock;
    type Spins = Threads;
    type Semaphore = UnfairRwLock;
    type Sleepers = Threads;

    fn spins(&self) -> &Threads {
        &self.threads
    }

    fn sleepers(&self) -> &Threads {
        &self.threads
    }

    fn base(&self) -> u64 {
        BASE
    }

    fn entry(&self, page: u32, index: usize) -> &AtomicU64 {
        &self.tables[page as usize][index]
    }

    fn clear(&self, page: u32) {
        for cache in &self.caches {
            let cached = cache.lock().unwrap();
            let entry = BASE + u64::from(page) * PAGE_BYTES;
            assert!(cached.values().all(|cached| cached & !0xfff != entry), "page {page} is still cached");
        }
        (0..ENTRIES).for_each(|index| self.entry(page, index).store(0, Relaxed));
        self.contents[page as usize].store(0, Relaxed);
    }

    fn prepare_root(&self, _: u32) {}

    fn invalidate(&self, cpus: &Cpus, address: u64, bytes: u64, _: bool) {
        for cpu in cpus.iter() {
            self.caches[cpu].lock().unwrap().retain(|&at, _| at < address || at >= address + bytes);
        }
    }

    fn event(&self, event: Event, n: u64) {
        self.events[event as usize].fetch_add(n, Relaxed);
    }

    fn step(&self, step: Step) {
        let interference = AT_STEP.with(|at| at.borrow_mut().take_if(|(wanted, _)| *wanted == step));
        if let Some((_, interference)) = interference {
            let cpu = self.threads.cpu();
            be(1);
            interference();
            be(cpu);
        }
    }
}
