//! `include/haltkick.h`, version 3, for Rust: what a lock object and Haltkick promise each other.
//!
//! A lock object in Rust is a `no_std` crate with this file as a module (`include!` or `#[path]`), a type that implements
//! [`RawLock`], and one use of [`haltkick_lock!`](crate::haltkick_lock). Compile it with
//!
//! ```text
//! rustc --edition 2024 -O --target x86_64-unknown-none --crate-type staticlib -C panic=abort -C relocation-model=static my_lock.rs
//! ```
//!
//! and measure `libmy_lock.a` with `haltkick run --lock-object libmy_lock.a`. The header has the whole contract; the names here are
//! its names without `hk_`.
#![allow(dead_code, reason = "no lock uses all of it")]

/// The version of the contract.
pub const VERSION: u32 = 3;

/// Most vCPUs there can be. They are numbered from 0.
pub const CPUS_MOST: usize = 1024;

/// A lock: what `lock_api::RawMutex` is, without its type of guards.
///
/// # Safety
/// `lock` returns, and `try_lock` returns true, only when no other vCPU holds the lock; and none may hold it until
/// `unlock`. A lock whose bytes are all zeros is free.
pub unsafe trait RawLock: Sync + Sized {
    /// Takes the lock.
    fn lock(&self);
    /// Takes the lock if it is free, and says whether it did.
    fn try_lock(&self) -> bool;
    /// # Safety
    /// The calling vCPU holds the lock.
    unsafe fn unlock(&self);
}

/// Activity of a vCPU, for Haltkick's account of preemptions by activity.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum State {
    /// It has released a lock, and is about to kick.
    Other = 0,
    /// It waits for a lock.
    Waiter = 2,
    /// It waits, and is the next.
    Head = 3,
}

// SAFETY: the contract: a lock may call each that is `safe` at any time, with any argument.
unsafe extern "C" {
    /// The clock, in ticks.
    #[link_name = "hk_now"]
    pub safe fn now() -> u64;
    /// Converts nanoseconds to ticks.
    #[link_name = "hk_ticks"]
    pub safe fn ticks(nanoseconds: u64) -> u64;
    /// How many ticks a waiter of a paravirtual form is to spin before it sleeps.
    #[link_name = "hk_spin_threshold"]
    pub safe fn spin_threshold() -> u64;
    /// The number that `--lock-parameter` gives, 0 without.
    #[link_name = "hk_parameter"]
    pub safe fn parameter() -> u32;
    /// Tells Haltkick what the vCPU does.
    #[link_name = "hk_announce"]
    pub safe fn announce(state: State);

    safe fn hk_cpu() -> u32;
    safe fn hk_cpus() -> u32;
    safe fn hk_locks() -> u32;
    safe fn hk_waits();
    safe fn hk_kick(cpu: u32);
    safe fn hk_is_preempted(cpu: u32) -> u32;
    safe fn hk_yield_to(cpu: u32);
    safe fn hk_yield_count(cpu: u32) -> u64;
    fn hk_wait(byte: *const u8, value: u8);
    fn hk_wait_u32(word: *const u32, value: u32);
    fn hk_fail(text: *const core::ffi::c_char) -> !;
}

/// Ends the run with exit code 5, because the lock has found a fault of its own; the text is printed.
pub fn fail(text: &core::ffi::CStr) -> ! {
    // SAFETY: the text ends with a zero byte.
    unsafe { hk_fail(text.as_ptr()) }
}

/// Number of the calling vCPU: `smp_processor_id`.
#[inline]
pub fn cpu() -> usize {
    hk_cpu() as usize
}

/// Number of vCPUs.
#[inline]
pub fn cpus() -> usize {
    hk_cpus() as usize
}

/// Number of locks.
#[inline]
pub fn locks() -> usize {
    hk_locks() as usize
}

/// One round of a spin loop: `cpu_relax`.
#[inline(always)]
pub fn pause() {
    hk_waits();
    core::hint::spin_loop();
}

/// `pv_wait`: sleeps while the byte has the value; may return for no reason.
#[inline]
pub fn wait(byte: &core::sync::atomic::AtomicU8, value: u8) {
    // SAFETY: a reference can be read.
    unsafe { hk_wait(byte.as_ptr(), value) }
}

