//! The hardware's part of a page fault, without a memory manager: is everything raised, refused and cached as it should?
#![expect(unsafe_code, reason = "makes a page table of its own and loads it")]

use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::MAX_VCPUS;
use haltkick_mm::{Access, Error};

use crate::cpu::percpu::{add, boot, cpu, this};
use crate::cpu::time;
use crate::lock::measure::{is_over, until_closed};
use crate::lock::registry::workload;
use crate::monitor::hypercall;
use crate::traps::mmu;
use crate::traps::user::{self, Verdict};

const PAGE: u64 = 4096;
/// The first address that the VMM's own tables do not map: entry 1 of the top level.
const ADDRESS: u64 = 1 << 39;

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;

/// Per vCPU: the leaf entry's address while the vCPU wants its fault to be served, else zero.
static WANTED: [AtomicU64; MAX_VCPUS] = [const { AtomicU64::new(0) }; MAX_VCPUS];

/// The calling vCPU's pages: four levels of page table, and a page to map.
fn page(number: u64) -> u64 {
    page_of(cpu() as u64, number)
}

/// Returns a page of vCPU `owner`, or of all behind the last one.
fn page_of(owner: u64, number: u64) -> u64 {
    const PAGES: u64 = 5;
    boot().pool.0 + (owner * PAGES + number) * PAGE
}

/// Makes four levels of page table whose last maps nothing yet, with the kernel's part, and says where the last one lies.
fn make_table([root, pointers, directory, table]: [u64; 4]) -> u64 {
    word(root).store(word(boot().page_table.0).load(Ordering::Relaxed), Ordering::Relaxed);
    word(root + 8).store(pointers | PRESENT | WRITABLE | USER, Ordering::Relaxed);
    word(pointers).store(directory | PRESENT | WRITABLE | USER, Ordering::Relaxed);
    word(directory).store(table | PRESENT | WRITABLE | USER, Ordering::Relaxed);
    table
}

fn word(address: u64) -> &'static AtomicU64 {
    // SAFETY: the callers pass aligned addresses in the pool or in the VMM's page table; both are mapped one to one, live
    // as long as the guest, and nothing but atomic words is ever made of them.
    unsafe { &*(address as *const AtomicU64) }
}

fn serve(address: u64, access: Access) -> Verdict {
    if address != ADDRESS {
        return Verdict::NotMine;
    }
    let entry = WANTED[cpu()].load(Ordering::Relaxed);
    if entry != 0 {
        word(entry).store(page(4) | PRESENT | WRITABLE | USER, Ordering::Relaxed);
        return Verdict::Retry;
    }
    Verdict::Signal(if access == Access::Write { Error::NotAllowed } else { Error::NotMapped })
}

workload! {
    "380" "selftest-page-fault", "every vCPU faults a page in, protects it, is refused, unmaps it",
        [IS_SELFTEST USES_MEMORY], ["fault"] => selftest;
}

/// Slot of the results' times.
const FAULT: usize = 0;

/// Every vCPU, on a page table of its own: a fault that is served, accessed and dirty bits, a write that is refused, a
/// read that is refused. One round counts as one operation; its fault is timed.
fn selftest() {
    let table = make_table([0, 1, 2, 3].map(page));
    user::set_handler(serve);
    // SAFETY: its first entry is the kernel's, its second one maps a page of the pool that only this workload uses.
    unsafe { mmu::load_root(page(0)) };
    let (entry, results) = (word(table), &this().results);
    until_closed(|| {
        WANTED[cpu()].store(table, Ordering::Relaxed);
        let asked = time::now();
        let read = user::load(ADDRESS);
        add(&results.times[FAULT].sum, time::now().saturating_sub(asked));
        assert!(read.is_ok(), "a fault was served, and the read failed");
        WANTED[cpu()].store(0, Ordering::Relaxed);
        let bits = entry.load(Ordering::Relaxed) & (ACCESSED | DIRTY);
        assert!(bits == ACCESSED, "a page that was read has the bits {bits:#x}");
        assert!(user::store(ADDRESS, asked).is_ok() && user::load(ADDRESS) == Ok(asked), "a store was lost");
        assert!(entry.load(Ordering::Relaxed) & DIRTY != 0, "a page that was written is not dirty");

        entry.fetch_and(!WRITABLE, Ordering::Relaxed);
        mmu::invalidate_page(ADDRESS);
        assert!(
            user::store(ADDRESS, 0) == Err(Error::NotAllowed),
            "a write to a protected page was let through"
        );
        assert!(user::load(ADDRESS) == Ok(asked), "a protected page changed");

        entry.store(0, Ordering::Relaxed);
        mmu::invalidate_page(ADDRESS);
        assert!(user::load(ADDRESS) == Err(Error::NotMapped), "a page that is gone could be read");
        mmu::invalidate_others(0..boot().vcpus as usize, None);
    });
}

