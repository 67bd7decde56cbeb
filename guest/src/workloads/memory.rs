//! Map, touch, unmap: for as long as the VMM lets it. Every page is checked to be the right one, and at the end that no page
//! and no area is left.

use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_mm::{Error, PAGE_BYTES, Protection, Space};

use crate::cpu::percpu::{add, boot, control, cpu, this};
use crate::cpu::time::{iterations, now, work};
use crate::lock::calls::excludes;
use crate::lock::measure::{end_round, is_open, is_over};
use crate::lock::registry::workload;
use crate::memory::{Pool, join, memory};
use crate::monitor::hypercall;
use crate::observe::times;
use crate::traps::user;
use crate::work::arena;
use crate::work::choice::dice;
use crate::work::random::Random;

/// Slots of the results' times: that of a fault, and what mapping and unmapping (or a writer's change) took.
const FAULT: usize = 0;
const CHANGE: usize = 1;

workload! {
    // One page a record, as the benchmark of 2018 did.
    "410" "fault-map-touch", "map one page, touch it, unmap it",
        [USES_MEMORY FAULTS_PAGES CHECKS_AT_REST], ["fault", "map-unmap"] => || records(1, excludes());
    // Several faults for each map and unmap.
    "420" "fault-many", "map 64 pages, touch each, unmap them",
        [USES_MEMORY FAULTS_PAGES CHECKS_AT_REST], ["fault", "map-unmap"] => || records(64, excludes());
    "430" "fault-read-mostly",
        "fault pages in and discard them; every eighth vCPU maps, protects, unmaps now and then",
        [USES_MEMORY FAULTS_PAGES CHECKS_AT_REST], ["fault", "change"] => read_mostly;
    // Without sharing: this must not get slower.
    "440" "fault-private", "map one page, touch it, unmap it, each vCPU in an address space of its own",
        [USES_MEMORY FAULTS_PAGES CHECKS_AT_REST], ["fault", "map-unmap"] => || records(1, false);
    "390" "selftest-memory",
        "random maps, accesses and unmaps of all kinds, every page checked; no page and no area leaks",
        [IS_SELFTEST USES_MEMORY FAULTS_PAGES], ["fault"] => selftest;
    "400" "selftest-leak", "fault-map-touch, in which vCPU 0 forgets to unmap a page",
        [IS_SELFTEST USES_MEMORY FAULTS_PAGES CHECKS_AT_REST], ["fault", "map-unmap"] => leak;
}

fn record(slot: usize, ticks: u64) {
    if is_open() {
        times::record(&this().results.times[slot], ticks);
    }
}

fn records(pages: u64, shared: bool) {
    let space = join(shared);
    let think = iterations(boot().think_ns);
    let mut tag = (cpu() as u64) << 48;
    let anchor = leave_an_anchor(space);
    is_ready();
    loop {
        let times = one_record(space, pages, tag);
        tag += pages;
        if !end_round(|| add(&this().results.acquisitions, u64::from(times.is_ok()))) {
            break;
        }
        if let Ok(ticks) = times {
            record(CHANGE, ticks);
        } else {
            // Out of memory: counted by the memory manager. Others may give some back.
            hypercall::yield_to(None);
        }
        work(think);
    }
    if let Some(anchor) = anchor {
        give_back(space, anchor, 1);
    }
    leave(shared);
}

/// A page that stays mapped, so that later maps find a neighbour which has had a page, as those of a real process do.
fn leave_an_anchor(space: Space<'static, Pool>) -> Option<u64> {
    let anchor = space.map(PAGE_BYTES, Protection::ReadWrite).ok()?;
    let _ = user::store(anchor, 1);
    Some(anchor)
}

/// This vCPU has what it needs from the beginning on.
fn is_ready() {
    // Relaxed: the VMM counts.
    control().ready.fetch_add(1, Ordering::Relaxed);
}

/// One vCPU in this many writes.
const WRITER_EVERY: usize = 8;
/// Work of a writer between two changes, in its own time on a pCPU.
const WRITER_PAUSE_NS: u64 = 1_000_000;
/// Pages that a reader faults in.
const READER_PAGES: u64 = 256;
/// Pages that it maps: a page table's. The first is a guard page, so that its area stays one of its own.
const READER_MAPS: u64 = 512;

/// Readers fault their pages in, again and again, and map nothing; every eighth vCPU maps, protects and unmaps a page
/// now and then. A page that was faulted in is one operation, the hold time that of a writer's change.
fn read_mostly() {
    let space = join(excludes());
    let is_writer = boot().vcpus > 1 && cpu().is_multiple_of(WRITER_EVERY);
    if is_writer {
        write_rarely(space, excludes())
    } else {
        fault_in(space)
    }
    leave(excludes());
}

