//! Functions that the image offers to lock objects (declared in include/haltkick.h), and the numbers that its
//! inline functions are made of. The VMM binds an object's undefined symbols to this table.
#![expect(unsafe_code, reason = "functions with names for linkers, called with other people's pointers")]

use core::ffi::{CStr, c_char};
use core::hint::spin_loop;
use core::ptr::without_provenance;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use haltkick_hypercalls::{ACTIVITY_HEAD, CPU_OFFSET, Import};
use haltkick_locks::{Activity, Platform as _, Point};

use crate::cpu::{percpu, time};
use crate::image::padded;
use crate::lock::object;
use crate::lock::platform::{self, GUEST};
use crate::observe::activity;

// Functions that compilers call by themselves.
unsafe extern "C" {
    fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8;
    fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8;
    fn memset(to: *mut u8, byte: i32, bytes: usize) -> *mut u8;
    fn memcmp(one: *const u8, other: *const u8, bytes: usize) -> i32;
}

#[repr(transparent)]
struct Row(Import);

// SAFETY: numbers that only the VMM reads, from the file; the guest never follows them.
unsafe impl Sync for Row {}

const fn import(name: &str, value: *const ()) -> Row {
    Row(Import { name: padded(name), value })
}

/// Declares the functions that are one expression, and the table: a number, then these and others under their own names.
macro_rules! imports {
    ($first:literal = $number:expr; $($other:ident)+;
     $($(#[$doc:meta])* fn $function:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $answer:expr;)+) => {
        $($(#[$doc])*
        extern "C" fn $function($($argument: $type),*) $(-> $result)? {
            $answer
        })+

        #[used]
        #[unsafe(link_section = ".haltkick.imports")]
        static IMPORTS: [Row; 1 + [$(stringify!($other),)+ $(stringify!($function)),+].len()] = [
            import($first, without_provenance($number)),
            $(import(stringify!($other), $other as *const ()),)+
            $(import(stringify!($function), $function as *const ())),+
        ];
    };
}

imports! {
    // The offset from GS at which each vCPU finds its index, for the header's inline function.
    "hk_cpu_at" = CPU_OFFSET;
    hk_wait hk_wait_u32 hk_waits hk_pause hk_announce hk_count_event hk_at_point hk_fail memcpy memmove memset memcmp;

    /// Number of vCPUs.
    fn hk_cpus() -> u32 = percpu::boot().vcpus;
    /// Number of locks.
    fn hk_locks() -> u32 = percpu::boot().lock_count;
    /// The number that was given for locks of this kind.
    fn hk_parameter() -> u32 = percpu::boot().lock_parameter;
    /// Allocates zeroed memory for a lock, in `hk_init`; ends the run if too little is left.
    fn hk_alloc(bytes: u64, align: u64) -> u64 = object::allocate(bytes, align);
    /// Index of the calling vCPU, for languages without the header.
    fn hk_cpu() -> u32 = percpu::cpu() as u32;
    /// The clock, in ticks.
    fn hk_now() -> u64 = time::now();
    /// Converts nanoseconds to ticks.
    fn hk_ticks(nanoseconds: u64) -> u64 = GUEST.ticks(nanoseconds);
    /// How many ticks a paravirtual waiter is to spin before it sleeps.
    fn hk_spin_threshold() -> u64 = GUEST.spin_threshold();
    /// How many rounds it is to spin instead; 0: it goes by the clock.
    fn hk_spin_rounds() -> u32 = GUEST.spin_rounds();
    /// Wakes vCPU `cpu`; latched if it does not sleep.
    fn hk_kick(cpu: u32) = GUEST.kick(existing("hk_kick", cpu));
    /// Whether the host says that vCPU `cpu` lost its pCPU.
    fn hk_is_preempted(cpu: u32) -> u32 = u32::from(GUEST.is_preempted(existing("hk_is_preempted", cpu)));
    /// Gives up the rest of the slice, to vCPU `cpu`, or to any vCPU if that number does not exist.
    fn hk_yield_to(cpu: u32) = GUEST.yield_to((cpu < percpu::boot().vcpus).then_some(cpu as usize));
    /// Number that changes whenever vCPU `cpu` goes off its pCPU or on, as far as the host says.
    fn hk_yield_count(cpu: u32) -> u64 = platform::yield_count(existing("hk_yield_count", cpu));
    /// Returns the ticks until the host takes the calling vCPU off; all ones: unknown.
    fn hk_slice_left() -> u64 = GUEST.slice_left();
    /// How many ticks must be left of a slice for a section to be worth entering.
    fn hk_slice_margin() -> u64 = GUEST.slice_margin();
}

/// The index of vCPU `cpu`, by which `function` was called. Ends the run if there is none.
#[inline(always)]
fn existing(function: &str, cpu: u32) -> usize {
    assert!(cpu < percpu::boot().vcpus, "{function}: there is no vCPU {cpu}");
    cpu as usize
}

/// Tells the VMM that this vCPU waits, unless it has said that it is the head of its queue.
extern "C" fn hk_waits() {
    // Relaxed: this vCPU's own.
    if percpu::this().activity.state.load(Ordering::Relaxed) != ACTIVITY_HEAD {
        activity::announce(Activity::Waiter);
    }
}

/// One round of a spin loop, for languages without the header, which has it inline.
extern "C" fn hk_pause() {
    hk_waits();
    spin_loop();
}

/// Sleeps while the byte has the value, until the next kick; may return for no reason.
///
/// # Safety
/// `byte` can be read.
unsafe extern "C" fn hk_wait(byte: *const AtomicU8, value: u8) {
    // SAFETY: the caller's promise. Acquire: what the waker wrote before the byte is there when the waiter has seen it.
    GUEST.wait(|| unsafe { &*byte }.load(Ordering::Acquire) == value);
}

/// [`hk_wait`] for a word of four bytes.
///
/// # Safety
/// `word` can be read.
unsafe extern "C" fn hk_wait_u32(word: *const AtomicU32, value: u32) {
    // SAFETY: as above.
    GUEST.wait(|| unsafe { &*word }.load(Ordering::Acquire) == value);
}

/// Tells the VMM what this vCPU does; all but the known states are no state.
extern "C" fn hk_announce(state: u32) {
    let states = [Activity::Other, Activity::Holder, Activity::Waiter, Activity::Head];
    if let Some(&state) = states.get(state as usize) {
        activity::announce(state);
    }
}

/// Counts `n` events in a slot.
extern "C" fn hk_count_event(slot: u32, n: u64) {
    if let Some(counter) = percpu::this().results.lock_events.get(slot as usize) {
        percpu::add(counter, n);
    }
}

/// Passes a point, at which the VMM may take the vCPU off (`--deschedule at=`).
extern "C" fn hk_at_point(point: u32) {
    if point < u64::BITS {
        platform::pass(point, Point::ALL.get(point as usize).and_then(|point| point.activity()));
    }
}

/// Ends the run, because the object has found a fault of its own.
///
/// # Safety
/// `text` ends with a zero byte.
unsafe extern "C" fn hk_fail(text: *const c_char) -> ! {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    panic!("{}", text.to_str().unwrap_or("hk_fail, with a text that is no UTF-8"))
}
