//! What the platform asks of any kernel.
#![expect(unsafe_code, reason = "the kernel's promises")]

use haltkick_locks::Event;

/// A kernel on x86-64, as its platform sees it.
///
/// # Safety
///
/// - It runs at CPL 0, where it can take interrupts if it has turned them on.
/// - [`cpu`](Kernel::cpu), [`pin`](Kernel::pin) and [`unpin`](Kernel::unpin) keep the promise of
///   [`TrustedCpu`](haltkick_locks::TrustedCpu).
pub unsafe trait Kernel: Sync {
    /// The number of the calling CPU.
    fn cpu(&self) -> usize;

    /// Whether the calling CPU serves an NMI, or something that comes as unasked: then it never sleeps (see [`Platform::wait`](haltkick_locks::Platform::wait)).
    #[inline(always)]
    fn is_in_nmi(&self) -> bool {
        false
    }

    /// See [`TrustedCpu::pin`](haltkick_locks::TrustedCpu::pin).
    #[inline(always)]
    fn pin(&self) {}

    /// See [`TrustedCpu::unpin`](haltkick_locks::TrustedCpu::unpin).
    #[inline(always)]
    fn unpin(&self) {}

    /// See [`Platform::count`](haltkick_locks::Platform::count).
    #[inline(always)]
    fn count(&self, event: Event, n: u64) {
        _ = (event, n);
    }
}
