//! Mapping, unmapping, protecting and moving as a process sees them, or several threads at once. Equal under all schemes.

use std::thread;
use std::time::{Duration, Instant};

use haltkick_mm::*;

use crate::machine::*;

const SCHEMES: [Scheme; 3] = [Scheme::MmapSem, Scheme::Speculative, Scheme::PerVma];
const PAGE: u64 = PAGE_BYTES;

/// Runs `test` under each scheme, in a world that must have come back to its beginning afterwards.
fn under_every_scheme(test: impl Fn(Space<'_, Host>)) {
    for scheme in SCHEMES {
        let world = world(scheme, 2, PAGES, 40);
        let space = space(&world);
        test(space);
        space.unmap(USER_START, USER_END - USER_START).unwrap();
        assert_eq!((space.memory.used_pages(), space.memory.used_vmas()), (1, 0), "{scheme:?}: leaked");
    }
}

#[test]
fn memory_is_empty_at_first_and_keeps_what_is_stored() {
    under_every_scheme(|space| {
        let start = space.map(3 * PAGE, Protection::ReadWrite).unwrap();
        for page in 0..3 {
            assert_eq!(load(space, start + page * PAGE), Ok(0));
            store(space, start + page * PAGE, 10 + page).unwrap();
        }
        assert_eq!(load(space, start + PAGE), Ok(11));
        assert_eq!(load(space, start - PAGE), Err(Error::NotMapped));
    });
}

#[test]
fn neighbours_of_a_kind_are_one_area_and_a_hole_makes_two() {
    under_every_scheme(|space| {
        let high = space.map(2 * PAGE, Protection::ReadWrite).unwrap();
        let low = space.map(2 * PAGE, Protection::ReadWrite).unwrap();
        assert_eq!((low + 2 * PAGE, space.areas()), (high, 1), "the next map goes below, and joins");
        store(space, low, 1).unwrap();
        store(space, high + PAGE, 2).unwrap();
        space.unmap(low + PAGE, PAGE).unwrap();
        assert_eq!(space.areas(), 2);
        assert_eq!(load(space, low + PAGE), Err(Error::NotMapped));
        assert_eq!((load(space, low), load(space, high + PAGE)), (Ok(1), Ok(2)));
        assert_eq!(space.map(PAGE, Protection::ReadWrite), Ok(low + PAGE), "the hole is the highest gap");
        assert_eq!(space.areas(), 1);
    });
}

#[test]
fn protection_is_that_of_each_page_and_areas_join_again() {
    under_every_scheme(|space| {
        let start = space.map(4 * PAGE, Protection::ReadWrite).unwrap();
        (0..4).for_each(|page| store(space, start + page * PAGE, page).unwrap());
        space.protect(start + PAGE, 2 * PAGE, Protection::Read).unwrap();
        assert_eq!(space.areas(), 3);
        assert_eq!(store(space, start + PAGE, 9), Err(Error::NotAllowed));
        assert_eq!(load(space, start + PAGE), Ok(1));
        space.protect(start + 2 * PAGE, PAGE, Protection::None).unwrap();
        assert_eq!(load(space, start + 2 * PAGE), Err(Error::NotAllowed));
        space.protect(start, 4 * PAGE, Protection::ReadWrite).unwrap();
        assert_eq!(space.areas(), 1);
        assert_eq!(load(space, start + 2 * PAGE), Ok(2), "the page was kept while nobody could see it");
        assert_eq!(space.protect(start - PAGE, PAGE, Protection::Read), Err(Error::NotMapped));
    });
}

#[test]
fn a_mapping_grows_in_place_moves_or_shrinks_and_keeps_its_pages() {
    under_every_scheme(|space| {
        let start = space.map(3 * PAGE, Protection::ReadWrite).unwrap();
        (0..3).for_each(|page| store(space, start + page * PAGE, 20 + page).unwrap());
        let moved = space.remap(start, 3 * PAGE, 6 * PAGE).unwrap();
        assert_ne!(moved, start, "there was no room above it");
        assert_eq!(load(space, start), Err(Error::NotMapped));
        (0..3).for_each(|page| assert_eq!(load(space, moved + page * PAGE), Ok(20 + page)));
        assert_eq!(load(space, moved + 5 * PAGE), Ok(0));
        assert_eq!(space.remap(moved, 6 * PAGE, 2 * PAGE), Ok(moved));
        assert_eq!(load(space, moved + 2 * PAGE), Err(Error::NotMapped));
        assert_eq!(space.remap(moved, 2 * PAGE, 4 * PAGE), Ok(moved), "there is room above it now");
        assert_eq!((load(space, moved + PAGE), load(space, moved + 3 * PAGE)), (Ok(21), Ok(0)));
        assert_eq!(space.remap(start, PAGE, 2 * PAGE), Err(Error::NotMapped));
    });
}

#[test]
fn memory_that_is_discarded_stays_mapped_and_is_empty() {
    under_every_scheme(|space| {
        let start = space.map(4 * PAGE, Protection::ReadWrite).unwrap();
        (0..4).for_each(|page| store(space, start + page * PAGE, 30 + page).unwrap());
        let used = space.memory.used_pages();
        space.discard(start + PAGE, 2 * PAGE).unwrap();
        assert_eq!((space.memory.used_pages(), space.areas()), (used - 2, 1));
        let found = [0, 1, 2, 3].map(|page| load(space, start + page * PAGE));
        assert_eq!(found, [Ok(30), Ok(0), Ok(0), Ok(33)]);
        assert_eq!(space.discard(start - PAGE, PAGE), Ok(()), "to discard nothing is no error");
    });
}

#[test]
fn senseless_ranges_are_refused() {
    under_every_scheme(|space| {
        assert_eq!(space.map(0, Protection::Read), Err(Error::Invalid));
        assert_eq!(space.map(PAGE + 1, Protection::Read), Err(Error::Invalid));
        assert_eq!(space.map(USER_END, Protection::Read), Err(Error::Invalid));
        assert_eq!(space.unmap(0, PAGE), Err(Error::Invalid));
        assert_eq!(space.discard(0, PAGE), Err(Error::Invalid));
        assert_eq!(space.unmap(USER_END, PAGE), Err(Error::Invalid));
        assert_eq!(space.unmap(u64::MAX - PAGE + 1, PAGE), Err(Error::Invalid));
        assert_eq!(space.unmap(USER_START, PAGE), Ok(()), "to unmap nothing is no error");
    });
}

#[test]
fn exhausted_memory_is_an_error_and_changes_nothing() {
    for scheme in SCHEMES {
        let world = world(scheme, 2, 64, 4);
        let space = space(&world);
        let start = space.map(100 * PAGE, Protection::ReadWrite).unwrap();
        let touched = (0..100).take_while(|page| store(space, start + page * PAGE, 7).is_ok()).count() as u64;
        assert!((40..64).contains(&touched), "{touched} pages of 64");
        assert_eq!(store(space, start + touched * PAGE, 7), Err(Error::OutOfMemory));
        assert_eq!(load(space, start), Ok(7));
        // Areas run out, too: four are there.
        let splits =
            (0..40).filter(|i| space.protect(start + (2 * i + 1) * PAGE, PAGE, Protection::Read).is_ok());
        assert_eq!(splits.count(), 1);
        assert!(space.memory.machine.count_of(Event::OutOfMemory) >= 3);
        assert_eq!(load(space, start), Ok(7));
        space.unmap(start, 100 * PAGE).unwrap();
        assert_eq!((space.memory.used_pages(), space.memory.used_vmas()), (1, 0));
    }
}

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
