//! Why there is no run.

use core::fmt;

/// Why there is no run.
pub(super) enum Failure {
    NotPvh,
    NoRequest,
    Memory { needed: u64, there: u64 },
    Cpus { there: u32, asked: u32 },
    NoKvm,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPvh => f.write_str("the monitor left no PVH start info"),
            Self::NoRequest => f.write_str("its request is empty: start it by haltkick run --engine qemu"),
            Self::Memory { needed, there } => {
                write!(f, "{} MiB of memory are needed, there are {}", needed.div_ceil(1 << 20), there >> 20)
            }
            Self::Cpus { there, asked } => {
                write!(f, "{there} of {asked} vCPUs came up: the machine needs one CPU more than vCPUs")
            }
            Self::NoKvm => f.write_str(
                "a kick by hypercall is asked for, and CPUID does not offer KVM_FEATURE_PV_UNHALT",
            ),
        }
    }
}
