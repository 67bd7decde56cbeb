//! The memory manager's machine: pages of the pool, this CPU's translation hardware, its locks, and the schemes by which page
//! faults are served.
//!
//! ```text
//! pool   Page records | Vma slots | CPU lists | Memory, address spaces | pages
//! ```
//!
//! The pool is mapped one to one, so that a page's physical address is where the kernel finds it.
#![expect(unsafe_code, reason = "places objects in the pool, and reads page tables there")]

mod locks;

use core::ptr::{from_ref, null_mut};
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use haltkick_hypercalls::MAX_VCPUS;
use haltkick_locks::{FairRwLock, Pv, QSpinLock};
use haltkick_mm::{
    Access, CpuList, Cpus, Event, Machine, Memory, Mm, PAGE_BYTES, Page, Records, Space, USER_END,
    USER_START, Vma,
};

use crate::cpu::percpu::{add, boot, cpu, this};
use crate::lock::kind::{MMAP_SEM, Serving};
use crate::monitor::hypercall;
use crate::observe::events::MEMORY_EVENTS;
use crate::traps::mmu;
use crate::traps::user::{self, Verdict};

use locks::{SLEEPERS, SPINS, Semaphore, Sleepers, Spins};

/// A page-table lock: today's paravirtual qspinlock, which is what a kernel in such a guest has.
type Spin = QSpinLock<Pv>;
/// The lock of the tree of areas: readers and writers in order of arrival.
type TreeLock = FairRwLock<Spin>;

/// The pool, as `init` has laid it out.
pub(crate) struct Pool {
    /// Address of page 0.
    base: u64,
}

/// The memory that `init` has made. Written by vCPU 0 before any other vCPU runs.
static MEMORY: AtomicPtr<Memory<Pool>> = AtomicPtr::new(null_mut());
/// Address spaces: one per vCPU, and one for all.
static SPACES: AtomicPtr<Mm<Pool>> = AtomicPtr::new(null_mut());

/// The address space that each vCPU uses, null: none yet.
static CURRENT: [AtomicPtr<Mm<Pool>>; MAX_VCPUS] = [const { AtomicPtr::new(null_mut()) }; MAX_VCPUS];

/// Areas per page: one for four pages is more than any workload has.
const PAGES_PER_VMA: usize = 4;

/// Lays out the pool. vCPU 0, before the others start. `serving` is that of the run's lock.
pub(crate) fn init(serving: Option<Serving>) {
    let vcpus = boot().vcpus as usize;
    let mut next = boot().pool.0;
    let end = next + boot().pool_bytes;
    let all_pages = (boot().pool_bytes / PAGE_BYTES) as usize;
    let vmas = all_pages / PAGES_PER_VMA;
    let records = place(&mut next, end, all_pages, |_| Page::new(Spin::new()));
    let vmas = place(&mut next, end, vmas, |_| Vma::new());
    let cpus = place(&mut next, end, vcpus, |_| CpuList::new());
    let (scheme, rules) = serving.unwrap_or(MMAP_SEM);
    let spaces = place(&mut next, end, vcpus + 1, |number| {
        Mm::new(scheme, Semaphore::new(rules, number == vcpus), TreeLock::new(Spin::new()), Spin::new())
    });
    let memory = room::<Memory<Pool>>(&mut next, end, 1);
    let base = next.next_multiple_of(PAGE_BYTES);
    let pages = &records[..(end.saturating_sub(base) / PAGE_BYTES) as usize];
    // SAFETY: reserved just now, aligned, and not used otherwise.
    unsafe { memory.write(Memory::new(Pool { base }, Records { pages, vmas, cpus }, Spin::new())) };
    // Relaxed: the hypercall that starts the other vCPUs comes later.
    SPACES.store(spaces.as_ptr().cast_mut(), Ordering::Relaxed);
    MEMORY.store(memory, Ordering::Relaxed);
}

fn room<T>(next: &mut u64, end: u64, count: usize) -> *mut T {
    let at = next.next_multiple_of(align_of::<T>() as u64);
    *next = at + (count * size_of::<T>()) as u64;
    assert!(
        *next <= end,
        "out of memory: the pool is too small for the memory manager itself: ask for more --memory"
    );
    at as *mut T
}

fn place<T>(next: &mut u64, end: u64, count: usize, object: impl Fn(usize) -> T) -> &'static [T] {
    let at: *mut T = room(next, end, count);
    for i in 0..count {
        // SAFETY: within the room that was just reserved in the pool, which is mapped, aligned and not used
        // otherwise.
        unsafe { at.add(i).write(object(i)) };
    }
    // SAFETY: just made; the pool lives as long as the guest.
    unsafe { slice::from_raw_parts(at, count) }
}

