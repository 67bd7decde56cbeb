//! The fault paths against concurrent unmapping, protecting, moving and freeing of page tables: random schedules with few,
//! but ill-chosen, preemptions.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --release -p haltkick-mm --test shuttle`
//!
//! The address space is small (four entries a table), so that page tables come and go. Memory is sequentially consistent
//! here. A failure prints its schedule; `SHUTTLE_REPLAY=<schedule>` together with the name of the test runs that one again.
//! `SHUTTLE_ITERATIONS` sets how many schedules each test tries.

#![cfg(shuttle)]

#[path = "../host/machine.rs"]
mod machine;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use haltkick_mm::*;
use haltkick_testing::{play_once, tests, try_schedules};
use machine::*;

const PAGE: u64 = PAGE_BYTES;

/// Two CPUs fault in four pages while a third one does `change` to them. `change` returns where, of the four, nothing may
/// be mapped from then on, and where nothing may be written.
fn explore(scheme: Scheme, change: fn(Space<'_, Host>, u64) -> Outcome) {
    try_schedules(1, move || {
        let world = world(scheme, 3, 40, 12);
        be(0);
        let start = space(&world).map(4 * PAGE, Protection::ReadWrite).unwrap();
        store(space(&world), start, 7).unwrap();
        let play = move |cpu, (world, outcome): &(World, OnceLock<Outcome>)| {
            if cpu == 0 {
                let changed = outcome.get_or_init(|| change(space(world), start));
                return changed.check(space(world), start);
            }
            for page in [1, 2] {
                // Refused or not: it may come before or after the change.
                let _ = store(space(world), start + page * PAGE, page);
            }
        };
        play_once(3, (world, OnceLock::new()), play, |(world, outcome)| {
            outcome.get().expect("there was a change").check(space(world), start);
            assert_nothing_leaks(world);
        });
    });
}

fn assert_nothing_leaks(world: &World) {
    space(world).unmap(USER_START, USER_END - USER_START).unwrap();
    assert_eq!((world.0.used_pages(), world.0.used_vmas()), (1, 0), "something leaked");
}

/// State of the four pages that must hold from the change on.
struct Outcome {
    gone: Vec<u64>,
    read_only: Vec<u64>,
}

impl Outcome {
    fn check(&self, space: Space<'_, Host>, start: u64) {
        for page in &self.gone {
            assert!(!is_present(space, start + page * PAGE), "page {page} is mapped where no area is");
        }
        for page in &self.read_only {
            assert!(!is_writable(space, start + page * PAGE), "page {page} can be written");
        }
    }
}

fn unmap_all(space: Space<'_, Host>, start: u64) -> Outcome {
    space.unmap(start, 4 * PAGE).unwrap();
    Outcome { gone: vec![0, 1, 2, 3], read_only: vec![] }
}

fn unmap_one(space: Space<'_, Host>, start: u64) -> Outcome {
    space.unmap(start + PAGE, PAGE).unwrap();
    Outcome { gone: vec![1], read_only: vec![] }
}

fn protect(space: Space<'_, Host>, start: u64) -> Outcome {
    space.protect(start + PAGE, 2 * PAGE, Protection::Read).unwrap();
    Outcome { gone: vec![], read_only: vec![1, 2] }
}

fn move_away(space: Space<'_, Host>, start: u64) -> Outcome {
    assert_ne!(space.remap(start, 4 * PAGE, 6 * PAGE), Ok(start));
    Outcome { gone: vec![0, 1, 2, 3], read_only: vec![] }
}

fn discard(space: Space<'_, Host>, start: u64) -> Outcome {
    space.discard(start, 4 * PAGE).unwrap();
    // The others' faults bring pages 1 and 2 back.
    Outcome { gone: vec![0, 3], read_only: vec![] }
}

fn unmap_and_map_anew(space: Space<'_, Host>, start: u64) -> Outcome {
    space.unmap(start, 4 * PAGE).unwrap();
    assert_eq!(space.map(3 * PAGE, Protection::Read), Ok(start + PAGE));
    Outcome { gone: vec![0], read_only: vec![1, 2, 3] }
}

/// Two CPUs write to where a third one moves memory to. An area below keeps a page table there alive, so that they need
/// not make one.
fn move_to(scheme: Scheme) {
    try_schedules(1, move || {
        let world = world(scheme, 3, 40, 12);
        be(0);
        let start = space(&world).map(4 * PAGE, Protection::ReadWrite).unwrap();
        let below = space(&world).map_special(PAGE, Protection::ReadWrite).unwrap();
        store(space(&world), start + 3 * PAGE, 7).unwrap();
        store(space(&world), below, 8).unwrap();
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

            tests! {
                nothing_is_mapped_where_everything_was_unmapped: explore(Scheme::$scheme, unmap_all);
                nothing_is_mapped_where_one_page_was_unmapped: explore(Scheme::$scheme, unmap_one);
                nothing_can_be_written_where_memory_was_protected: explore(Scheme::$scheme, protect);
                nothing_is_mapped_where_memory_was_moved_from: explore(Scheme::$scheme, move_away);
                nothing_is_lost_where_memory_is_moved_to: move_to(Scheme::$scheme);
                what_was_discarded_is_gone_and_no_cached_page_is_handed_out:
                    explore(Scheme::$scheme, discard);
                a_new_area_in_the_old_place_is_not_the_old_one: explore(Scheme::$scheme, unmap_and_map_anew);
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
