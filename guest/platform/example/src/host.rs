//! The host that this kernel is built for: KVM, or with the feature `hyper-v` that one.

use crate::{CPUS, machine::Example};

#[cfg(feature = "hyper-v")]
pub(crate) use haltkick_platform::hyperv::HyperV as Host;
#[cfg(not(feature = "hyper-v"))]
pub(crate) use haltkick_platform::kvm::Kvm as Host;

/// The platform: the host's services where there are any. An impatient one, so that waiters sleep in an example that lasts a second.
pub(crate) static HOST: Host<Example, CPUS> = Host::new(Example).with_spin_threshold(1_000);

/// Each CPU, once it runs.
pub(crate) fn start_cpu() {
    #[cfg(not(feature = "hyper-v"))]
    HOST.start_cpu();
}

/// Whether the host says who is preempted.
pub(crate) fn tells_preempted() -> bool {
    #[cfg(not(feature = "hyper-v"))]
    return HOST.features().tells_preempted();
    #[cfg(feature = "hyper-v")]
    false
}
