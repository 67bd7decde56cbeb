//! The memory that the locks of a run lie in.
//!
//! A run has locks of one kind, so that those of all kinds lie in the same place: none is nearer to something else than another.
#![expect(unsafe_code, reason = "places locks in a static")]

use core::cell::UnsafeCell;

use haltkick_hypercalls::MAX_LOCKS;

use crate::lock::kind::INSTANCE_BYTES;

#[repr(C, align(4096))]
struct Instances(UnsafeCell<[u8; MAX_LOCKS as usize * INSTANCE_BYTES]>);

// SAFETY: written by vCPU 0 before any other runs; from then on they are `Sync` locks, see `place`.
unsafe impl Sync for Instances {}

#[used]
#[unsafe(link_section = ".haltkick.hot")]
static INSTANCES: Instances = Instances(UnsafeCell::new([0; MAX_LOCKS as usize * INSTANCE_BYTES]));

/// Address of the first lock.
pub(super) fn address() -> usize {
    INSTANCES.0.get() as usize
}

/// Puts a free lock into each place, and says where the first lies. vCPU 0, before any other vCPU runs.
pub(super) fn place<L: Sync + 'static>(new: fn() -> L) -> usize {
    const { assert!(size_of::<L>() <= INSTANCE_BYTES && align_of::<L>() <= INSTANCE_BYTES) };
    let first = INSTANCES.0.get().cast::<u8>();
    for index in 0..MAX_LOCKS as usize {
        // SAFETY: within the static, aligned and large enough by the assertion; there is no reference to it
        // yet.
        unsafe { first.add(index * INSTANCE_BYTES).cast::<L>().write(new()) };
    }
    first as usize
}

/// Lock number 0, of the kind that this run has.
///
/// # Safety
/// `L` is what [`place`] has put there.
pub(super) unsafe fn first<L: Sync + 'static>() -> &'static L {
    // SAFETY: the caller's promise; the static lives as long as the guest.
    unsafe { &*INSTANCES.0.get().cast() }
}