/// [`wait`] for a word of four bytes.
#[inline]
pub fn wait_u32(word: &core::sync::atomic::AtomicU32, value: u32) {
    // SAFETY: as above.
    unsafe { hk_wait_u32(word.as_ptr(), value) }
}

/// `pv_kick`: ends the sleep of vCPU `cpu`; latched if it does not sleep.
#[inline]
pub fn kick(cpu: usize) {
    hk_kick(cpu as u32);
}

/// `vcpu_is_preempted`: whether the host has probably taken vCPU `cpu` off its pCPU.
#[inline]
pub fn is_preempted(cpu: usize) -> bool {
    hk_is_preempted(cpu as u32) != 0
}

/// Gives the rest of the slice to a vCPU, or to the next one.
#[inline]
pub fn yield_to(cpu: Option<usize>) {
    hk_yield_to(cpu.map_or(u32::MAX, |cpu| cpu as u32));
}

/// How often vCPU `cpu` went off and on its pCPU, so far as the host says.
#[inline]
pub fn yield_count(cpu: usize) -> u64 {
    hk_yield_count(cpu as u32)
}

/// Passes a point, such as `haltkick_point!("tail_published")`, at which `--deschedule at=tail-published` takes the vCPU off.
#[macro_export]
macro_rules! haltkick_point {
    ($name:literal) => {{
        unsafe extern "C" {
            fn hk_at_point(number: u32);
        }
        let number: u32;
        // SAFETY: the symbol stands for a number, which this puts into a register; and the contract, as above.
        unsafe {
            core::arch::asm!(concat!("mov {0:e}, offset hk_point_", $name), out(reg) number, options(pure, nomem, nostack));
            hk_at_point(number);
        }
    }};
}

/// Makes the object's functions of a type: `haltkick_lock!(MyLock)` for the native form, `haltkick_lock!(pv MyLock)` for the
/// paravirtual one, `haltkick_lock!(MyLock, pv MyPvLock)` for both, of two types of the same size and alignment.
#[macro_export]
macro_rules! haltkick_lock {
    ($lock:ty) => {
        $crate::haltkick_lock!(@size $lock);
        $crate::haltkick_lock!(@ $lock, "hk_lock", "hk_unlock", "hk_try_lock");
    };
    (pv $lock:ty) => {
        $crate::haltkick_lock!(@size $lock);
        $crate::haltkick_lock!(@ $lock, "hk_pv_lock", "hk_pv_unlock", "hk_pv_try_lock");
    };
    ($lock:ty, pv $paravirtual:ty) => {
        $crate::haltkick_lock!($lock);
        $crate::haltkick_lock!(@ $paravirtual, "hk_pv_lock", "hk_pv_unlock", "hk_pv_try_lock");
        const _: () = assert!(size_of::<$lock>() == size_of::<$paravirtual>());
        const _: () = assert!(align_of::<$lock>() == align_of::<$paravirtual>());
    };
    (@size $lock:ty) => {
        const _: () = {
            // SAFETY of all of them: the names are the contract's.
            #[unsafe(no_mangle)]
            static hk_version: u32 = VERSION;
            #[unsafe(no_mangle)]
            static hk_lock_size: u32 = size_of::<$lock>() as u32;
            #[unsafe(no_mangle)]
            static hk_lock_align: u32 = align_of::<$lock>() as u32;
        };
    };
    (@ $lock:ty, $take:literal, $release:literal, $try:literal) => {
        const _: () = {
            // SAFETY of all of them, names and contents: this is the contract; the lock's author vouches for it by `RawLock`, and
            // Haltkick calls them with the address of a lock of zeros.
            #[unsafe(export_name = $take)]
            extern "C" fn take(lock: &'static $lock) {
                RawLock::lock(lock);
            }
            #[unsafe(export_name = $release)]
            extern "C" fn release(lock: &'static $lock) {
                unsafe { RawLock::unlock(lock) };
            }
            #[unsafe(export_name = $try)]
            extern "C" fn try_take(lock: &'static $lock) -> i32 {
                i32::from(RawLock::try_lock(lock))
            }
        };
    };
}
