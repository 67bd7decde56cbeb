//! The host that this kernel is built for: KVM, or with the feature `hyper-v` or `xen` that one.

use crate::{CPUS, machine::Example};

#[cfg(all(feature = "hyper-v", feature = "xen"))]
compile_error!("one kernel is for one host: take hyper-v or xen");

#[cfg(feature = "hyper-v")]
pub(crate) use haltkick_platform::hyperv::HyperV as Host;
#[cfg(not(any(feature = "hyper-v", feature = "xen")))]
pub(crate) use haltkick_platform::kvm::Kvm as Host;
#[cfg(feature = "xen")]
pub(crate) use haltkick_platform::xen::Xen as Host;

/// The platform: the host's services where there are any. An impatient one, so that waiters sleep in an example that lasts a second.
pub(crate) static HOST: Host<Example, CPUS> = Host::new(Example).with_spin_threshold(1_000);

/// The boot CPU, once it knows the host's features: whether waiters can sleep, as far as the kernel has a part in it.
pub(crate) fn prepare() -> bool {
    #[cfg(feature = "xen")]
    return HOST.prepare();
    #[cfg(not(feature = "xen"))]
    true
}

/// Each CPU, once it runs.
pub(crate) fn start_cpu() {
    #[cfg(not(feature = "hyper-v"))]
    HOST.start_cpu();
}

/// Whether the host says who is preempted. (A Xen may or may not: ours does not.)
pub(crate) fn tells_preempted() -> bool {
    #[cfg(not(any(feature = "hyper-v", feature = "xen")))]
    return HOST.features().tells_preempted();
    #[cfg(any(feature = "hyper-v", feature = "xen"))]
    false
}
