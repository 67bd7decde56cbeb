//! What every host's platform asks of a kernel.
#![expect(unsafe_code, reason = "the kernel's promises")]

use haltkick_locks::Event;

/// A kernel on x86-64, as the platforms see it.
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

/// How many ticks waiters spin before they sleep: about what two exits and a wake-up take, at 2 to 3 ticks in a nanosecond.
pub(crate) const SPIN_THRESHOLD: u64 = 100_000;

/// The methods of `Platform` that are the same on all hosts, for a type with the fields `kernel` and `spin_threshold`.
macro_rules! same_on_all_hosts {
    () => {
        #[inline(always)]
        fn cpu(&self) -> usize {
            self.kernel.cpu()
        }

        #[inline(always)]
        fn pause(&self) {
            core::hint::spin_loop();
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

        #[inline(always)]
        fn count(&self, event: haltkick_locks::Event, n: u64) {
            self.kernel.count(event, n);
        }
    };
}

/// What each host's platform is told and finds out when the kernel boots, for a type with the fields `spin_threshold` and `features`, and
/// with `Features` beside it.
macro_rules! asks_the_host {
    ($platform:ident of $guest:ident) => {
        impl<K: $guest, const CPUS: usize> $platform<K, CPUS> {
            /// Waiters spin for so many ticks of the TSC before they sleep.
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
        }
    };
}

/// The kernel's pins and the CPU's interrupts, for a platform with the field `kernel`.
macro_rules! kernels_promises {
    ($platform:ident of $guest:ident) => {
        // SAFETY: the kernel's promise.
        unsafe impl<K: $guest, const CPUS: usize> haltkick_locks::TrustedCpu for $platform<K, CPUS> {
            #[inline(always)]
            fn pin(&self) {
                self.kernel.pin();
            }

            #[inline(always)]
            fn unpin(&self) {
                self.kernel.unpin();
            }
        }

        impl<K: $guest, const CPUS: usize> haltkick_locks::Interrupts for $platform<K, CPUS> {
            type Saved = bool;

            #[inline(always)]
            fn turn_off(&self) -> bool {
                // SAFETY: `Kernel` promises CPL 0.
                unsafe { $crate::sleep::turn_interrupts_off() }
            }

            #[inline(always)]
            fn restore(&self, were_on: bool) {
                if were_on {
                    // SAFETY: as above; they were on.
                    unsafe { $crate::cpu::turn_interrupts_on() };
                }
            }
        }
    };
}

pub(crate) use {asks_the_host, kernels_promises, same_on_all_hosts};
