//! Hyper-V: the idle register, the kernel's own interrupts, and the notice of a long spin.
//!
//! A CPU that waits turns interrupts off, looks, and reads the register `HV_X64_MSR_GUEST_IDLE`: it sleeps until an interrupt comes for
//! it, and be it masked. Whoever releases the lock sends it one. Hyper-V does not say whether another CPU is preempted; instead,
//! [`yield_to`](Platform::yield_to) tells it that this one spins in vain.
#![expect(unsafe_code, reason = "the kernel's promises, and privileged instructions")]

mod features;
mod hypercall;

use core::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use haltkick_locks::Platform;

pub use self::features::Features;
use crate::{
    cpu::{read_msr, turn_interrupts_on},
    kernel::{Kernel, SPIN_THRESHOLD, asks_the_host, kernels_promises, same_on_all_hosts},
    sleep::{Sleeper, turn_interrupts_off, wait},
};

/// `HV_X64_MSR_GUEST_IDLE`: a CPU that reads it sleeps.
const GUEST_IDLE: u32 = 0x4000_00f0;

/// A kernel, as Hyper-V has to know it.
///
/// # Safety
///
/// [`hypercall_page`](Guest::hypercall_page) is a page of the host's code, for as long as the kernel runs.
pub unsafe trait Guest: Kernel {
    /// Sends a CPU a fixed interrupt, whose handler ends it (EOI) and does nothing else. It must not be an NMI.
    ///
    /// By whatever the kernel sends its own interrupts with: the local APIC, the host's register for it, or
    /// `HvCallSendSyntheticClusterIpi`.
    fn interrupt(&self, cpu: usize);

    /// The virtual address of the hypercall page, where the kernel has enabled one (`HV_X64_MSR_GUEST_OS_ID`, then
    /// `HV_X64_MSR_HYPERCALL`). Without it, the host is not told of long spins.
    #[inline(always)]
    fn hypercall_page(&self) -> Option<usize> {
        None
    }
}

/// The platform of a kernel with up to `CPUS` CPUs: paravirtual on Hyper-V, and spinning elsewhere.
#[derive(Debug)]
pub struct HyperV<K, const CPUS: usize> {
    kernel: K,
    /// Of [`Features`]; 0 until they are known.
    features: AtomicU64,
    spin_threshold: u64,
}

impl<K: Guest, const CPUS: usize> HyperV<K, CPUS> {
    /// Nothing is known of the host yet, so waiters spin.
    pub const fn new(kernel: K) -> Self {
        Self { kernel, features: AtomicU64::new(0), spin_threshold: SPIN_THRESHOLD }
    }
}

impl<K: Guest, const CPUS: usize> Platform for HyperV<K, CPUS> {
    same_on_all_hosts!();

    /// An interrupt that is sent after `still` said yes stays pending, and ends the sleep; one that is served before was sent by
    /// somebody whose change `still` sees.
    fn wait(&self, still: impl Fn() -> bool) {
        if self.features().can_sleep() && !self.kernel.is_in_nmi() {
            wait(&Idling, still);
        } else {
            spin_loop();
        }
    }

    #[inline]
    fn kick(&self, cpu: usize) {
        if self.features().can_sleep() {
            self.kernel.interrupt(cpu);
        }
    }

    /// The host does not say.
    #[inline(always)]
    fn is_preempted(&self, cpu: usize) -> bool {
        _ = cpu;
        false
    }

    /// The host chooses for whom: it is told that the calling CPU has spun as often as it wants to be told of.
    #[inline]
    fn yield_to(&self, cpu: Option<usize>) {
        _ = cpu;
        match (self.features().spins_before_notice(), self.kernel.hypercall_page()) {
            // SAFETY: `Guest` promises the page.
            (Some(spins), Some(page)) => unsafe { hypercall::notify_long_spin_wait(page, spins) },
            _ => spin_loop(),
        }
    }
}

asks_the_host!(HyperV of Guest);
kernels_promises!(HyperV of Guest);

/// The calling CPU, of a [`Kernel`] that promises CPL 0, on a host with the idle register.
struct Idling;

impl Sleeper for Idling {
    #[inline(always)]
    fn turn_interrupts_off(&self) -> bool {
        // SAFETY: CPL 0.
        unsafe { turn_interrupts_off() }
    }

    #[inline(always)]
    fn turn_interrupts_on(&self) {
        // SAFETY: CPL 0, and they were on.
        unsafe { turn_interrupts_on() };
    }

    #[inline(always)]
    fn sleep(&self, interrupts_were_on: bool) {
        // SAFETY: CPL 0, and CPUID offers the register. What is pending then can be taken where interrupts were on.
        unsafe {
            read_msr(GUEST_IDLE);
            if interrupts_were_on {
                turn_interrupts_on();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idle_register_is_where_the_specification_has_it() {
        assert_eq!(GUEST_IDLE, 0x4000_00f0);
    }

    /// A kernel that is asked for nothing that needs CPL 0.
    struct Quiet;

    // SAFETY: nobody sleeps or takes memory for locked by it.
    unsafe impl Kernel for Quiet {
        fn cpu(&self) -> usize {
            0
        }
    }

    // SAFETY: it has no page.
    unsafe impl Guest for Quiet {
        fn interrupt(&self, cpu: usize) {
            panic!("CPU {cpu} is interrupted, and cannot have slept");
        }
    }

    #[test]
    fn without_hyper_v_waiters_spin_and_nobody_is_interrupted() {
        let platform = HyperV::<Quiet, 2>::new(Quiet);
        platform.wait(|| panic!("who does not sleep need not look"));
        platform.kick(1);
        platform.yield_to(Some(1));
        assert!(!platform.is_preempted(1));
    }
}