/// Makes pages vanish under the read lock, as `madvise(MADV_DONTNEED)` does, and faults them in: nothing else.
fn fault_in(space: Space<'static, Pool>) {
    let think = iterations(boot().think_ns);
    let mut tag = (cpu() as u64) << 48;
    let mapped = map_with_guard(space);
    is_ready();
    while !is_over() {
        let Ok(start) = mapped else {
            hypercall::yield_to(None);
            continue;
        };
        let touched =
            touch(start, READER_PAGES, tag, count_page).and_then(|()| check(start, READER_PAGES, tag));
        let discarded = space.discard(start, READER_PAGES * PAGE_BYTES);
        assert!(discarded.is_ok(), "the range is of whole pages");
        if served(touched).is_err() {
            hypercall::yield_to(None);
        }
        tag += READER_PAGES;
        work(think);
    }
    if let Ok(start) = mapped {
        give_back(space, start - PAGE_BYTES, READER_MAPS);
    }
}

/// A reader's memory, behind its guard page.
fn map_with_guard(space: Space<'static, Pool>) -> Result<u64, Error> {
    let guard = space.map(READER_MAPS * PAGE_BYTES, Protection::ReadWrite)?;
    let protected = space.protect(guard, PAGE_BYTES, Protection::None);
    if protected.is_err() {
        give_back(space, guard, READER_MAPS);
    }
    protected.map(|()| guard + PAGE_BYTES)
}

fn count_page() {
    if is_open() {
        add(&this().results.acquisitions, 1);
    }
}

/// The one page is faulted in, too.
fn write_rarely(space: Space<'static, Pool>, shared: bool) {
    let (vcpus, pause) = (boot().vcpus, iterations(WRITER_PAUSE_NS));
    let mut tag = (cpu() as u64) << 48;
    // The readers' page tables are to lie alike in every run. Relaxed: nothing else is read on the strength of it.
    let readers = vcpus - vcpus.div_ceil(WRITER_EVERY as u32);
    while shared && control().ready.load(Ordering::Relaxed) < readers {
        hypercall::yield_to(None);
    }
    is_ready();
    while !is_over() {
        if let Ok(ticks) = one_change(space, tag) {
            record(CHANGE, ticks);
        }
        tag += 1;
        work(pause);
    }
}

/// Maps, touches, protects and unmaps a page. The time that all but the fault took.
fn one_change(space: Space<'static, Pool>, tag: u64) -> Result<u64, Error> {
    let begun = now();
    let start = space.map(PAGE_BYTES, Protection::ReadWrite)?;
    let mapped = now();
    let touched = touch(start, 1, tag, count_page);
    let protecting = now();
    let protected = space.protect(start, PAGE_BYTES, Protection::Read);
    let is_refused = protected.is_err() || user::store(start, 0) != Ok(());
    assert!(is_refused, "a page that is read-only could be written");
    give_back(space, start, 1);
    let ended = now();
    served(touched).and(protected).map(|()| (mapped - begun) + (ended - protecting))
}

/// Unmaps that were refused for want of an area to split into.
static REFUSED_UNMAPS: AtomicU64 = AtomicU64::new(0);

fn give_back(space: Space<'static, Pool>, start: u64, pages: u64) {
    if space.unmap(start, pages * PAGE_BYTES).is_err() {
        REFUSED_UNMAPS.fetch_add(1, Ordering::Relaxed);
    }
}

/// This vCPU has unmapped all that it mapped; the last one to say so counts what is left: the top-level page tables.
fn leave(shared: bool) {
    arena::come_to_rest(|| {
        // Relaxed: `come_to_rest` orders what all have done before this.
        if REFUSED_UNMAPS.load(Ordering::Relaxed) > 0 {
            // Out of memory: what could not be unmapped is no leak.
            return;
        }
        let tables = if shared { 1 } else { boot().vcpus as usize };
        let (pages, areas) = (memory().used_pages() - tables, memory().used_vmas());
        assert!(pages == 0 && areas == 0, "{pages} pages and {areas} areas leaked");
    });
}

/// vCPU 0 forgets a mapping: what `leave` is there to find.
fn leak() {
    if cpu() == 0 {
        leave_an_anchor(join(excludes()));
    }
    records(1, excludes());
}

/// Memory that is mapped was there, or none was left.
fn served(touched: Result<(), Error>) -> Result<(), Error> {
    let is_lost = matches!(touched, Err(Error::NotMapped | Error::NotAllowed));
    assert!(!is_lost, "a lost fault: refused in memory that is mapped");
    touched
}

/// Maps `pages`, touches and checks each, unmaps them. The time that mapping and unmapping took.
fn one_record(space: Space<'static, Pool>, pages: u64, tag: u64) -> Result<u64, Error> {
    let begun = now();
    let start = space.map(pages * PAGE_BYTES, Protection::ReadWrite)?;
    let mapped = now();
    let touched = touch(start, pages, tag, || ()).and_then(|()| check(start, pages, tag));
    let unmapping = now();
    give_back(space, start, pages);
    let ended = now();
    served(touched).map(|()| (mapped - begun) + (ended - unmapping))
}

