//! Locks that the VMM has linked behind the image: other people's object files (docs/lock-objects.md).
//!
//! Their code is called at the same sites as that of the image's own locks, and what is around a section is the same. All that
//! the guest knows of them is what the VMM has written into [`OBJECTS`].
#![expect(unsafe_code, reason = "functions whose addresses the VMM has written into the image")]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use haltkick_hypercalls::{LockObject, LockObjects, MAX_OBJECTS};

use crate::cpu::percpu::boot;
use crate::lock::calls::{Calls, LockFunction, UnlockFunction};
use crate::lock::tables::locks;

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
    Calls {
        lock: acquires(lock),
        unlock: releases(unlock),
        read: acquires(or(read, lock)),
        read_unlock: releases(or(read_unlock, unlock)),
        section: None,
        lock_bytes: object.lock_bytes.load(Ordering::Relaxed),
        cpu_bytes: object.cpu_bytes.load(Ordering::Relaxed),
    }
}

fn acquires(address: *const ()) -> Option<LockFunction> {
    // SAFETY: null is `None`. All else is the address of a function that its author has written to this contract
    // (include/haltkick.h), as the VMM found it by its name.
    unsafe { core::mem::transmute::<*const (), Option<LockFunction>>(address) }
}

fn releases(address: *const ()) -> Option<UnlockFunction> {
    // SAFETY: as above.
    unsafe { core::mem::transmute::<*const (), Option<UnlockFunction>>(address) }
}

/// Makes a free lock of the zeros at `lock`, where that takes more than nothing.
pub(crate) fn init(lock: usize) {
    type Init = unsafe extern "C" fn(*mut ());
    let address = of_run().map_or(core::ptr::null(), |object| address(&object.init));
    // SAFETY: as in `acquires`.
    let init = unsafe { core::mem::transmute::<*const (), Option<Init>>(address) };
    if let Some(init) = init {
        // SAFETY: its contract: the address of a lock's memory, which is not in use yet.
        unsafe { init(lock as *mut ()) };
    }
}
