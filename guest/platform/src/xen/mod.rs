//! Xen, for domains with hardware virtualisation (HVM, PVH): event channels that are polled, and the run states of virtual CPUs. It is called by
//! way of a page of the kernel's that it fills, so that no instruction is taken for granted.
#![expect(unsafe_code, reason = "the kernel's promises, and hypercalls")]

mod channel;
mod features;
mod hypercall;
mod run_state;
mod shared_info;

use core::{
    hint::spin_loop,
    ptr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use haltkick_locks::Platform;

use self::{
    channel::{Channel, Host},
    run_state::RunState,
    shared_info::PORTS,
};
pub use self::{features::Features, hypercall::HypercallPage, shared_info::SharedInfo};
use crate::{
    cpu::write_msr,
    kernel::{Kernel, SPIN_THRESHOLD, asks_the_host, kernels_promises, same_on_all_hosts},
};

/// A kernel, as Xen has to know it.
///
/// # Safety
///
/// - It runs in a domain with hardware virtualisation, HVM or PVH. (PV guests do not run at CPL 0.)
/// - [`hypercall_page`](Guest::hypercall_page) is mapped where code may be executed, and has no other use.
/// - [`shared_info`](Guest::shared_info) has no other use than that Xen's page appears there, with event channels of two levels.
/// - [`physical`](Guest::physical) is where Xen finds these two, for as long as the kernel runs.
/// - Statics are mapped in all address spaces that a CPU runs in, for Xen writes to virtual addresses; and so are stacks.
pub unsafe trait Guest: Kernel {
    /// The page by which Xen is called, which Xen fills ([`Xen::prepare`]).
    fn hypercall_page(&self) -> &HypercallPage;

    /// Where the page is mapped that Xen shares with the kernel, or where it is to be ([`Xen::prepare`]). Asked for on Xen alone.
    fn shared_info(&self) -> &SharedInfo;

    /// The physical address of one of these pages, whose virtual address is `address`.
    fn physical(&self, address: usize) -> u64;
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
    /// The hypercall page is filled, and the shared page is where it is to be.
    is_prepared: AtomicBool,
    spin_threshold: u64,
    cpus: [PerCpu; CPUS],
}

impl<K: Guest, const CPUS: usize> Xen<K, CPUS> {
    /// Nothing is known of the host yet, so waiters spin.
    pub const fn new(kernel: K) -> Self {
        Self {
            kernel,
            features: AtomicU64::new(0),
            is_prepared: AtomicBool::new(false),
            spin_threshold: SPIN_THRESHOLD,
            cpus: [const { PerCpu { run_state: RunState::new(), channel: Channel::new() } }; CPUS],
        }
    }

    /// The boot CPU, after [`detect`](Self::detect) and before the first [`start_cpu`](Self::start_cpu): Xen fills the hypercall page, and
    /// puts the page that it shares where the kernel has it. `false`: it cannot be called, or does not do so, and all waiters spin.
    ///
    /// A kernel that has done both for itself can do so again, with the same places.
    pub fn prepare(&self) -> bool {
        const PAGE_BYTES: u64 = 4096;
        let Some(register) = self.features().hypercall_register() else { return false };
        let page = self.kernel.hypercall_page();
        let shared = ptr::from_ref(self.kernel.shared_info()).addr();
        // SAFETY: CPUID names the register; `Guest` promises a domain that may call, and two pages without another use.
        let is_prepared = unsafe {
            write_msr(register, self.kernel.physical(page.address()));
            hypercall::share(page, self.kernel.physical(shared) / PAGE_BYTES)
        };
        // Relaxed: starting a CPU publishes it.
        self.is_prepared.store(is_prepared, Relaxed);
        is_prepared
    }

    /// Each CPU, once it runs: it gets a channel to sleep at, and the host begins to tell whether it is preempted. A CPU for
    /// which there is no channel spins.
    pub fn start_cpu(&'static self) {
        let (Some(vcpu), Some(page)) = (self.features().vcpu(), self.page()) else { return };
        let own = &self.cpus[self.kernel.cpu()];
        // SAFETY: the page is filled, and the record is a static's.
        unsafe {
            hypercall::register_run_state(page, vcpu, ptr::from_ref(&own.run_state).addr());
            match hypercall::bind_ipi(page, vcpu) {
                Some(port) if port < PORTS => {
                    self.kernel.shared_info().mask(port);
                    own.channel.open(port);
                }
                Some(port) => hypercall::close(page, port),
                None => {}
            }
        }
    }

    /// Each CPU before it goes offline, when it waits for no lock: it gives its channel back, and the host writes no more.
    pub fn stop_cpu(&self) {
        let (Some(vcpu), Some(page)) = (self.features().vcpu(), self.page()) else { return };
        // SAFETY: as in `start_cpu`; nobody sleeps at the channel.
        unsafe {
            if let Some(port) = self.cpus[self.kernel.cpu()].channel.close() {
                hypercall::close(page, port);
            }
            hypercall::register_run_state(page, vcpu, 0);
        }
    }

    /// The hypercall page, once it is filled.
    #[inline]
    fn page(&self) -> Option<&HypercallPage> {
        // Relaxed: of `prepare`.
        self.is_prepared.load(Relaxed).then(|| self.kernel.hypercall_page())
    }

    #[inline]
    fn host(&self) -> Option<Hypercalls<'_, K>> {
        Some(Hypercalls { kernel: &self.kernel, page: self.page()? })
    }
}

