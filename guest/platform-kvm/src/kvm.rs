//! The platform.
#![expect(unsafe_code, reason = "the kernel's promises, and privileged instructions")]

use core::{
    arch::x86_64::_rdtsc,
    hint::spin_loop,
    ptr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use haltkick_locks::{Event, Interrupts, Platform, TrustedCpu};

use crate::{
    features::Features,
    halt::{
        halt, halt_with_interrupts, hypercall, interrupts_are_on, turn_interrupts_off, turn_interrupts_on,
        write_msr,
    },
    steal::{self, StealTime},
};

/// `KVM_HC_KICK_CPU`: flags (0), APIC id.
const KICK_CPU: u64 = 5;
/// `KVM_HC_SCHED_YIELD`: APIC id.
const SCHED_YIELD: u64 = 11;

/// A kernel on x86-64, as [`Kvm`] sees it.
///
/// # Safety
///
/// - It runs at CPL 0, where it can take interrupts if it has turned them on.
/// - [`cpu`](Kernel::cpu), [`pin`](Kernel::pin) and [`unpin`](Kernel::unpin) keep the promise of [`TrustedCpu`].
/// - [`physical`](Kernel::physical) is where the host finds a static of this kernel, for as long as it runs.
pub unsafe trait Kernel: Sync {
    /// The number of the calling CPU.
    fn cpu(&self) -> usize;

    /// The APIC id of a CPU.
    fn apic_id(&self, cpu: usize) -> u32;

    /// The physical address of a static whose virtual address is `address`.
    fn physical(&self, address: usize) -> u64;

    /// Whether the calling CPU serves an NMI, or something that comes as unasked: then it never halts (see [`Platform::wait`]).
    #[inline(always)]
    fn is_in_nmi(&self) -> bool {
        false
    }

    /// See [`TrustedCpu::pin`].
    #[inline(always)]
    fn pin(&self) {}

    /// See [`TrustedCpu::unpin`].
    #[inline(always)]
    fn unpin(&self) {}

    /// See [`Platform::count`].
    #[inline(always)]
    fn count(&self, event: Event, n: u64) {
        _ = (event, n);
    }
}

/// The platform of a kernel with up to `CPUS` CPUs: paravirtual on KVM, and spinning elsewhere.
#[derive(Debug)]
pub struct Kvm<K, const CPUS: usize> {
    kernel: K,
    /// Of [`Features`]; 0 until they are known.
    features: AtomicU64,
    spin_threshold: u64,
    steal: [StealTime; CPUS],
}

impl<K: Kernel, const CPUS: usize> Kvm<K, CPUS> {
    /// Nothing is known of the host yet, so waiters spin.
    pub const fn new(kernel: K) -> Self {
        // About what two exits and a wake-up take, at 2 to 3 ticks in a nanosecond.
        const SPIN_THRESHOLD: u64 = 100_000;
        Self {
            kernel,
            features: AtomicU64::new(0),
            spin_threshold: SPIN_THRESHOLD,
            steal: [const { StealTime::new() }; CPUS],
        }
    }

    /// Waiters spin for so many ticks of the TSC before they halt.
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

    /// What [`detect`](Self::detect) has found; nothing before that.
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

    /// Each CPU before it goes offline, or the memory becomes somebody else's: the host writes there no more.
    pub fn stop_cpu(&self) {
        if self.features().tells_preempted() {
            // SAFETY: CPUID offers the register, and 0 turns it off.
            unsafe { write_msr(steal::MSR, 0) };
        }
    }
}

impl<K: Kernel, const CPUS: usize> Platform for Kvm<K, CPUS> {
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
        unsafe { _rdtsc() }
    }

    #[inline(always)]
    fn spin_threshold(&self) -> u64 {
        self.spin_threshold
    }

    /// A kick is latched by KVM until the next halt ends by it, so one that comes after `still` said yes is not missed; nor
    /// is one that an interrupt would send, for none is taken between the look and the halt.
    fn wait(&self, still: impl Fn() -> bool) {
        if !self.features().can_kick() || self.kernel.is_in_nmi() {
            spin_loop();
            return;
        }
        let were_on = interrupts_are_on();
        // SAFETY: `Kernel` promises CPL 0, and that interrupts which were on can be taken. A kick ends a halt whether or not
        // they are on.
        unsafe {
            if !were_on {
                if still() {
                    halt();
                }
                return;
            }
            turn_interrupts_off();
            if still() {
                halt_with_interrupts();
            } else {
                turn_interrupts_on();
            }
        }
    }

    #[inline]
    fn kick(&self, cpu: usize) {
        let features = self.features();
        if features.can_kick() {
            // SAFETY: CPUID offers the call, which wakes a CPU of this kernel.
            unsafe {
                hypercall(
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

    #[inline]
    fn yield_to(&self, cpu: Option<usize>) {
        let features = self.features();
        match cpu {
            Some(cpu) if features.can_yield_to() => {
                let target = u64::from(self.kernel.apic_id(cpu));
                // SAFETY: CPUID offers the call, which does nothing but to run another CPU.
                unsafe { hypercall(features.hypercalls_are_vmmcall(), SCHED_YIELD, target, 0) };
            }
            _ => spin_loop(),
        }
    }

    #[inline(always)]
    fn count(&self, event: Event, n: u64) {
        self.kernel.count(event, n);
    }
}

// SAFETY: the kernel's promise.
unsafe impl<K: Kernel, const CPUS: usize> TrustedCpu for Kvm<K, CPUS> {
    #[inline(always)]
    fn pin(&self) {
        self.kernel.pin();
    }

    #[inline(always)]
    fn unpin(&self) {
        self.kernel.unpin();
    }
}

impl<K: Kernel, const CPUS: usize> Interrupts for Kvm<K, CPUS> {
    type Saved = bool;

    #[inline(always)]
    fn turn_off(&self) -> bool {
        let were_on = interrupts_are_on();
        // SAFETY: `Kernel` promises CPL 0.
        unsafe { turn_interrupts_off() };
        were_on
    }

    #[inline(always)]
    fn restore(&self, were_on: bool) {
        if were_on {
            // SAFETY: as above; they were on.
            unsafe { turn_interrupts_on() };
        }
    }
}
