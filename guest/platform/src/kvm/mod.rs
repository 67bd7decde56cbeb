//! KVM: HLT, `KVM_HC_KICK_CPU`, and the steal-time record.
#![expect(unsafe_code, reason = "the kernel's promises, and privileged instructions")]

mod features;
mod load;
mod steal;

use core::{
    hint::spin_loop,
    ptr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

#[cfg(feature = "checked")]
use haltkick_qspin::checks::{Checker, Context, Fault};
use haltkick_qspin::{Event, Interrupts, Platform, TrustedCpu};

pub use self::features::Features;
use self::{load::Load, steal::StealTime};
use crate::{
    cpu::{halt, halt_with_interrupts, kvm_hypercall, turn_interrupts_on, write_msr},
    kernel::Kernel,
    sleep::{Sleeper, turn_interrupts_off, wait},
};

/// How many ticks waiters spin before they sleep: about what two exits and a wake-up take, at 2 to 3 ticks in a nanosecond.
const SPIN_THRESHOLD: u64 = 100_000;
/// `KVM_HC_KICK_CPU`: flags (0), APIC id.
const KICK_CPU: u64 = 5;
/// `KVM_HC_SCHED_YIELD`: APIC id.
const SCHED_YIELD: u64 = 11;

/// A kernel, as KVM has to know it.
///
/// # Safety
///
/// [`physical`](Guest::physical) is where the host finds a static of this kernel, for as long as it runs.
pub unsafe trait Guest: Kernel {
    /// The APIC id of a CPU.
    fn apic_id(&self, cpu: usize) -> u32;

    /// The physical address of a static whose virtual address is `address`.
    fn physical(&self, address: usize) -> u64;
}

/// The platform of a kernel with up to `CPUS` CPUs: paravirtual on KVM, and spinning elsewhere.
#[derive(Debug)]
pub struct Kvm<K, const CPUS: usize> {
    kernel: K,
    /// Of [`Features`]; 0 until they are known.
    features: AtomicU64,
    spin_threshold: u64,
    steal: [StealTime; CPUS],
    load: [Load; CPUS],
}

impl<K: Guest, const CPUS: usize> Kvm<K, CPUS> {
    /// The host's features are unknown yet, so waiters spin.
    pub const fn new(kernel: K) -> Self {
        Self {
            kernel,
            features: AtomicU64::new(0),
            spin_threshold: SPIN_THRESHOLD,
            steal: [const { StealTime::new() }; CPUS],
            load: [const { Load::new() }; CPUS],
        }
    }

    /// Sets the ticks of the TSC that waiters spin before they sleep.
    #[must_use]
    pub const fn with_spin_threshold(mut self, ticks: u64) -> Self {
        self.spin_threshold = ticks;
        self
    }

    /// Asks the hypervisor what it offers. For the boot CPU, before any other starts.
    pub fn detect(&self) -> Features {
        let features = Features::detect();
        // Relaxed: starting a CPU publishes it; and each value that can be read is a good one.
        self.features.store(features.to_bits(), Relaxed);
        features
    }

    /// Returns the features that [`detect`](Self::detect) has found; none before that.
    #[inline(always)]
    pub fn features(&self) -> Features {
        Features::from_bits(self.features.load(Relaxed))
    }

    /// Each CPU, once it runs: the host begins to tell whether it is preempted.
    pub fn start_cpu(&'static self) {
        if self.features().tells_preempted() {
            const ON: u64 = 1;
            let record = ptr::from_ref(&self.steal[self.kernel.cpu()]).addr();
            // SAFETY: CPUID offers the register, and the record is a static's, at a multiple of 64.
            unsafe { write_msr(steal::MSR, self.kernel.physical(record) | ON) };
        }
    }

    /// Each CPU before it goes offline, or before the memory is used otherwise: the host stops writing there.
    pub fn stop_cpu(&self) {
        if self.features().tells_preempted() {
            // SAFETY: CPUID offers the register, and 0 turns it off.
            unsafe { write_msr(steal::MSR, 0) };
        }
    }
}

impl<K: Guest, const CPUS: usize> Platform for Kvm<K, CPUS> {
    #[inline(always)]
    fn cpu(&self) -> usize {
        self.kernel.cpu()
    }

    #[inline(always)]
    fn pause(&self) {
        spin_loop();
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        // SAFETY: every x86-64 CPU has the counter.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    #[inline(always)]
    fn spin_threshold(&self) -> u64 {
        self.spin_threshold
    }

    #[inline]
    fn ticks(&self, nanoseconds: u64) -> u64 {
        (u128::from(nanoseconds) * u128::from(self.kernel.tsc_khz()) / 1_000_000) as u64
    }

    /// As the calling CPU's own record of stolen time says. True if the host keeps none.
    #[inline]
    fn is_overcommitted(&self) -> bool {
        let cpu = self.kernel.cpu();
        !self.features().tells_preempted()
            || self.load[cpu].is_high(self.steal[cpu].stolen(), self.now(), self.kernel.tsc_khz())
    }

    #[inline(always)]
    fn is_in_section(&self) -> bool {
        self.kernel.is_in_section()
    }

    #[inline(always)]
    fn count(&self, event: Event, n: u64) {
        self.kernel.count(event, n);
    }

    /// A kick is latched by KVM until the next halt ends by it, so one that comes after `still` said yes is not missed; nor
    /// is one that an interrupt would send, for none is taken between the look and the halt.
    fn wait(&self, still: impl Fn() -> bool) {
        if self.features().can_kick() && !self.kernel.is_in_nmi() {
            wait(&Halting, still);
        } else {
            spin_loop();
        }
    }

    #[inline]
    fn kick(&self, cpu: usize) {
        let features = self.features();
        if features.can_kick() {
            // SAFETY: CPUID offers the call, which wakes a CPU of this kernel.
            unsafe {
                kvm_hypercall(
                    features.hypercalls_are_vmmcall(),
                    KICK_CPU,
                    0,
                    u64::from(self.kernel.apic_id(cpu)),
                );
            }
        }
    }

    #[inline(always)]
    fn is_preempted(&self, cpu: usize) -> bool {
        self.steal[cpu].is_preempted()
    }

    #[inline(always)]
    fn yield_count(&self, cpu: usize) -> u64 {
        self.steal[cpu].version()
    }

    #[inline]
    fn yield_to(&self, cpu: Option<usize>) {
        let features = self.features();
        match cpu {
            Some(cpu) if features.can_yield_to() => {
                let target = u64::from(self.kernel.apic_id(cpu));
                // SAFETY: CPUID offers the call, which does nothing but to run another CPU.
                unsafe { kvm_hypercall(features.hypercalls_are_vmmcall(), SCHED_YIELD, target, 0) };
            }
            _ => spin_loop(),
        }
    }
}

// SAFETY: the kernel's promise.
unsafe impl<K: Guest, const CPUS: usize> TrustedCpu for Kvm<K, CPUS> {
    #[inline(always)]
    fn pin(&self) {
        self.kernel.pin();
    }

    #[inline(always)]
    fn unpin(&self) {
        self.kernel.unpin();
    }

    #[cfg(feature = "checked")]
    fn checks(&self) -> Option<Checker<'_>> {
        self.kernel.checks()
    }

    #[cfg(feature = "checked")]
    fn context(&self) -> Option<Context> {
        self.kernel.context()
    }

    #[cfg(feature = "checked")]
    fn found(&self, fault: &Fault) {
        self.kernel.found(fault);
    }
}

impl<K: Guest, const CPUS: usize> Interrupts for Kvm<K, CPUS> {
    type Saved = bool;

    #[inline(always)]
    fn turn_off(&self) -> bool {
        // SAFETY: `Kernel` promises CPL 0.
        unsafe { turn_interrupts_off() }
    }

    #[inline(always)]
    fn restore(&self, were_on: bool) {
        if were_on {
            // SAFETY: as above; they were on.
            unsafe { turn_interrupts_on() };
        }
    }
}

/// The calling CPU, of a [`Kernel`] that promises CPL 0, on a host with `PV_UNHALT`: a kick ends a halt whether or not interrupts are on.
struct Halting;

impl Sleeper for Halting {
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
        // SAFETY: CPL 0, and interrupts that were on can be taken.
        unsafe {
            if interrupts_were_on {
                halt_with_interrupts();
            } else {
                halt();
            }
        }
    }
}

