//! Every interleaving and every permitted reordering around shared entries, windows and frames, which shuttle, whose memory is
//! sequentially consistent, knows nothing of.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p haltkick-grants --test loom`
//!
//! The sources of the crate's own modules, over loom's atomics. A page has content, too: the new owner must find
//! what was written before.

#![cfg(loom)]
#![expect(unreachable_pub, reason = "what the crate shows to others is this test's own here")]

#[expect(dead_code, reason = "not every part of a page table in miniature has an order of its own")]
#[path = "../../src/machine/frames.rs"]
mod frames;
#[expect(dead_code, reason = "more statuses than are met here, and no requests")]
#[path = "../../src/interface/mod.rs"]
mod interface;
#[expect(dead_code, reason = "swaps and hostile writes have no order")]
#[path = "../../src/tables/shared.rs"]
mod shared;
#[expect(dead_code, reason = "looks at rest have no order")]
#[path = "../../src/machine/window.rs"]
mod window;

/// Atomics of the modules.
mod locking {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

/// As the crate's own.
pub(crate) trait Memory {
    fn slice<T: Sync>(&self, length: usize, make: impl FnMut(usize) -> T) -> &'static [T];
}

use frames::Frames;
use haltkick_testing::play_once;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;
use shared::{PERMIT_ACCESS, READING, SharedEntry, WRITING};
use window::{Tlb, Window};

/// Memory that is never given back.
struct Heap;

impl Memory for Heap {
    fn slice<T: Sync>(&self, length: usize, make: impl FnMut(usize) -> T) -> &'static [T] {
        (0..length).map(make).collect::<Vec<_>>().leak()
    }
}

const MAPPER: u16 = 0;
const GRANTER: u16 = 1;

/// A thread for which `finds` says that the thing was handed over sees the content that was written before `hand_over`.
fn finds_content<T: Send + Sync + 'static>(
    make: impl Fn() -> T + Send + Sync + 'static,
    hand_over: impl Fn(&T) + Copy + Send + Sync + 'static,
    finds: impl Fn(&T) -> bool + Copy + Send + Sync + 'static,
) {
    let play = move |cpu, (made, content): &(T, AtomicU32)| {
        if cpu == 1 {
            content.store(1, Relaxed);
            hand_over(made);
        } else if finds(made) {
            assert_eq!(content.load(Relaxed), 1);
        }
    };
    loom::model(move || play_once(2, (make(), AtomicU32::new(0)), play, |_| ()));
}

/// An entry whose grant is in use for writing.
fn mapped() -> SharedEntry {
    let entry = SharedEntry::new();
    entry.publish(MAPPER, PERMIT_ACCESS, 7);
    assert_eq!(entry.set_in_use(MAPPER, true, || ()), Ok(7));
    entry
}

#[test]
fn who_marks_an_entry_finds_frame_and_page_as_published() {
    let publish = |entry: &SharedEntry| entry.publish(MAPPER, PERMIT_ACCESS, 7);
    finds_content(SharedEntry::new, publish, |entry| {
        let frame = entry.set_in_use(MAPPER, false, || ());
        frame.is_ok_and(|frame| frame == 7 || panic!("frame {frame}"))
    });
}

#[test]
fn who_takes_a_grant_back_finds_what_was_done_to_its_page() {
    finds_content(mapped, |entry| entry.clear(READING | WRITING), SharedEntry::revoke);
}

#[test]
fn who_sees_that_a_page_is_not_in_use_finds_its_content() {
    let is_free = |entry: &SharedEntry| entry.word() & (READING | WRITING) == 0;
    finds_content(mapped, |entry| entry.clear(READING | WRITING), is_free);
}

#[test]
fn who_finds_a_mapping_finds_the_page_as_mapped() {
    finds_content(
        || Window::new(&Heap, 1),
        |window| window.install(0, 5, true),
        |window| {
            let frame = window.translate(&Tlb::new(), 0).frame();
            frame.is_some_and(|frame| frame == 5 || panic!("frame {frame}"))
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
    let holds = |frames: &Frames| frames.hold(0, GRANTER).is_ok();
    finds_content(|| Frames::new(&Heap, 1), |frames| frames.assign(0, GRANTER), holds);
}
