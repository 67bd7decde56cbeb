//! Slots in which vCPUs sleep in `pv_wait`, and in which a kick waits for a vCPU that does not sleep yet.
//!
//! A slot is one word: empty, a latched kick, or the vCPU that sleeps. Sleep and kick change it in one step each, and so
//! one of them comes first:
//! 1. The kick: it finds no sleeper and leaves the latch; the sleep finds the latch and does not happen.
//! 2. The sleep: the kick finds the sleeper and takes it out, to be made ready.
//!
//! No third order exists, so no kick is lost. Kicks that find the latch set are one kick with it, as in KVM.
//!
//! Every change is AcqRel, that of a latch to a latch too. Its partners are all other changes of the slot: they form one chain, so
//! that a vCPU that wakes, or does not sleep, has all that was written before any of the kicks that it takes. `tests/models.rs` has the
//! tests, under the model checker.
#![expect(unsafe_code, reason = "a box lies in a word that is exchanged without a lock")]

use std::marker::PhantomData;
use std::ptr;
use std::sync::Mutex;

use super::sync::{AtomicPtr, Ordering};

/// One slot for each vCPU of all guests; a vCPU that sleeps is a `Box<T>`. As a mutex around that, it may be shared if it may be sent.
pub(super) struct Sleepers<T>(Vec<Slot<T>>, PhantomData<Mutex<Box<T>>>);

/// A line of its own (two, since CPUs fetch pairs).
#[repr(align(128))]
struct Slot<T>(AtomicPtr<T>);

/// The latched kick: the address of nothing, as `T` is aligned.
fn latch<T>() -> *mut T {
    const { assert!(align_of::<T>() > 1) };
    ptr::without_provenance_mut(1)
}

impl<T> Slot<T> {
    /// Changes what is `seen` to `to`. What is there instead, if something is.
    fn change(&self, seen: *mut T, to: *mut T) -> Result<*mut T, *mut T> {
        // AcqRel: see the module. Relaxed where it fails: nothing is done with it before another change.
        self.0.compare_exchange(seen, to, Ordering::AcqRel, Ordering::Relaxed)
    }

    fn put(&self, task: Box<T>) -> Option<Box<T>> {
        let task = Box::into_raw(task);
        if self.change(ptr::null_mut(), task).is_ok() {
            return None;
        }
        // Only the owner of the vCPU takes the latch away.
        let taken = self.change(latch(), ptr::null_mut());
        debug_assert!(taken.is_ok(), "a vCPU sleeps twice");
        // SAFETY: from the box above, which did not get into the slot.
        Some(unsafe { Box::from_raw(task) })
    }

    /// Takes out the sleeper, or leaves what `otherwise` is there.
    fn take(&self, otherwise: *mut T) -> Option<Box<T>> {
        loop {
            // Relaxed: only compared.
            let seen = self.0.load(Ordering::Relaxed);
            let sleeps = !seen.is_null() && seen != latch();
            let to = if sleeps {
                ptr::null_mut()
            } else if otherwise.is_null() {
                seen
            } else {
                otherwise
            };
            if self.change(seen, to).is_ok() {
                // SAFETY: a sleeper comes from a box in `put`, and this thread alone has exchanged it for nothing. (If it is not the
                // sleep that was seen but a later one of the same box, it is as good.)
                return sleeps.then(|| unsafe { Box::from_raw(seen) });
            }
        }
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        drop(self.take(ptr::null_mut()));
    }
}

impl<T> Sleepers<T> {
    /// Slots for this number of vCPUs, none of which sleeps.
    pub(super) fn new(vcpus: usize) -> Self {
        Self((0..vcpus).map(|_| Slot(AtomicPtr::new(ptr::null_mut()))).collect(), PhantomData)
    }

    /// Case 1 without a sleep: takes a kick that came first. Whether there was one.
    pub(super) fn take_latch(&self, vcpu: u32) -> bool {
        let slot = &self.0[vcpu as usize];
        // Relaxed: what it misses `put` finds.
        slot.0.load(Ordering::Relaxed) == latch() && slot.change(latch(), ptr::null_mut()).is_ok()
    }

    /// Puts `vcpu` to sleep; `Some` in case 1: it is not to sleep.
    pub(super) fn put(&self, vcpu: u32, task: Box<T>) -> Option<Box<T>> {
        self.0[vcpu as usize].put(task)
    }

    /// Kicks `vcpu`: if it sleeps, here it is.
    pub(super) fn kick(&self, vcpu: u32) -> Option<Box<T>> {
        self.0[vcpu as usize].take(latch())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Shows `to` those that sleep, one after the other. Each is out of its slot for that moment: those that are kicked in it are
    /// `awake` afterwards.
    pub(super) fn look(&self, mut to: impl FnMut(u32, &T), mut awake: impl FnMut(Box<T>)) {
        for (slot, vcpu) in self.0.iter().zip(0..) {
            if let Some(task) = slot.take(ptr::null_mut()) {
                to(vcpu, &task);
                slot.put(task).into_iter().for_each(&mut awake);
            }
        }
    }

    pub(super) fn into_sleepers(self) -> impl Iterator<Item = Box<T>> {
        self.0.into_iter().filter_map(|slot| slot.take(ptr::null_mut()))
    }
}