/// Offset of a word that is only looked at: what an earlier owner of the page has left there must be gone.
const REST: u64 = PAGE_BYTES / 2;

/// Writes into each page, and calls `touched` after each.
fn touch(start: u64, pages: u64, tag: u64, touched: fn()) -> Result<(), Error> {
    for page in 0..pages {
        let address = start + page * PAGE_BYTES;
        let asked = now();
        user::store(address, tag + page)?;
        record(FAULT, now().saturating_sub(asked));
        assert!(user::load(address + REST)? == 0, "a wrong page: it was not empty");
        user::store(address + REST, !0)?;
        touched();
    }
    Ok(())
}

fn check(start: u64, pages: u64, tag: u64) -> Result<(), Error> {
    for page in 0..pages {
        let found = user::load(start + page * PAGE_BYTES)?;
        assert!(found == tag + page, "a wrong page: it holds {found:#x} instead of {:#x}", tag + page);
    }
    Ok(())
}

/// Rounds of random operations between two looks for leaks.
const ROUNDS: u32 = 20;

/// Every vCPU maps, touches, protects, moves and unmaps memory of its own in the common address space, and
/// checks the refusals. After a number of rounds all meet, and vCPU 0 counts the rest. One look is one
/// operation.
fn selftest() {
    let space = join(excludes());
    let mut random = dice();
    while !is_over() {
        for _ in 0..ROUNDS {
            round(space, &mut random);
        }
        if !meet() {
            return;
        }
        if cpu() == 0 && excludes() {
            assert!(space.areas() == 0, "{} areas are left", space.areas());
            // The top-level page table stays.
            let (pages, areas) = (memory().used_pages(), memory().used_vmas());
            assert!(pages == 1, "{} pages leaked", pages - 1);
            assert!(areas == 0, "{areas} areas leaked");
        }
        if !meet() {
            return;
        }
        add(&this().results.acquisitions, 1);
    }
}

/// One mapping from birth to death.
fn round(space: Space<'static, Pool>, random: &mut Random) {
    const OUT: &str = "out of memory: the selftest needs more --memory";
    const REFUSED: &str = "memory that is mapped was refused";
    let pages = 1 + random.below(24);
    let tag = random.below(1 << 60);
    let mut start = must(space.map(pages * PAGE_BYTES, Protection::ReadWrite), OUT);
    must(touch(start, pages, tag, || ()), REFUSED);

    let victim = start + random.below(pages) * PAGE_BYTES;
    must(space.protect(victim, PAGE_BYTES, Protection::Read), OUT);
    assert!(user::store(victim, 0) == Err(Error::NotAllowed), "a page that is read-only could be written");
    must(space.protect(victim, PAGE_BYTES, Protection::None), OUT);
    assert!(user::load(victim) == Err(Error::NotAllowed), "a page without access could be read");
    must(space.protect(victim, PAGE_BYTES, Protection::ReadWrite), OUT);
    must(check(start, pages, tag), REFUSED);

    let grown = pages + random.below(8);
    let moved = must(space.remap(start, pages * PAGE_BYTES, grown * PAGE_BYTES), OUT);
    start = moved;
    must(check(start, pages, tag), REFUSED);
    if grown > pages {
        let last = start + (grown - 1) * PAGE_BYTES;
        assert!(user::load(last) == Ok(0), "memory that was added is not empty");
    }

    let hole = start + random.below(grown) * PAGE_BYTES;
    must(space.unmap(hole, PAGE_BYTES), OUT);
    // Another vCPU may have mapped the hole meanwhile, but has not written our tag there.
    if let Ok(found) = user::load(hole) {
        assert!(found & (1 << 60) == 0 && found.wrapping_sub(tag) >= 32, "a page that is gone could be read");
    }
    for page in 0..grown {
        let address = start + page * PAGE_BYTES;
        if address != hole {
            must(space.unmap(address, PAGE_BYTES), OUT);
        }
    }
}

/// The value; panics with `what` where there is none. (Not `expect`: what errors are called would be linked in.)
#[track_caller]
fn must<T, E>(result: Result<T, E>, what: &str) -> T {
    result.ok().expect(what)
}

/// Waits until all vCPUs are here; `false`: the window was closed before.
fn meet() -> bool {
    static ARRIVED: AtomicU64 = AtomicU64::new(0);
    let vcpus = u64::from(boot().vcpus);
    let all = ARRIVED.fetch_add(1, Ordering::AcqRel) / vcpus * vcpus + vcpus;
    while ARRIVED.load(Ordering::Acquire) < all {
        if is_over() {
            return false;
        }
        hypercall::yield_to(None);
    }
    true
}