pub(crate) fn memory() -> &'static Memory<Pool> {
    // SAFETY: `init` has placed it, on vCPU 0 before any workload; it lives as long as the guest.
    unsafe { &*MEMORY.load(Ordering::Relaxed) }
}

/// The calling vCPU's address space: the common one, or one of its own. The first to come opens it.
pub(crate) fn join(shared: bool) -> Space<'static, Pool> {
    /// Address spaces that are open, 0: not yet, 1: being opened, 2: open.
    static COMMON: AtomicU64 = AtomicU64::new(0);
    let number = if shared { boot().vcpus as usize } else { cpu() };
    // SAFETY: `init` has placed one more than there are vCPUs; they live as long as the guest.
    let mm: &'static Mm<Pool> = unsafe { &*SPACES.load(Ordering::Relaxed).add(number) };
    let space = Space { memory: memory(), mm };
    let open =
        || assert!(space.open().is_ok(), "out of memory: not even a page table: ask for more --memory");
    if !shared {
        open();
    } else if COMMON.compare_exchange(0, 1, Ordering::Acquire, Ordering::Acquire).is_ok() {
        open();
        // Release: pairs with the acquire below.
        COMMON.store(2, Ordering::Release);
    }
    while shared && COMMON.load(Ordering::Acquire) != 2 {
        hypercall::yield_to(None);
    }
    space.join();
    CURRENT[cpu()].store(from_ref(mm).cast_mut(), Ordering::Relaxed);
    user::set_handler(serve);
    // SAFETY: `prepare_root` has given it the kernel's part; the rest maps pages of the pool that are not used
    // otherwise.
    unsafe { mmu::load_root(space.root()) };
    space
}

/// The calling vCPU's page faults.
fn serve(address: u64, access: Access) -> Verdict {
    let mm = CURRENT[cpu()].load(Ordering::Relaxed);
    if mm.is_null() || !(USER_START..USER_END).contains(&address) {
        return Verdict::NotMine;
    }
    // SAFETY: `join` has stored it; address spaces live as long as the guest.
    let space = Space { memory: memory(), mm: unsafe { &*mm } };
    space.fault(address, access).map_or_else(Verdict::Signal, |()| Verdict::Retry)
}

/// More pages than this are forgotten by reloading CR3.
const MOST_SINGLY: u64 = 8;

impl Machine for Pool {
    type Spin = Spin;
    type TreeLock = TreeLock;
    type Spins = Spins;
    type Semaphore = Semaphore;
    type Sleepers = Sleepers;

    #[inline(always)]
    fn spins(&self) -> &Spins {
        &SPINS
    }

    #[inline(always)]
    fn sleepers(&self) -> &Sleepers {
        &SLEEPERS
    }

    #[inline(always)]
    fn base(&self) -> u64 {
        self.base
    }

    #[inline(always)]
    fn entry(&self, page: u32, index: usize) -> &AtomicU64 {
        debug_assert!(index < haltkick_mm::ENTRIES);
        let address = self.base() + u64::from(page) * PAGE_BYTES + index as u64 * 8;
        // SAFETY: the memory manager passes numbers of pages that there are. As a page table or not, kernel code makes
        // nothing but atomic words of it.
        unsafe { &*(address as *const AtomicU64) }
    }

    #[inline]
    fn clear(&self, page: u32) {
        // Word by word, each atomic: a late walker of a page table that the page once was may load from it, and gets the old
        // entry or none. Relaxed: what makes the page visible is a store of its own.
        (0..haltkick_mm::ENTRIES).for_each(|index| self.entry(page, index).store(0, Ordering::Relaxed));
    }

    fn prepare_root(&self, page: u32) {
        // SAFETY: the VMM's top-level page table, mapped one to one; its first entry never changes.
        let kernel = unsafe { &*(boot().page_table.0 as *const AtomicU64) };
        self.entry(page, 0).store(kernel.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn invalidate(&self, cpus: &Cpus, address: u64, bytes: u64, tables: bool) {
        if tables || bytes > MOST_SINGLY * PAGE_BYTES {
            let mm = CURRENT[cpu()].load(Ordering::Relaxed);
            // SAFETY: `join` has stored it, and loaded this very table.
            unsafe { mmu::load_root(Space { memory: memory(), mm: &*mm }.root()) };
        } else {
            (0..bytes).step_by(PAGE_BYTES as usize).for_each(|offset| mmu::invalidate_page(address + offset));
        }
        let page = (!tables && bytes == PAGE_BYTES).then_some(address);
        let asked = mmu::invalidate_others(cpus.iter(), page);
        self.event(Event::TlbRemoteFlush, asked);
    }

    #[inline(always)]
    fn event(&self, event: Event, n: u64) {
        add(&this().results.lock_events[MEMORY_EVENTS + event as usize], n);
    }
}
