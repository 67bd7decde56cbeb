//! Why there is no run.

use core::fmt;

/// Why there is no run.
pub(super) enum Failure {
    NotPvh,
    Value(Word),
    Memory { needed: u64, there: u64 },
    Cpus { there: u32, asked: u32 },
    NoKvm,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPvh => f.write_str("the monitor left no PVH start info with a command line"),
            Self::Value(key) => write!(f, "the command line has no usable value for '{key}'"),
            Self::Memory { needed, there } => {
                write!(f, "{} MiB of memory are needed, there are {}", needed.div_ceil(1 << 20), there >> 20)
            }
            Self::Cpus { there, asked } => {
                write!(f, "{there} of {asked} vCPUs came up: the machine needs one CPU more than vCPUs")
            }
            Self::NoKvm => f.write_str("pv_backend=kvm: CPUID does not offer KVM_FEATURE_PV_UNHALT"),
        }
    }
}

/// A key, kept for a message.
pub(super) struct Word([u8; 24]);

impl Word {
    pub(super) fn of(text: &str) -> Self {
        let mut word = [0; 24];
        word.iter_mut().zip(text.bytes()).for_each(|(cell, byte)| *cell = byte);
        Self(word)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        f.write_str(core::str::from_utf8(&self.0[..used]).unwrap_or("?"))
    }
}
