//! Zeroed memory for one structure.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

/// Zeroed memory for one structure that is written before anybody else looks, or is made of atomics.
#[repr(C, align(64))]
pub(super) struct Zeroed<T>(UnsafeCell<MaybeUninit<T>>);
#[expect(unsafe_code, reason = "a static that start-up code writes")]
// SAFETY: see the type; every use says why it is alone, or that the contents are atomics.
unsafe impl<T> Sync for Zeroed<T> {}

impl<T> Zeroed<T> {
    pub(super) const fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::zeroed()))
    }

    pub(super) const fn pointer(&self) -> *mut T {
        self.0.get().cast()
    }
}
