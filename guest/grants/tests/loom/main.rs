//! Every interleaving and every permitted reordering around shared entries, windows and frames, which shuttle, whose memory is
//! sequentially consistent, knows nothing of.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p haltkick-grants --test loom`
//!
//! The sources of the crate's own modules, over loom's atomics. `data` is the content of a page: the new owner
//! must find what was written before.

#![cfg(loom)]
#![expect(unreachable_pub, reason = "what the crate shows to others is this test's own here")]

#[expect(dead_code, reason = "not every part of a page table in miniature has an order of its own")]
#[path = "../../src/machine/frames.rs"]
mod frames;
#[expect(dead_code, reason = "swaps and hostile writes have no order")]
#[path = "../../src/tables/shared.rs"]
mod shared;
#[expect(dead_code, reason = "more statuses than are met here")]
#[path = "../../src/interface/status.rs"]
mod status;
#[expect(dead_code, reason = "looks at rest have no order")]
#[path = "../../src/machine/window.rs"]
mod window;

/// Atomics of the modules.
mod locking {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

/// How they fail.
mod interface {
    pub(crate) use super::status::Status;
}

/// As the crate's own.
pub(crate) trait Memory {
    fn slice<T: Sync>(&self, length: usize, make: impl FnMut(usize) -> T) -> &'static [T];
}

use frames::Frames;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;
use shared::{ACCEPT_TRANSFER, PERMIT_ACCESS, READING, SharedEntry, TRANSFER_COMPLETED, WRITING};
use window::{Tlb, Window};

/// Memory that is never given back.
struct Heap;

impl Memory for Heap {
    fn slice<T: Sync>(&self, length: usize, make: impl FnMut(usize) -> T) -> &'static [T] {
        (0..length).map(make).collect::<Vec<_>>().leak()
    }
}

/// The domains.
const MAPPER: u16 = 0;
const GRANTER: u16 = 1;

/// Lets `first` and `second` run at once on what `make` has made.
fn both<T: Send + Sync + 'static>(
    make: impl Fn() -> T + Send + Sync + 'static,
    first: impl Fn(&T) + Copy + Send + Sync + 'static,
    second: impl Fn(&T) + Copy + Send + Sync + 'static,
) {
    loom::model(move || {
        let made = Arc::new(make());
        let other = made.clone();
        let thread = thread::spawn(move || first(&other));
        second(&made);
        thread.join().unwrap();
    });
}

/// An entry, and the page that it grants.
struct Granted {
    entry: SharedEntry,
    data: AtomicU32,
}

impl Granted {
    fn new() -> Self {
        Self { entry: SharedEntry::new(), data: AtomicU32::new(0) }
    }

    /// With a grant that is in use for writing.
    fn mapped() -> Self {
        let granted = Self::new();
        granted.entry.publish(MAPPER, PERMIT_ACCESS, 7);
        assert_eq!(granted.entry.set_in_use(MAPPER, true, || ()), Ok(7));
        granted
    }
}

#[test]
fn who_marks_an_entry_finds_frame_and_page_as_published() {
    both(
        Granted::new,
        |granted| {
            granted.data.store(1, Relaxed);
            granted.entry.publish(MAPPER, PERMIT_ACCESS, 7);
        },
        |granted| {
            if let Ok(frame) = granted.entry.set_in_use(MAPPER, false, || ()) {
                assert_eq!((frame, granted.data.load(Relaxed)), (7, 1));
            }
        },
    );
}

#[test]
fn who_takes_a_grant_back_finds_what_was_done_to_its_page() {
    both(
        Granted::mapped,
        |granted| {
            granted.data.store(1, Relaxed);
            granted.entry.clear(READING | WRITING);
        },
        |granted| {
            if granted.entry.revoke() {
                assert_eq!(granted.data.load(Relaxed), 1);
            }
        },
    );
}

#[test]
fn who_sees_that_a_page_is_not_in_use_finds_its_content() {
    both(
        Granted::mapped,
        |granted| {
            granted.data.store(1, Relaxed);
            granted.entry.clear(READING | WRITING);
        },
        |granted| {
            if granted.entry.word() & (READING | WRITING) == 0 {
                assert_eq!(granted.data.load(Relaxed), 1);
            }
        },
    );
}

#[test]
fn who_sees_that_a_page_has_arrived_finds_number_and_content() {
    let place = || {
        let granted = Granted::new();
        granted.entry.publish(GRANTER, ACCEPT_TRANSFER, 3);
        assert_eq!(granted.entry.commit_transfer(GRANTER, || ()), Ok(3));
        granted
    };
    both(
        place,
        |granted| {
            granted.data.store(1, Relaxed);
            granted.entry.complete_transfer(9);
        },
        |granted| {
            if granted.entry.word() & TRANSFER_COMPLETED != 0 {
                assert_eq!((granted.entry.frame(), granted.data.load(Relaxed)), (9, 1));
            }
        },
    );
}

#[test]
fn who_finds_a_mapping_finds_the_page_as_mapped() {
    both(
        || (Window::new(&Heap, 1), AtomicU32::new(0)),
        |(window, data)| {
            data.store(1, Relaxed);
            window.install(0, 5, true);
        },
        |(window, data)| {
            if let Some(frame) = window.translate(&Tlb::new(), 0).frame() {
                assert_eq!((frame, data.load(Relaxed)), (5, 1));
            }
        },
    );
}

/// A vCPU that has seen the new epoch and caches the removed entry anew would keep it forever.
#[test]
fn what_was_removed_is_not_cached_after_the_invalidation() {
    loom::model(|| {
        let window = Arc::new(Window::new(&Heap, 1));
        window.install(0, 5, true);
        let remover = {
            let window = window.clone();
            thread::spawn(move || {
                window.remove(0);
                window.invalidate();
            })
        };
        let tlb = Tlb::new();
        window.translate(&tlb, 0);
        remover.join().unwrap();
        assert_eq!(window.translate(&tlb, 0).frame(), None);
    });
}

#[test]
fn who_holds_a_frame_finds_what_its_last_owner_wrote() {
    both(
        || (Frames::new(&Heap, 1), AtomicU32::new(0)),
        |(frames, data)| {
            data.store(1, Relaxed);
            frames.assign(0, GRANTER);
        },
        |(frames, data)| {
            if frames.hold(0, GRANTER).is_ok() {
                assert_eq!(data.load(Relaxed), 1);
            }
        },
    );
}

#[test]
fn who_takes_a_frame_away_finds_its_holders_changes() {
    let held = || {
        let frames = Frames::new(&Heap, 1);
        frames.assign(0, GRANTER);
        frames.hold(0, GRANTER).unwrap();
        (frames, AtomicU32::new(0))
    };
    both(
        held,
        |(frames, data)| {
            data.store(1, Relaxed);
            frames.release(0);
        },
        |(frames, data)| {
            if frames.steal(0, GRANTER).is_ok() {
                assert_eq!(data.load(Relaxed), 1);
            }
        },
    );
}
