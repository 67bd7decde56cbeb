//! How large a guest can be.

/// Most vCPUs a guest can have (KVM's own limit on x86-64).
pub const MAX_VCPUS: usize = 1024;

/// Most locks that a workload can spread its sections over.
pub const MAX_LOCKS: u32 = 256;
