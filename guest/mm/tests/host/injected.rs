//! Each step of the two optimistic paths, with an interference at exactly that point.

use std::sync::mpsc::channel;
use std::thread;

use haltkick_mm::*;
use haltkick_testing::{Signal, tests, until};

use crate::machine::*;

const PAGE: u64 = PAGE_BYTES;
/// Pages that one page table maps.
const TABLE: u64 = ENTRIES as u64;

/// A world that is never freed, so that an interference may refer to it.
fn eternal(scheme: Scheme) -> Space<'static, Host> {
    let world = Box::leak(Box::new(world(scheme, 2, PAGES, 40)));
    be(0);
    space(world)
}

/// Eight pages, the first of which has been touched: a page table, an `anon_vma`.
fn warm(space: Space<'static, Host>) -> u64 {
    let start = space.map(8 * PAGE, Protection::ReadWrite).unwrap();
    store(space, start, 1).unwrap();
    start
}

fn count(space: Space<'static, Host>, event: Event) -> u64 {
    space.memory.machine.count_of(event)
}

/// Checks that no page has leaked and no wrong one is mapped.
fn clean_up(space: Space<'static, Host>) {
    assert!(!was_not_reached(), "the step was not reached");
    space.unmap(USER_START, USER_END - USER_START).unwrap();
    assert_eq!((space.memory.used_pages(), space.memory.used_vmas()), (1, 0));
}

