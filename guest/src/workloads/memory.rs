//! Map, touch, unmap: for as long as the VMM lets it. Every page is checked to be the right one.

use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN};
use haltkick_mm::{Error, PAGE_BYTES, Protection, Space};

use crate::histogram::record;
use crate::hypercall;
use crate::locks::GuestLock;
use crate::memory::{join, memory};
use crate::percpu::{add, boot, control, cpu, this};
use crate::platform::Guest;
use crate::time::{iterations, now, work};
use crate::user::{self, Signal};

/// One page a record, as the benchmark of 2018 did.
pub(crate) fn map_touch<L: GuestLock>() {
    records(1, L::excludes());
}

/// Several faults for each map and unmap.
pub(crate) fn many<L: GuestLock>() {
    records(64, L::excludes());
}

/// A page table full of faults for each map and unmap.
pub(crate) fn read_mostly<L: GuestLock>() {
    records(512, L::excludes());
}

/// Nothing is shared: what must not get slower.
pub(crate) fn private<L: GuestLock>() {
    records(1, false);
}

/// Counts records; the wait is the time of a fault, the hold that of a map and an unmap.
fn records(pages: u64, shared: bool) {
    let space = join(shared);
    let (think, results, window) = (iterations(boot().think_ns), &this().results, &control().window);
    let mut tag = (cpu() as u64) << 48;
    leave_an_anchor(space);
    loop {
        let times = one_record(space, pages, tag);
        tag += pages;
        match window.load(Ordering::Relaxed) {
            WINDOW_OPEN if times.is_ok() => add(&results.acquisitions, 1),
            WINDOW_CLOSED => return,
            _ => {}
        }
        if let Ok(ticks) = times {
            record(&results.hold, ticks);
        } else {
            // Out of memory: counted by the memory manager. Others may give some back.
            hypercall::yield_to(None);
        }
        work(think);
    }
}

/// A page that stays mapped, so that later maps find a neighbour which has had a page, as those of a real process do.
fn leave_an_anchor(space: Space<'static, Guest>) {
    if let Ok(address) = space.map(PAGE_BYTES, Protection::ReadWrite) {
        let _ = user::store(address, 1);
    }
}

/// Maps `pages`, touches and checks each, unmaps them. The time that mapping and unmapping took.
fn one_record(space: Space<'static, Guest>, pages: u64, tag: u64) -> Result<u64, Error> {
    let begun = now();
    let start = space.map(pages * PAGE_BYTES, Protection::ReadWrite)?;
    let mapped = now();
    let touched = touch(start, pages, tag).and_then(|()| check(start, pages, tag));
    let unmapping = now();
    let unmapped = space.unmap(start, pages * PAGE_BYTES);
    let ended = now();
    match touched {
        Ok(()) => unmapped.map(|()| (mapped - begun) + (ended - unmapping)),
        Err(Signal::OutOfMemory) => Err(Error::OutOfMemory),
        Err(Signal::NotMapped | Signal::NotAllowed) => {
            panic!("a lost fault: refused in memory that is mapped")
        }
    }
}

/// Offset of a word that is only looked at: what an earlier owner of the page has left there must be gone.
const REST: u64 = PAGE_BYTES / 2;

fn touch(start: u64, pages: u64, tag: u64) -> Result<(), Signal> {
    let waits = &this().results.wait;
    for page in 0..pages {
        let address = start + page * PAGE_BYTES;
        let asked = now();
        user::store(address, tag + page)?;
        record(waits, now() - asked);
        assert!(user::load(address + REST)? == 0, "a wrong page: it was not empty");
        user::store(address + REST, !0)?;
    }
    Ok(())
}

fn check(start: u64, pages: u64, tag: u64) -> Result<(), Signal> {
    for page in 0..pages {
        let found = user::load(start + page * PAGE_BYTES)?;
        assert!(found == tag + page, "a wrong page: it holds {found:#x} instead of {:#x}", tag + page);
    }
    Ok(())
}

/// Rounds of random operations between two looks for leaks.
const ROUNDS: u32 = 20;

/// Every vCPU maps, touches, protects, moves and unmaps memory of its own in the common address space, and is refused
/// what must be refused. After so many rounds all meet, and vCPU 0 counts what is left. One look is one operation.
pub(crate) fn selftest<L: GuestLock>() {
    let space = join(L::excludes());
    let mut random = Random(boot().seed ^ (cpu() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    while control().window.load(Ordering::Relaxed) != WINDOW_CLOSED {
        for _ in 0..ROUNDS {
            round(space, &mut random);
        }
        if !meet() {
            return;
        }
        if cpu() == 0 && L::excludes() {
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

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// One mapping from birth to death.
fn round(space: Space<'static, Guest>, random: &mut Random) {
    const OUT: &str = "out of memory: the selftest needs more --memory";
    const REFUSED: &str = "memory that is mapped was refused";
    let pages = 1 + random.below(24);
    let tag = random.below(1 << 60);
    let mut start = must(space.map(pages * PAGE_BYTES, Protection::ReadWrite), OUT);
    must(touch(start, pages, tag), REFUSED);

    let victim = start + random.below(pages) * PAGE_BYTES;
    must(space.protect(victim, PAGE_BYTES, Protection::Read), OUT);
    assert!(user::store(victim, 0) == Err(Signal::NotAllowed), "a page that is read-only could be written");
    must(space.protect(victim, PAGE_BYTES, Protection::None), OUT);
    assert!(user::load(victim) == Err(Signal::NotAllowed), "a page without access could be read");
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
    // Somebody else may have mapped the hole meanwhile, but has not written our tag there.
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
        if control().window.load(Ordering::Relaxed) == WINDOW_CLOSED {
            return false;
        }
        hypercall::yield_to(None);
    }
    true
}
