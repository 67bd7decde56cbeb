//! A counter that a lock under test protects.

#[cfg(not(loom))]
use std::cell::UnsafeCell;

use haltkick_locks::RwLock;
#[cfg(loom)]
use loom::cell::UnsafeCell;

use crate::threads::yield_now;

/// A counter that only a lock protects: unsynchronised on purpose. Where a lock fails, counts are lost, Miri reports a race, and
/// loom reports accesses that overlap, or that nothing orders.
#[derive(Debug)]
pub struct Plain(UnsafeCell<usize>);

#[expect(unsafe_code, reason = "what the lock under test protects")]
// SAFETY: this is the claim under test. Loom and shuttle run one thread at a time.
unsafe impl Sync for Plain {}

impl Default for Plain {
    fn default() -> Self {
        Self(UnsafeCell::new(0))
    }
}

#[expect(unsafe_code, reason = "what the lock under test protects")]
impl Plain {
    /// Adds one, in two steps with a chance to be overtaken in between.
    pub fn increment(&self) {
        // SAFETY: loom panics if another thread is inside.
        #[cfg(loom)]
        self.0.with_mut(|count| unsafe { *count += 1 });
        #[cfg(not(loom))]
        {
            // SAFETY: the claim under test, as above.
            let seen = unsafe { self.0.get().read_volatile() };
            if cfg!(shuttle) || seen % 64 == 0 {
                yield_now();
            }
            // SAFETY: the claim under test, as above.
            unsafe { self.0.get().write_volatile(seen + 1) };
        }
    }

    /// The count. The caller holds the lock, or all that increment it are done.
    pub fn get(&self) -> usize {
        // SAFETY: as above.
        #[cfg(loom)]
        return self.0.with(|count| unsafe { *count });
        // SAFETY: the claim under test, as above; or the threads that wrote have been joined.
        #[cfg(not(loom))]
        unsafe {
            self.0.get().read_volatile()
        }
    }
}

/// One section under a reader-writer lock. A reader must find that no CPU writes meanwhile, and that all `counters`, which are written
/// together, agree.
pub fn read_or_write<D, L: RwLock<D>>(domain: &D, lock: &L, counters: &[Plain], writes: bool) {
    if writes {
        let token = lock.write(domain);
        for counter in counters {
            counter.increment();
            // A reader that is inside sees the first one ahead.
            if cfg!(shuttle) || !cfg!(loom) && counter.get().is_multiple_of(64) {
                yield_now();
            }
        }
        lock.write_unlock(domain, token);
    } else {
        let token = lock.read(domain);
        let seen = counters[0].get();
        // Loom needs no chance: it reports accesses that overlap.
        if cfg!(shuttle) || !cfg!(loom) && seen.is_multiple_of(64) {
            yield_now();
        }
        assert!(
            counters.iter().all(|counter| counter.get() == seen),
            "a writer was inside together with a reader"
        );
        lock.read_unlock(domain, token);
    }
}
