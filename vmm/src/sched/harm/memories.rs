//! Memories of made-up guests, kept for the next execution: to map them and to fault them in takes longer than to play.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::guest::memory::{LARGE_PAGE, Memory};

thread_local! {
    static KEPT: RefCell<BTreeMap<u32, Vec<Memory>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Memories of guests with `vcpus` vCPUs each.
pub(super) struct Memories {
    vcpus: u32,
    pub(super) all: Vec<Memory>,
}

impl Memories {
    /// Takes at least `count` memories of guests that take `locks` locks. The first `count` have empty shared state.
    pub(super) fn take(vcpus: u32, count: usize, locks: u32) -> Self {
        let mut all = KEPT.with_borrow_mut(|kept| kept.remove(&vcpus)).unwrap_or_default();
        all.iter().take(count).for_each(|memory| memory.clear_shared(locks));
        let more = count.saturating_sub(all.len());
        all.extend((0..more).map(|_| Memory::new(LARGE_PAGE * 3, vcpus, 0, 0).expect("a few pages")));
        Self { vcpus, all }
    }
}

impl Drop for Memories {
    fn drop(&mut self) {
        let all = std::mem::take(&mut self.all);
        KEPT.with_borrow_mut(|kept| kept.insert(self.vcpus, all));
    }
}
