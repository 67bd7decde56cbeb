//! Locks that the VMM has linked behind the image: other people's object files (docs/lock-objects.md).
//!
//! Their code is called at the same sites as that of the image's own locks, and what is around a section is the same. All that
//! the guest knows of them is what the VMM has written into [`OBJECTS`].
#![expect(unsafe_code, reason = "functions whose addresses the VMM has written into the image")]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use haltkick_hypercalls::{BootFlags, LockObject, LockObjects, MAX_OBJECTS, PANIC_NO_MEMORY};

use crate::cpu::percpu::{self, boot};
use crate::image::locks;
use crate::lock::calls::{Calls, TryFunction};

#[used]
#[unsafe(link_section = ".haltkick.objects")]
static OBJECTS: LockObjects = LockObjects {
    end: AtomicU64::new(0),
    objects: [const {
        LockObject {
            functions: [const { [const { AtomicU64::new(0) }; 4] }; 2],
            try_lock: [const { AtomicU64::new(0) }; 2],
            init: AtomicU64::new(0),
            lock_bytes: AtomicU32::new(0),
            cpu_bytes: AtomicU32::new(0),
            heap: [const { AtomicU64::new(0) }; 2],
        }
    }; MAX_OBJECTS],
};

/// Returns the end of everything that was linked behind the image; 0: nothing was.
pub(crate) fn end() -> u64 {
    // Relaxed, here and below: written before the image was loaded.
    OBJECTS.end.load(Ordering::Relaxed)
}

/// The object of this run's lock; objects are numbered on from the image's own locks.
fn of_run() -> Option<&'static LockObject> {
    OBJECTS.objects.get((boot().lock as usize).checked_sub(locks().len())?)
}

fn address(word: &AtomicU64) -> *const () {
    word.load(Ordering::Relaxed) as *const ()
}

/// How this run's lock is called. One without readers of its own has readers that exclude each other.
pub(crate) fn calls(paravirt: bool) -> Calls {
    let object = of_run().expect("the VMM checked that there is such a lock");
    let [lock, unlock, read, read_unlock] =
        object.functions.each_ref().map(|form| form.each_ref().map(address))[usize::from(paravirt)];
    let or = |one: *const (), other| if one.is_null() { other } else { one };
    // SAFETY: addresses of functions that their author has written to this contract (include/haltkick.h), as the VMM found
    // them by their names; null where there is none.
    unsafe {
        Calls {
            lock: function(lock),
            unlock: function(unlock),
            read: function(or(read, lock)),
            read_unlock: function(or(read_unlock, unlock)),
            lock_bytes: object.lock_bytes.load(Ordering::Relaxed),
            cpu_bytes: object.cpu_bytes.load(Ordering::Relaxed),
        }
    }
}

/// Returns the function by which this run's lock is taken if it is free, where there is one.
pub(crate) fn try_lock() -> Option<TryFunction> {
    let paravirt = boot().flags.has(BootFlags::PARAVIRT);
    // SAFETY: as in `calls`.
    unsafe { function(address(&of_run()?.try_lock[usize::from(paravirt)])) }
}

/// The function at an address; `None` at null.
///
/// # Safety
/// `F` is the type of a function, and one of that type is at the address, if that is not null.
unsafe fn function<F>(address: *const ()) -> Option<F> {
    const { assert!(size_of::<Option<F>>() == size_of::<*const ()>()) };
    // SAFETY: the caller's promise; null is `None`.
    unsafe { core::mem::transmute_copy(&address) }
}

/// Memory that an `hk_init` takes for its locks, from the first free address to the end. Both are 0 but while it runs.
static HEAP: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Makes free locks of the zeros at these addresses, where that takes more than nothing. By vCPU 0, before any other vCPU runs.
pub(crate) fn init(locks: impl Iterator<Item = usize>) {
    type Init = unsafe extern "C" fn(*mut ());
    let Some(object) = of_run() else { return };
    // SAFETY: as in `calls`.
    let Some(init) = (unsafe { function::<Init>(address(&object.init)) }) else { return };
    for (mine, given) in HEAP.iter().zip(&object.heap) {
        mine.store(given.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    for lock in locks {
        // SAFETY: its contract: the address of a lock's memory, which is not in use yet.
        unsafe { init(lock as *mut ()) };
    }
    HEAP.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

/// Takes zeros for a lock that is being made; `align` is a power of two.
pub(crate) fn allocate(bytes: u64, align: u64) -> u64 {
    let [first, end] = HEAP.each_ref().map(|word| word.load(Ordering::Relaxed));
    assert!(end != 0, "hk_alloc: only hk_init may call it");
    assert!(align.is_power_of_two(), "hk_alloc: an alignment of {align} is no power of two");
    let taken = first.checked_next_multiple_of(align).and_then(|it| Some((it, it.checked_add(bytes)?)));
    match taken {
        Some((address, next)) if next <= end => {
            HEAP[0].store(next, Ordering::Relaxed);
            address
        }
        _ => {
            // Relaxed: this vCPU's own, which the VMM reads after its last exit.
            percpu::this().report.error_code.store(PANIC_NO_MEMORY, Ordering::Relaxed);
            panic!("hk_alloc: {bytes} bytes more than are left: HK_ALLOC_MOST is for all locks")
        }
    }
}
