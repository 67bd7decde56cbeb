//! Functions that the platform needs from any kernel.
#![expect(unsafe_code, reason = "the kernel's promises")]

use haltkick_qspin::Event;
#[cfg(feature = "checked")]
use haltkick_qspin::checks::{Checker, Context, Fault};

/// A kernel on x86-64, as its platform sees it.
///
/// # Safety
///
/// - It runs at CPL 0, where it can take interrupts if it has turned them on.
/// - [`cpu`](Kernel::cpu), [`pin`](Kernel::pin) and [`unpin`](Kernel::unpin) keep the promise of
///   [`TrustedCpu`](haltkick_qspin::TrustedCpu).
pub unsafe trait Kernel: Sync {
    /// The number of the calling CPU.
    fn cpu(&self) -> usize;

    /// Whether the calling CPU serves an NMI, or something that comes as unasked: then it never sleeps (see [`Platform::wait`](haltkick_qspin::Platform::wait)).
    #[inline(always)]
    fn is_in_nmi(&self) -> bool {
        false
    }

    /// See [`TrustedCpu::pin`](haltkick_qspin::TrustedCpu::pin).
    fn pin(&self);

    /// See [`TrustedCpu::unpin`](haltkick_qspin::TrustedCpu::unpin).
    fn unpin(&self);

    /// Ticks of the TSC in a millisecond: from [`tsc_khz`](crate::tsc_khz), or as the kernel has measured it.
    fn tsc_khz(&self) -> u64;

    /// See [`Platform::is_in_section`](haltkick_qspin::Platform::is_in_section): a kernel that counts its sections knows. True if unknown.
    #[inline(always)]
    fn is_in_section(&self) -> bool {
        true
    }

    /// See [`Platform::count`](haltkick_qspin::Platform::count).
    #[inline(always)]
    fn count(&self, event: Event, n: u64) {
        _ = (event, n);
    }

    /// See [`TrustedCpu::checks`](haltkick_qspin::TrustedCpu::checks).
    #[cfg(feature = "checked")]
    fn checks(&self) -> Option<Checker<'_>> {
        None
    }

    /// See [`TrustedCpu::context`](haltkick_qspin::TrustedCpu::context).
    #[cfg(feature = "checked")]
    fn context(&self) -> Option<Context> {
        None
    }

    /// See [`TrustedCpu::found`](haltkick_qspin::TrustedCpu::found): undoes the pin and panics by default.
    #[cfg(feature = "checked")]
    fn found(&self, fault: &Fault) {
        self.unpin();
        panic!("{fault}");
    }
}