workload! {
    "385" "selftest-shootdown", "vCPU 0 protects a page that all others write to, and each of them must be refused at once",
        [IS_SELFTEST USES_MEMORY], [] => shootdown;
}

/// 0: the page table is being made; else odd while the page is protected on all vCPUs.
static PROTECTED: AtomicU64 = AtomicU64::new(0);

/// On one page table for all, vCPU 0 protects the page, has all others forget what they have cached of it, and says so; they
/// write to it all the time. A write that begins and ends while the page is said to be protected must be refused: a CPU that
/// still has the old translation would let it through. One that was refused so is one operation.
///
/// Some hosts let no such write through whatever the NMI's stub does (on PVM, in one run of the test, not even
/// where no vCPU was asked to forget anything). So the test also checks that the stub has done what was
/// requested.
fn shootdown() {
    let everybody = u64::from(boot().vcpus);
    let pages = [0, 1, 2, 3].map(|number| page_of(everybody, number));
    let entry = word(pages[3]);
    user::set_handler(serve);
    if cpu() == 0 {
        make_table(pages);
        entry.store(page_of(everybody, 4) | PRESENT | WRITABLE | USER, Ordering::Relaxed);
        // Release: the table comes before.
        PROTECTED.store(2, Ordering::Release);
    }
    while PROTECTED.load(Ordering::Acquire) == 0 {
        hypercall::yield_to(None);
    }
    // SAFETY: its first entry is the kernel's, its second one maps a page of the pool that only this workload uses.
    unsafe { mmu::load_root(pages[0]) };
    while !is_over() {
        this().activity.since_tsc.store(time::now(), Ordering::Relaxed);
        if cpu() == 0 { protect_for_a_while(entry) } else { write_all_the_time() }
    }
}

fn protect_for_a_while(entry: &AtomicU64) {
    let said = PROTECTED.load(Ordering::Relaxed);
    entry.fetch_and(!WRITABLE, Ordering::SeqCst);
    mmu::invalidate_page(ADDRESS);
    mmu::invalidate_others(0..boot().vcpus as usize, Some(ADDRESS));
    PROTECTED.store(said + 1, Ordering::SeqCst);
    time::work(time::iterations(20_000));
    PROTECTED.store(said + 2, Ordering::SeqCst);
    entry.fetch_or(WRITABLE, Ordering::SeqCst);
    time::work(time::iterations(20_000));
    if boot().vcpus == 1 {
        add(&this().results.acquisitions, 1);
    }
}

fn write_all_the_time() {
    let before = PROTECTED.load(Ordering::SeqCst);
    let written = user::store(ADDRESS, before);
    let stale = this().invalidation.stale.load(Ordering::SeqCst);
    let after = PROTECTED.load(Ordering::SeqCst);
    if before == after && before % 2 == 1 {
        assert!(
            written == Err(Error::NotAllowed),
            "a write went through a translation that was to be forgotten"
        );
        // While the page is protected nothing is requested, and earlier requests have been acknowledged: the
        // NMI came before this CPU's next instruction. A request that is still there was ignored by its stub.
        assert!(stale == 0, "the NMI came, and what it was to drop is still to be dropped");
        add(&this().results.acquisitions, 1);
    }
}