impl<K: Guest, const CPUS: usize> Platform for Xen<K, CPUS> {
    same_on_all_hosts!();

    /// An event is pending until it is taken, so one that comes after `still` said yes ends the poll.
    fn wait(&self, still: impl Fn() -> bool) {
        match self.host() {
            Some(host) if !self.kernel.is_in_nmi() => {
                self.cpus[self.kernel.cpu()].channel.wait(&host, still);
            }
            _ => spin_loop(),
        }
    }

    #[inline]
    fn kick(&self, cpu: usize) {
        if let Some(host) = self.host() {
            self.cpus[cpu].channel.kick(&host);
        }
    }

    #[inline(always)]
    fn is_preempted(&self, cpu: usize) -> bool {
        self.cpus[cpu].run_state.is_preempted()
    }

    /// The host chooses for whom.
    #[inline]
    fn yield_to(&self, cpu: Option<usize>) {
        _ = cpu;
        match self.page() {
            // SAFETY: the page is filled. It does not fail.
            Some(page) => _ = unsafe { hypercall::YIELD.make(page) },
            None => spin_loop(),
        }
    }
}

asks_the_host!(Xen of Guest);
kernels_promises!(Xen of Guest);

/// Xen, for the channels of CPUs that have got one by hypercall.
struct Hypercalls<'a, K> {
    kernel: &'a K,
    /// Filled.
    page: &'a HypercallPage,
}

impl<K: Guest> Host for Hypercalls<'_, K> {
    fn take(&self, port: u32) -> bool {
        self.kernel.shared_info().take(port)
    }

    fn poll(&self, port: u32) {
        // SAFETY: the page is filled.
        unsafe { hypercall::poll(self.page, port) };
    }

    fn send(&self, port: u32) {
        // SAFETY: as above; a CPU polls the port, or takes the event at its next wait.
        unsafe { hypercall::send(self.page, port) };
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
        fn hypercall_page(&self) -> &HypercallPage {
            panic!("there is none off Xen");
        }

        fn shared_info(&self) -> &SharedInfo {
            panic!("there is none off Xen");
        }

        fn physical(&self, address: usize) -> u64 {
            panic!("nobody off Xen wants to know where {address:#x} is");
        }
    }

    #[test]
    fn without_xen_waiters_spin_and_nobody_calls_it() {
        static PLATFORM: Xen<Quiet, 2> = Xen::new(Quiet);
        assert!(!PLATFORM.prepare());
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
