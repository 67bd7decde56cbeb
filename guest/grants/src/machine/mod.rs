//! The machine: page frames, the mapper's window on them, an IOMMU, and vCPUs.

pub(crate) mod frames;
pub(crate) mod iommu;
mod memory;
pub(crate) mod vcpu;
pub(crate) mod window;

pub use frames::{PAGE_BYTES, PAGE_WORDS, Page};
pub use memory::{Memory, Sizes};
pub use vcpu::{Counter, Vcpu};
