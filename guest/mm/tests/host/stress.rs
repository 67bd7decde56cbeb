//! Threads that map, fault, protect and unmap at the same time: each page is the right one, and all come back.

use std::thread;
use std::time::{Duration, Instant};

use haltkick_mm::*;

use crate::machine::*;

const PAGE: u64 = PAGE_BYTES;
const CPUS: usize = 4;
/// Miri's clock counts what it interprets.
const LENGTH: Duration = if cfg!(miri) { Duration::from_micros(300) } else { Duration::from_millis(400) };

/// Memory of one's own in a common address space.
fn round(space: Space<'_, Host>, cpu: usize, number: u64) {
    let tag = (cpu as u64) << 32 | number << 8;
    let pages = 1 + number % 7;
    let start = space.map(pages * PAGE, Protection::ReadWrite).unwrap();
    for page in 0..pages {
        let address = start + page * PAGE;
        assert_eq!(load(space, address), Ok(0), "a wrong page: it was not empty");
        store(space, address, tag + page).unwrap();
    }
    let victim = start + number % pages * PAGE;
    space.protect(victim, PAGE, Protection::Read).unwrap();
    assert_eq!(store(space, victim, 0), Err(Error::NotAllowed));
    space.protect(victim, PAGE, Protection::ReadWrite).unwrap();
    let start = space.remap(start, pages * PAGE, (pages + 1) * PAGE).unwrap();
    for page in 0..pages {
        assert_eq!(load(space, start + page * PAGE), Ok(tag + page), "a wrong page");
    }
    space.discard(start, pages * PAGE).unwrap();
    for page in 0..pages {
        assert_eq!(load(space, start + page * PAGE), Ok(0), "a page that was discarded is still there");
    }
    space.unmap(start, (pages + 1) * PAGE).unwrap();
}

#[test]
fn every_page_is_the_right_one_and_none_leaks_under_every_scheme() {
    for scheme in [Scheme::MmapSem, Scheme::Speculative, Scheme::SpeculativeSrcu, Scheme::PerVma] {
        let world = world(scheme, CPUS, PAGES, 60);
        let until = Instant::now() + LENGTH;
        thread::scope(|scope| {
            for cpu in 0..CPUS {
                let world = &world;
                scope.spawn(move || {
                    be(cpu);
                    (1..).take_while(|_| Instant::now() < until).for_each(|n| round(space(world), cpu, n));
                });
            }
        });
        let (memory, space) = (&world.0, space(&world));
        assert_eq!((memory.used_pages(), memory.used_vmas(), space.areas()), (1, 0, 0), "{scheme:?} leaked");
    }
}
