//! Xen, for domains with hardware virtualisation (HVM, PVH): event channels that are polled, and the run states of virtual CPUs.
#![expect(unsafe_code, reason = "the kernel's promises, and hypercalls")]

mod channel;
mod features;
mod hypercall;
mod run_state;
mod shared_info;

use core::{
    hint::spin_loop,
    ptr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use haltkick_locks::Platform;

use self::{
    channel::{Channel, Host},
    run_state::RunState,
    shared_info::PORTS,
};
pub use self::{features::Features, shared_info::SharedInfo};
use crate::kernel::{Kernel, SPIN_THRESHOLD, asks_the_host, kernels_promises, same_on_all_hosts};

/// A kernel, as Xen has to know it.
///
/// # Safety
///
/// - It runs in a domain with hardware virtualisation, HVM or PVH. (PV guests do not run at CPL 0.)
/// - [`shared_info`](Guest::shared_info) is the page that Xen shares with this domain, and it has event channels of two levels.
/// - Statics are mapped in all address spaces that a CPU runs in, for Xen writes to virtual addresses; and so are stacks.
pub unsafe trait Guest: Kernel {
    /// Where the kernel has mapped the page that Xen shares with it (`XENMEM_add_to_physmap`). Asked for on Xen alone.
    fn shared_info(&self) -> &SharedInfo;
}

/// What there is for each CPU, in a line of its own: no record crosses a page.
#[derive(Debug)]
#[repr(align(64))]
struct PerCpu {
    run_state: RunState,
    channel: Channel,
}

/// The platform of a kernel with up to `CPUS` CPUs: paravirtual on Xen, and spinning elsewhere.
#[derive(Debug)]
pub struct Xen<K, const CPUS: usize> {
    kernel: K,
    /// Of [`Features`]; 0 until they are known.
    features: AtomicU64,
    spin_threshold: u64,
    cpus: [PerCpu; CPUS],
}

impl<K: Guest, const CPUS: usize> Xen<K, CPUS> {
    /// Nothing is known of the host yet, so waiters spin.
    pub const fn new(kernel: K) -> Self {
        Self {
            kernel,
            features: AtomicU64::new(0),
            spin_threshold: SPIN_THRESHOLD,
            cpus: [const { PerCpu { run_state: RunState::new(), channel: Channel::new() } }; CPUS],
        }
    }

    /// Each CPU, once it runs: it gets a channel to sleep at, and the host begins to tell whether it is preempted. A CPU for
    /// which there is no channel spins.
    pub fn start_cpu(&'static self) {
        let features = self.features();
        let Some(vcpu) = features.vcpu() else { return };
        let own = &self.cpus[self.kernel.cpu()];
        let is_vmmcall = features.hypercalls_are_vmmcall();
        // SAFETY: `Guest` promises a domain that may call, and the record is a static's.
        unsafe {
            hypercall::register_run_state(is_vmmcall, vcpu, ptr::from_ref(&own.run_state).addr());
            match hypercall::bind_ipi(is_vmmcall, vcpu) {
                Some(port) if port < PORTS => {
                    self.kernel.shared_info().mask(port);
                    own.channel.open(port);
                }
                Some(port) => hypercall::close(is_vmmcall, port),
                None => {}
            }
        }
    }

    /// Each CPU before it goes offline, when it waits for no lock: it gives its channel back, and the host writes no more.
    pub fn stop_cpu(&self) {
        let features = self.features();
        let Some(vcpu) = features.vcpu() else { return };
        let is_vmmcall = features.hypercalls_are_vmmcall();
        // SAFETY: as in `start_cpu`; nobody sleeps at the channel.
        unsafe {
            if let Some(port) = self.cpus[self.kernel.cpu()].channel.close() {
                hypercall::close(is_vmmcall, port);
            }
            hypercall::register_run_state(is_vmmcall, vcpu, 0);
        }
    }

    fn host(&self) -> Hypercalls<'_, K> {
        Hypercalls { kernel: &self.kernel, is_vmmcall: self.features().hypercalls_are_vmmcall() }
    }
}

impl<K: Guest, const CPUS: usize> Platform for Xen<K, CPUS> {
    same_on_all_hosts!();

    /// An event is pending until it is taken, so one that comes after `still` said yes ends the poll.
    fn wait(&self, still: impl Fn() -> bool) {
        if self.kernel.is_in_nmi() {
            spin_loop();
        } else {
            self.cpus[self.kernel.cpu()].channel.wait(&self.host(), still);
        }
    }

    #[inline]
    fn kick(&self, cpu: usize) {
        self.cpus[cpu].channel.kick(&self.host());
    }

    #[inline(always)]
    fn is_preempted(&self, cpu: usize) -> bool {
        self.cpus[cpu].run_state.is_preempted()
    }

    /// The host chooses for whom.
    #[inline]
    fn yield_to(&self, cpu: Option<usize>) {
        _ = cpu;
        let features = self.features();
        if features.is_on_xen() {
            // SAFETY: `Guest` promises a domain that may call.
            _ = unsafe { hypercall::YIELD.make(features.hypercalls_are_vmmcall()) };
        } else {
            spin_loop();
        }
    }
}

asks_the_host!(Xen of Guest);
kernels_promises!(Xen of Guest);

/// Xen, for the channels of CPUs that have got one by hypercall.
struct Hypercalls<'a, K> {
    kernel: &'a K,
    is_vmmcall: bool,
}

impl<K: Guest> Host for Hypercalls<'_, K> {
    fn take(&self, port: u32) -> bool {
        self.kernel.shared_info().take(port)
    }

    fn poll(&self, port: u32) {
        // SAFETY: `Guest` promises a domain that may call; there is a port, so this is Xen.
        unsafe { hypercall::poll(self.is_vmmcall, port) };
    }

    fn send(&self, port: u32) {
        // SAFETY: as above; a CPU polls the port, or takes the event at its next wait.
        unsafe { hypercall::send(self.is_vmmcall, port) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that is asked for nothing that needs CPL 0.
    struct Quiet;

    // SAFETY: nobody sleeps or takes memory for locked by it.
    unsafe impl Kernel for Quiet {
        fn cpu(&self) -> usize {
            0
        }
    }

    // SAFETY: it is not asked.
    unsafe impl Guest for Quiet {
        fn shared_info(&self) -> &SharedInfo {
            panic!("there is none off Xen");
        }
    }

    #[test]
    fn without_xen_waiters_spin_and_nobody_calls_it() {
        static PLATFORM: Xen<Quiet, 2> = Xen::new(Quiet);
        PLATFORM.start_cpu();
        PLATFORM.wait(|| panic!("who does not sleep need not look"));
        PLATFORM.kick(1);
        PLATFORM.yield_to(Some(1));
        assert!(!PLATFORM.is_preempted(1));
        PLATFORM.stop_cpu();
    }

    #[test]
    fn what_a_cpu_has_is_one_line() {
        assert_eq!((size_of::<PerCpu>(), align_of::<PerCpu>()), (64, 64));
    }
}
