//! The fault paths against concurrent unmapping, protecting, moving and freeing of page tables: random schedules with few,
//! but ill-chosen, preemptions.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --release -p haltkick-mm --test shuttle`
//!
//! The address space is small (four entries a table), so that page tables come and go.
//! `haltkick_testing::try_schedules` says how to try more schedules, and how to run a failure again.

#![cfg(shuttle)]

#[expect(dead_code, reason = "for the tests with one thread")]
#[path = "../host/machine.rs"]
mod machine;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use haltkick_mm::*;
use haltkick_testing::{play_once, tests, try_schedules};
use machine::*;

const PAGE: u64 = PAGE_BYTES;

/// Two CPUs fault in four pages while a third one does `change` to them, from which on nothing may be mapped where `gone` says,
/// and nothing be written where `read_only` does.
fn explore(
    scheme: Scheme,
    gone: &'static [u64],
    read_only: &'static [u64],
    change: fn(Space<'_, Host>, u64),
) {
    try_schedules(1, move || {
        let world = world(scheme, 3, 40, 12);
        be(0);
        let start = space(&world).map(4 * PAGE, Protection::ReadWrite).unwrap();
        store(space(&world), start, 7).unwrap();
        let check = move |world: &World| {
            for page in gone {
                let is_mapped = is_present(space(world), start + page * PAGE);
                assert!(!is_mapped, "page {page} is mapped where no area is");
            }
            for page in read_only {
                assert!(!is_writable(space(world), start + page * PAGE), "page {page} can be written");
            }
        };
        let play = move |cpu, world: &World| {
            if cpu == 0 {
                change(space(world), start);
                return check(world);
            }
            for page in [1, 2] {
                // Refused or not: it may come before or after the change.
                let _ = store(space(world), start + page * PAGE, page);
            }
        };
        play_once(3, world, play, |world| {
            check(world);
            assert_nothing_leaks(world);
        });
    });
}

fn assert_nothing_leaks(world: &World) {
    space(world).unmap(USER_START, USER_END - USER_START).unwrap();
    assert_eq!((world.0.used_pages(), world.0.used_vmas()), (1, 0), "something leaked");
}

/// Two CPUs write to where a third one moves memory to. An area below keeps a page table there alive, so that they need
/// not make one.
fn move_to(scheme: Scheme) {
    try_schedules(1, move || {
        let world = world(scheme, 3, 40, 12);
        be(0);
        let start = space(&world).map(4 * PAGE, Protection::ReadWrite).unwrap();
        let below = space(&world).map(PAGE, Protection::Read).unwrap();
        store(space(&world), start + 3 * PAGE, 7).unwrap();
        assert_eq!(load(space(&world), below), Ok(0));
        let target = below - 6 * PAGE;
        let play = move |cpu, (world, is_written): &(World, AtomicBool)| {
            if cpu == 0 {
                assert_eq!(space(world).remap(start, 4 * PAGE, 6 * PAGE), Ok(target));
            } else if store(space(world), target + 3 * PAGE, 9).is_ok() {
                // The address was not mapped before.
                is_written.store(true, Relaxed);
            }
        };
        play_once(3, (world, AtomicBool::new(false)), play, |(world, is_written)| {
            let expected = if is_written.load(Relaxed) { 9 } else { 7 };
            assert_eq!(load(space(world), target + 3 * PAGE), Ok(expected));
            assert_nothing_leaks(world);
        });
    });
}

macro_rules! schemes {
    ($($scheme:ident $module:ident;)*) => {
        $(mod $module {
            use super::*;

            const SCHEME: Scheme = Scheme::$scheme;

            tests! {
                nothing_is_mapped_where_everything_was_unmapped:
                    explore(SCHEME, &[0, 1, 2, 3], &[], |space, start| space.unmap(start, 4 * PAGE).unwrap());
                nothing_is_mapped_where_one_page_was_unmapped:
                    explore(SCHEME, &[1], &[], |space, start| space.unmap(start + PAGE, PAGE).unwrap());
                nothing_can_be_written_where_memory_was_protected: explore(SCHEME, &[], &[1, 2], |space, start| {
                    space.protect(start + PAGE, 2 * PAGE, Protection::Read).unwrap();
                });
                nothing_is_mapped_where_memory_was_moved_from:
                    explore(SCHEME, &[0, 1, 2, 3], &[], |space, start| {
                        assert_ne!(space.remap(start, 4 * PAGE, 6 * PAGE), Ok(start));
                    });
                nothing_is_lost_where_memory_is_moved_to: move_to(SCHEME);
                /// The others' faults bring pages 1 and 2 back.
                what_was_discarded_is_gone_and_no_cached_page_is_handed_out:
                    explore(SCHEME, &[0, 3], &[], |space, start| space.discard(start, 4 * PAGE).unwrap());
                a_new_area_in_the_old_place_is_not_the_old_one: explore(SCHEME, &[0], &[1, 2, 3], |space, start| {
                    space.unmap(start, 4 * PAGE).unwrap();
                    assert_eq!(space.map(3 * PAGE, Protection::Read), Ok(start + PAGE));
                });
            }
        })*
    };
}

schemes! {
    MmapSem mmap_sem;
    Speculative speculative;
    SpeculativeSrcu speculative_srcu;
    PerVma per_vma;
}
