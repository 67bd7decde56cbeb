//! Queue spinlocks: 4 bytes, fair or hybrid, native or paravirtual.

mod domain;
mod native;
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri))))]
mod packed;
mod pv;
mod queue;
mod table;
mod virt;
mod word;

use core::marker::PhantomData;

use domain::Shared;
use word::LOCKED;

use crate::{
    Lock, Platform,
    sync::{AtomicU32, Ordering::*, const_unless_loom},
};

#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri))))]
pub use packed::Packed;
pub use {
    domain::QSpinDomain,
    native::Native,
    pv::{Pv, V16, WorkConserving},
    virt::VirtTas,
    word::{Whole, Word},
};

/// The best layout for this target.
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri))))]
pub type DefaultWord = Packed;
/// The best layout for this target.
#[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle, miri)))))]
pub type DefaultWord = Whole;

/// Queue spinlock: `M` says how it waits, `W` how its word is laid out.
pub struct QSpinLock<M, W = DefaultWord> {
    /// See [`word`] for its states.
    word: AtomicU32,
    kind: PhantomData<fn() -> (M, W)>,
}

impl<M: Mode, W: Word> QSpinLock<M, W> {
    const_unless_loom! {
        /// A free lock.
        #[expect(clippy::new_without_default, reason = "a lock is made in a static, where Default cannot be used")]
        pub const fn new() -> Self {
            Self { word: AtomicU32::new(0), kind: PhantomData }
        }
    }
}

/// How a queue spinlock waits and releases.
pub trait Mode: sealed::Sealed + 'static {
    /// Acquires a lock whose word was `seen` when it was not free.
    fn lock_slow<W: Word, P: Platform>(word: &AtomicU32, shared: Shared<'_, P>, seen: u32);

    /// Releases a held lock.
    fn unlock<W: Word, P: Platform>(word: &AtomicU32, shared: Shared<'_, P>);
}

mod sealed {
    /// Keeps [`Mode`](super::Mode) to the protocols that have been checked.
    pub trait Sealed {}
}

/// (0,0,0) -> (0,0,1). Acquire: pairs with unlock.
#[inline(always)]
fn try_lock(word: &AtomicU32) -> bool {
    // Relaxed: failing needs no ordering, and spares the line when the lock is held.
    word.load(Relaxed) == 0 && word.compare_exchange(0, LOCKED, Acquire, Relaxed).is_ok()
}

impl<M: Mode, W: Word, P: Platform, const CPUS: usize, const LINES: usize> Lock<QSpinDomain<P, CPUS, LINES>>
    for QSpinLock<M, W>
{
    type Token = ();

    #[inline(always)]
    fn lock(&self, domain: &QSpinDomain<P, CPUS, LINES>) {
        const { assert!(CPUS <= W::MAX_CPUS, "the tail of this layout cannot name so many CPUs") };
        // (0,0,0) -> (0,0,1). Acquire: pairs with unlock.
        if let Err(seen) = self.word.compare_exchange(0, LOCKED, Acquire, Relaxed) {
            M::lock_slow::<W, P>(&self.word, domain.shared(), seen);
        }
    }

    #[inline(always)]
    fn try_lock(&self, _: &QSpinDomain<P, CPUS, LINES>) -> Option<()> {
        try_lock(&self.word).then_some(())
    }

    #[inline(always)]
    fn unlock(&self, domain: &QSpinDomain<P, CPUS, LINES>, (): ()) {
        M::unlock::<W, P>(&self.word, domain.shared());
    }
}
