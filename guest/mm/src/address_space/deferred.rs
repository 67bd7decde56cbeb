//! Areas that are given back when no fault can look at them: the speculative faults as they were before version
//! 5 of the series, under sleepable RCU instead of a reference for each fault.
//!
//! A fault counts itself in and out, on lines of its own CPU, and takes no lock and no reference. Slots of
//! areas that have left the tree wait in a list until every fault that began before is over: a grace period. It
//! goes on step by step, whenever a slot is deferred. The only CPU that waits for it is one that needs a slot
//! when there is none left.
//!
//! ```text
//! IDLE     a batch of slots is there    the waiting ones are those
//! BEGUN    the other counter is drained newcomers count by the other one
//! FLIPPED  the old counter is drained   the slots are free
//! ```
//!
//! # Why no fault finds a slot used anew
//!
//! 1. It has counted itself in before the sum was taken, by either counter: both are drained, one after the other, and
//!    it keeps one of the sums apart until it is over.
//! 2. The sum has missed it. Of its increment and its walk, and of the erasure and the sum, each with a full fence between,
//!    one must have seen the other: its walk finds the tree without the areas that wait.
//!
//! Two counters, since a stream of newcomers would keep one from ever being drained. The other one is looked at first for a
//! fault that has read the index long ago and counts itself in only now.

use haltkick_locks::mutant::mutant;

use super::page::Memory;
use crate::contract::{Event, Machine};
use crate::records::{AtomicU32, BEGUN, Deferred, FLIPPED, Faults, IDLE, NONE, Ordering::*, fence};

/// Slots that a grace period is begun for.
const BATCH: u32 = 16;

/// A fault that has counted itself in, by this counter.
#[derive(Clone, Copy)]
#[must_use = "no slot is given back as long as it is not counted out"]
pub(crate) struct Inside(usize);

impl<M: Machine> Memory<M> {
    /// From here to `leave` no area that this CPU finds in a tree is used anew.
    pub(crate) fn enter(&self) -> Inside {
        // Relaxed: an old number does; see above.
        let index = self.deferred.index.load(Relaxed) as usize;
        let entered = &self.of_this_cpu().faults.entered[index];
        // Relaxed: ordered by the fence, which pairs with that in `is_drained`.
        entered.store(entered.load(Relaxed).wrapping_add(1), Relaxed);
        fence(SeqCst);
        Inside(index)
    }

    pub(crate) fn leave(&self, Inside(index): Inside) {
        let left = &self.of_this_cpu().faults.left[index];
        // Release: pairs with the acquire in `is_drained`. Who counts this fault as over finds it done with every area.
        left.store(left.load(Relaxed).wrapping_add(1), Release);
    }

    /// Whether every fault that has counted itself in by this counter is over.
    fn is_drained(&self, index: usize) -> bool {
        let sum = |counter: fn(&Faults) -> &[AtomicU32; 2], ordering| {
            let counters = self.records.cpus.iter().map(|list| counter(&list.faults)[index].load(ordering));
            counters.fold(0, u32::wrapping_add)
        };
        // These first: a fault that comes and goes between the sums counts as inside.
        let left = sum(|faults| &faults.left, Acquire);
        // Pairs with the fence in `enter`.
        fence(SeqCst);
        mutant!("srcu-no-wait": left == sum(|faults| &faults.entered, Relaxed) => true)
    }

    /// Gives back a slot that has left its tree, once no fault can look at it.
    pub(crate) fn defer_vma(&self, index: u32) {
        self.machine.event(Event::VmaDeferred, 1);
        self.locked(&self.lock, || self.push_vma(&self.deferred.next, index));
        self.advance(BATCH);
    }

    /// Goes as many steps on as can be gone at once, unless another CPU is at it. Begins with `batch` slots or more.
    pub(crate) fn advance(&self, batch: u32) {
        let deferred = &self.deferred;
        // Acquire: pairs with the release below.
        if deferred.busy.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            return;
        }
        // Relaxed: the CPU at work changes them alone.
        let phase = || deferred.phase.load(Relaxed);
        let index = deferred.index.load(Relaxed);
        let other = (index ^ 1) as usize;
        if phase() == IDLE && self.begin(batch) {
            deferred.phase.store(BEGUN, Relaxed);
        }
        if phase() == BEGUN && self.is_drained(other) {
            deferred.index.store(index ^ 1, Relaxed);
            deferred.phase.store(FLIPPED, Relaxed);
        }
        if phase() == FLIPPED && self.is_drained((deferred.index.load(Relaxed) ^ 1) as usize) {
            self.free_waiting();
            deferred.phase.store(IDLE, Relaxed);
            self.machine.event(Event::VmaGracePeriod, 1);
        }
        deferred.busy.store(0, Release);
    }

    /// Makes those that wait for the next grace period those of this one, if they are enough.
    fn begin(&self, batch: u32) -> bool {
        let Deferred { waiting, next, .. } = &self.deferred;
        self.locked(&self.lock, || {
            let begins = next.length() >= batch;
            if begins {
                waiting.first.store(next.first.load(Relaxed), Relaxed);
                waiting.length.store(next.length(), Relaxed);
                next.first.store(NONE, Relaxed);
                next.length.store(0, Relaxed);
            }
            begins
        })
    }

    fn free_waiting(&self) {
        self.locked(&self.lock, || {
            while let Some(index) = self.pop_vma(&self.deferred.waiting) {
                self.push_vma(&self.vmas, index);
            }
        });
    }
}