/// Runs `test` in a world of its own with such an area, and cleans up.
fn in_an_area(scheme: Scheme, test: impl FnOnce(Space<'static, Host>, u64)) {
    let space = eternal(scheme);
    test(space, warm(space));
    clean_up(space);
}

/// Waits until the fault that another thread `begins` has given up, and will wait for the writer that this one is.
fn until_a_fault_gives_up(space: Space<'static, Host>, begins: impl FnOnce()) {
    let before = count(space, Event::VmaLockSuccess);
    begins();
    while count(space, Event::VmaLockAbort) == 0 {
        assert_eq!(count(space, Event::VmaLockSuccess), before, "a fault beside a writer");
        thread::yield_now();
    }
}

/// Stores to `address` on CPU 1, in a thread of its own that is `prepared` for it. Refused or not.
fn store_on_cpu_1(space: Space<'static, Host>, address: u64, prepared: impl FnOnce() + Send + 'static) {
    thread::spawn(move || {
        be(1);
        prepared();
        _ = store(space, address, 1);
    });
}

/// Stores to pages of a new area that has two page tables, and how often each event has been counted after that.
fn counts(scheme: Scheme, events: [Event; 2], stores: &[(u64, [u64; 2])]) {
    let space = eternal(scheme);
    let start = space.map(2 * TABLE * PAGE, Protection::ReadWrite).unwrap();
    for (page, counted) in stores {
        store(space, start + page * PAGE, 1).unwrap();
        assert_eq!(events.map(|event| count(space, event)), *counted, "page {page}");
    }
    clean_up(space);
}

tests! {
    the_first_fault_of_an_area_is_not_speculative_the_second_is:
        counts(Scheme::Speculative, [Event::SpfVmaNoanon, Event::SpeculativePgfault], &[(0, [1, 0]), (1, [1, 1])]);
    the_first_fault_in_a_page_table_is_classic: counts(
        Scheme::Speculative,
        [Event::SpfVmaNotsup, Event::SpeculativePgfault],
        &[(0, [0, 0]), (TABLE, [1, 0]), (TABLE + 1, [1, 1])]
    );
    an_area_without_a_page_table_is_served_under_its_lock:
        counts(Scheme::PerVma, [Event::VmaLockRetry, Event::VmaLockSuccess], &[(0, [1, 0]), (TABLE, [1, 1])]);
}

#[test]
fn a_wrong_access_is_an_error_without_a_second_look() {
    in_an_area(Scheme::Speculative, |space, start| {
        space.protect(start, 8 * PAGE, Protection::Read).unwrap();
        assert_eq!(store(space, start + PAGE, 1), Err(Error::NotAllowed));
        assert_eq!(count(space, Event::SpfVmaAccess), 1);
    });
}

#[test]
fn an_address_space_with_one_user_does_not_speculate() {
    let world = world(Scheme::Speculative, 1, 100, 10);
    let space = space(&world);
    let start = space.map(4 * PAGE, Protection::ReadWrite).unwrap();
    (0..4).for_each(|page| store(space, start + page * PAGE, 1).unwrap());
    assert_eq!(space.memory.machine.count_of(Event::SpeculativePgfault), 0);
}

/// Both forms of speculation: by a reference to the area, and under SRCU.
const FORMS: [Scheme; 2] = [Scheme::Speculative, Scheme::SpeculativeSrcu];

/// Runs `test` under every form of speculation at each of the steps below, with a page of the area.
fn at_every_step(test: fn(Space<'static, Host>, u64, Step)) {
    for (form, step) in FORMS.into_iter().flat_map(|form| STEPS.into_iter().map(move |step| (form, step))) {
        in_an_area(form, |space, start| test(space, start + 3 * PAGE, step));
    }
}

/// Steps of the speculative path from which on a change must be noticed.
const STEPS: [Step; 7] = [
    Step::VmaHeld,
    Step::SequenceRead,
    Step::Checked,
    Step::Walked,
    Step::Allocated,
    Step::Rechecked,
    Step::BeforeLock,
];

#[test]
fn a_page_that_is_unmapped_at_any_step_is_not_installed() {
    at_every_step(|space, victim, step| {
        at(step, move || space.unmap(victim, PAGE).unwrap());
        assert_eq!(store(space, victim, 1), Err(Error::NotMapped), "{step:?}");
        assert_eq!(count(space, Event::SpfVmaChanged), 1, "{step:?}");
        assert!(!is_present(space, victim), "{step:?}");
    });
}

/// Steps left undone once a change has been noticed: a look that is left out shows by the steps that follow it.
#[test]
fn a_change_is_noticed_at_the_next_look() {
    for (change, next) in [
        (Step::VmaHeld, Step::SequenceRead),
        (Step::Walked, Step::Allocated),
        (Step::Allocated, Step::Rechecked),
    ] {
        in_an_area(Scheme::Speculative, |space, start| {
            at(change, move || {
                space.unmap(start, 8 * PAGE).unwrap();
                at(next, || ());
            });
            assert_eq!(store(space, start + 3 * PAGE, 1), Err(Error::NotMapped), "{change:?}");
            assert!(was_not_reached(), "the change at {change:?} was not noticed before {next:?}");
        });
    }
}

#[test]
fn what_an_area_said_before_it_changed_is_no_error() {
    in_an_area(Scheme::Speculative, |space, start| {
        at(Step::SequenceRead, move || {
            space.protect(start, 8 * PAGE, Protection::Read).unwrap();
            space.unmap(start, 8 * PAGE).unwrap();
            assert_eq!(space.map(8 * PAGE, Protection::ReadWrite), Ok(start));
        });
        assert_eq!(store(space, start + PAGE, 1), Ok(()));
        assert_eq!((count(space, Event::SpfVmaChanged), count(space, Event::SpfVmaAccess)), (1, 0));
    });
}

#[test]
fn a_page_that_is_unmapped_and_mapped_anew_has_the_new_area() {
    at_every_step(|space, victim, step| {
        let start = victim - 3 * PAGE;
        at(step, move || {
            space.unmap(start, 8 * PAGE).unwrap();
            assert_eq!(space.map(8 * PAGE, Protection::ReadWrite), Ok(start));
        });
        store(space, victim, 1).unwrap();
        assert_eq!(count(space, Event::SpeculativePgfault), 0, "{step:?}");
        assert_eq!(load(space, start), Ok(0), "{step:?}");
    });
}

/// Another CPU writes to where an area is being moved, as soon as it finds an area there. What it would install would be
/// overwritten by the page that is moved there, and lost.
#[test]
fn nothing_is_installed_where_pages_are_being_moved_to() {
    let space = eternal(Scheme::Speculative);
    let start = warm(space);
    let target = start - 16 * PAGE;
    let (is_done, done) = channel();
    at(Step::Added, move || {
        thread::spawn(move || {
            be(1);
            store(space, target, 7).unwrap();
            is_done.send(()).unwrap();
        });
        until(|| count(space, Event::SpfVmaChanged) + count(space, Event::SpeculativePgfault) > 0);
    });
    assert_eq!(space.remap(start, 8 * PAGE, 16 * PAGE), Ok(target));
    done.recv().unwrap();
    assert_eq!(load(space, target), Ok(7));
    clean_up(space);
    assert_eq!(count(space, Event::SpfVmaChanged), 1, "the new area was not marked");
}

/// An area that is unmapped while a fault is at `step`, and what is done `then`, are `noticed`.
fn unmapped_at(scheme: Scheme, step: Step, then: fn(Space<'static, Host>, u64), noticed: Event) {
    in_an_area(scheme, |space, start| {
        at(step, move || {
            space.unmap(start, 8 * PAGE).unwrap();
            then(space, start);
        });
        assert_eq!(store(space, start + PAGE, 1), Err(Error::NotMapped));
        assert_eq!(count(space, noticed), 1);
    });
}

/// Another area takes the slot.
fn map_anew(space: Space<'static, Host>, start: u64) {
    assert_eq!(space.map(2 * PAGE, Protection::ReadWrite), Ok(start + 6 * PAGE));
}

tests! {
    a_page_table_that_goes_between_the_two_last_looks_is_noticed:
        unmapped_at(Scheme::Speculative, Step::Rechecked, |_, _| (), Event::SpfPmdChanged);
    an_area_that_is_gone_before_it_is_locked_is_sought_again:
        unmapped_at(Scheme::PerVma, Step::Found, |_, _| (), Event::VmaLockMiss);
    an_area_whose_slot_is_used_anew_is_not_the_old_one:
        unmapped_at(Scheme::PerVma, Step::Found, map_anew, Event::VmaLockAbort);
}

#[test]
fn a_page_table_lock_is_never_waited_for() {
    in_an_area(Scheme::Speculative, |space, start| {
        let_locks_be_busy(true);
        store(space, start + PAGE, 1).unwrap();
        let_locks_be_busy(false);
        assert_eq!((count(space, Event::SpfPteLock), count(space, Event::SpeculativePgfault)), (1, 0));
    });
}

#[test]
fn a_page_that_another_cpu_installs_at_any_step_stays() {
    at_every_step(|space, victim, step| {
        at(step, move || store(space, victim, 5).unwrap());
        assert_eq!(load(space, victim), Ok(5), "{step:?}");
        assert_eq!(count(space, Event::PgFaultSpurious), 1, "{step:?}");
    });
}

#[test]
fn an_area_that_a_fault_looks_at_is_not_reused_meanwhile() {
    in_an_area(Scheme::SpeculativeSrcu, |space, start| {
        let come_and_go = move |times: usize| {
            for _ in 0..times {
                let there = space.map(PAGE, Protection::Read).unwrap();
                space.unmap(there, PAGE).unwrap();
            }
        };
        at(Step::VmaHeld, move || {
            space.unmap(start, 8 * PAGE).unwrap();
            come_and_go(30);
            assert_eq!(count(space, Event::VmaGracePeriod), 0, "a fault is not over");
        });
        assert_eq!(store(space, start + PAGE, 1), Err(Error::NotMapped));
        assert!(count(space, Event::VmaDeferred) > 30);
        // More than there are slots: those that waited are free again.
        come_and_go(100);
        assert!(count(space, Event::VmaGracePeriod) > 1);
    });
}

#[test]
fn an_area_whose_slot_another_address_space_uses_is_not_ones_own() {
    let space = eternal(Scheme::PerVma);
    let other = Space { memory: space.memory, mm: Box::leak(Box::new(unopened(Scheme::PerVma))) };
    other.open().unwrap();
    let start = warm(space);
    at(Step::Found, move || {
        space.unmap(start, 8 * PAGE).unwrap();
        assert_eq!(other.map(8 * PAGE, Protection::ReadWrite), Ok(start));
        store(other, start, 1).unwrap();
    });
    assert_eq!(store(space, start + PAGE, 1), Err(Error::NotMapped));
    assert_eq!(count(space, Event::VmaLockAbort), 1);
}

#[test]
fn an_area_that_a_writer_will_lock_has_no_new_reader() {
    let space = eternal(Scheme::PerVma);
    let start = warm(space);
    let store = move || store_on_cpu_1(space, start + PAGE, || ());
    at(Step::ReadersGone, move || until_a_fault_gives_up(space, store));
    space.protect(start, 8 * PAGE, Protection::Read).unwrap();
}

/// The look at an area's lock before the reference is taken: readers leave the line of a locked area alone.
#[test]
fn an_area_that_is_locked_is_not_even_referred_to() {
    let space = eternal(Scheme::PerVma);
    let start = warm(space);
    let [reached] = Signal::several();
    let look = move || at(Step::BeforeReference, move || reached.give());
    let store = move || store_on_cpu_1(space, start + PAGE, look);
    at(Step::Marked, move || until_a_fault_gives_up(space, store));
    space.protect(start, 8 * PAGE, Protection::Read).unwrap();
    assert!(!reached.given(), "a reader went for the reference of an area that is locked");
}

#[test]
fn a_fault_beside_the_area_that_is_being_changed_is_served_meanwhile() {
    in_an_area(Scheme::PerVma, |space, start| {
        let other = space.map(PAGE, Protection::Read).unwrap();
        assert_eq!(load(space, other), Ok(0));
        let before = count(space, Event::VmaLockSuccess);
        // The semaphore is held for writing: a classic fault would wait forever.
        at(Step::Marked, move || store(space, start + 2 * PAGE, 1).unwrap());
        space.protect(other, PAGE, Protection::None).unwrap();
        assert_eq!(count(space, Event::VmaLockSuccess), before + 1);
    });
}

#[test]
fn an_area_that_a_writer_locks_before_a_reference_is_its_own() {
    in_an_area(Scheme::PerVma, |space, start| {
        at(Step::BeforeReference, move || {
            let (locked, is_locked) = channel();
            thread::spawn(move || {
                be(1);
                let lock = move || locked.send(()).unwrap();
                at(Step::Marked, move || until_a_fault_gives_up(space, lock));
                space.protect(start, 8 * PAGE, Protection::Read).unwrap();
            });
            is_locked.recv().unwrap();
        });
        assert_eq!(store(space, start + PAGE, 1), Err(Error::NotAllowed));
        assert_eq!(count(space, Event::VmaLockAbort), 1);
    });
}
