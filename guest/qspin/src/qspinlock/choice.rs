//! Sources of the choice between native and paravirtual locks.
#![expect(
    unsafe_code,
    reason = "a choice that changes breaks exclusion, and one that is in the code releases locks itself"
)]

/// Whether the locks of a kernel are paravirtual.
///
/// # Safety
///
/// The answer is the same for all CPUs, and changes only while no lock that asks is held or waited for.
pub unsafe trait Choice: 'static {
    /// Whether they are.
    fn is_paravirtual() -> bool;

    /// Stores 0 in `byte`, which releases a native lock, unless locks are paravirtual; whether they are. Release: no access moves past it.
    ///
    /// # Safety
    ///
    /// `byte` is the locked byte of a [`Packed`](crate::Packed) word whose lock the caller holds.
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri, liveness))))]
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn clear_unless_paravirtual(byte: *mut u8) -> bool {
        let is_paravirtual = Self::is_paravirtual();
        if !is_paravirtual {
            // SAFETY: the caller's promise; `packed` says why the access may race with 32-bit atomics. Memory is clobbered.
            unsafe {
                core::arch::asm!("mov byte ptr [{}], 0", in(reg) byte, options(nostack, preserves_flags))
            };
        }
        is_paravirtual
    }
}
