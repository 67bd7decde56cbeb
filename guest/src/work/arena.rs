//! Memory for what a workload builds at its start, one thing built by one vCPU for all, and the end of a run that is inspected
//! when all vCPUs have stopped.
#![expect(unsafe_code, reason = "hands out parts of a static, and shares what one vCPU has built in it")]

use core::any::Any;
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use haltkick_grants::Memory;

use crate::cpu::percpu::{boot, control, cpu};
use crate::monitor::hypercall;

/// Enough for 256 disks and 1024 vCPUs.
const BYTES: usize = 24 << 20;

/// A static that is given out from its beginning, and never taken back. Pages that are never written cost
/// nothing.
#[repr(C, align(4096))]
pub(crate) struct Arena {
    bytes: UnsafeCell<[u8; BYTES]>,
    used: AtomicUsize,
}

// SAFETY: `slice` gives each byte to one caller only.
unsafe impl Sync for Arena {}

pub(crate) static ARENA: Arena = Arena { bytes: UnsafeCell::new([0; BYTES]), used: AtomicUsize::new(0) };

impl Memory for Arena {
    fn slice<T: Sync>(&self, length: usize, mut make: impl FnMut(usize) -> T) -> &'static [T] {
        let bytes = length * size_of::<T>();
        // Relaxed: other vCPUs get the slice by other means.
        let claimed = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let start = used.next_multiple_of(align_of::<T>());
            start.checked_add(bytes).filter(|end| *end <= BYTES)
        });
        let Ok(used) = claimed else {
            panic!("the workload needs more than {} MiB: use fewer --locks or vCPUs", BYTES >> 20)
        };
        let start = used.next_multiple_of(align_of::<T>());
        // SAFETY: `start + bytes <= BYTES`. The arena is aligned to 4096, so `start` is as aligned as `T`.
        let first = unsafe { self.bytes.get().cast::<u8>().add(start) }.cast::<T>();
        const { assert!(align_of::<T>() <= 4096) };
        for index in 0..length {
            // SAFETY: within the bytes from `start` on, which `fetch_update` gave to this caller alone.
            unsafe { first.add(index).write(make(index)) };
        }
        // SAFETY: initialised above, in a static, and these bytes have no other owner.
        unsafe { core::slice::from_raw_parts(first, length) }
    }
}

/// Makes a value on vCPU 0, for all vCPUs; they wait until it is there, and then all are ready. Once in a run.
pub(crate) fn shared<T: Sync + 'static>(make: impl FnOnce() -> T) -> &'static T {
    type Made = &'static (dyn Any + Sync);
    static SHARED: AtomicPtr<Made> = AtomicPtr::new(ptr::null_mut());
    if cpu() == 0 {
        let mut make = Some(make);
        let made: Made = &ARENA.slice(1, |_| make.take().expect("one value is made")())[0];
        // Release: pairs with the acquire below.
        SHARED.store(ptr::from_ref(&ARENA.slice(1, |_| made)[0]).cast_mut(), Ordering::Release);
        (1..boot().vcpus).for_each(hypercall::kick);
    }
    let made: &'static dyn Any = loop {
        // SAFETY: null, or what vCPU 0 has stored, which stays where it is. Acquire: pairs with the release above.
        if let Some(made) = unsafe { SHARED.load(Ordering::Acquire).as_ref() } {
            break *made;
        }
        // The kick is latched if it came first.
        hypercall::wait();
    };
    // Relaxed: the VMM counts.
    control().ready.fetch_add(1, Ordering::Relaxed);
    made.downcast_ref().expect("a run has one workload and one lock, so all ask for one value")
}

/// This vCPU has finished what it was doing; the last to say so does `check`, and then the VMM ends the run.
///
/// For workloads with `CHECKS_AT_REST`.
pub(crate) fn come_to_rest(check: impl FnOnce()) {
    let control = control();
    // AcqRel: what each vCPU did comes before the check. The releases of all continue one sequence.
    if control.finished.fetch_add(1, Ordering::AcqRel) + 1 == boot().vcpus {
        check();
        // Release: pairs with the supervisor's acquire: results come before.
        control.at_rest.store(1, Ordering::Release);
    }
}