#[cfg(all(test, feature = "checked"))]
mod tests {
    extern crate std;

    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        string::String,
        sync::atomic::AtomicIsize,
    };

    use haltkick_qspin::{Ticket, checks::Checks, guarded::Mutex, home};

    use super::*;

    static CHECKS: Checks<1> = Checks::new();
    static PINS: AtomicIsize = AtomicIsize::new(0);

    struct Checked;

    // SAFETY: no privileged instruction is executed: nothing waits. It has one CPU.
    unsafe impl Kernel for Checked {
        fn cpu(&self) -> usize {
            0
        }

        fn pin(&self) {
            PINS.fetch_add(1, Relaxed);
        }

        fn unpin(&self) {
            PINS.fetch_sub(1, Relaxed);
        }

        fn tsc_khz(&self) -> u64 {
            1
        }

        fn checks(&self) -> Option<Checker<'_>> {
            Some(CHECKS.checker())
        }

        fn context(&self) -> Option<Context> {
            // A lock in hand says here that an interrupt is served.
            Some(if PINS.load(Relaxed) > 1 { Context::Handler } else { Context::InterruptsOn })
        }
    }

    // SAFETY: no host looks.
    unsafe impl Guest for Checked {
        fn apic_id(&self, _: usize) -> u32 {
            0
        }

        fn physical(&self, address: usize) -> u64 {
            address as u64
        }
    }

    home! { Plain: Kvm<Checked, 1> = Kvm::new(Checked); }

    #[test]
    fn a_kernel_on_kvm_is_told_of_its_faults() {
        static A: Mutex<(), Ticket, Plain> = Mutex::new(());
        static B: Mutex<(), Ticket, Plain> = Mutex::new(());
        let fault = |lock: &'static Mutex<(), Ticket, Plain>| {
            let asks = AssertUnwindSafe(|| drop(lock.lock()));
            *catch_unwind(asks).expect_err("a fault").downcast::<String>().expect("its text")
        };
        drop(B.lock());
        let guard = A.lock();
        assert!(fault(&A).contains("for which it asked"));
        assert!(fault(&B).contains("turn them off there"));
        drop(guard);
        assert_eq!(PINS.load(Relaxed), 0);
    }
}
