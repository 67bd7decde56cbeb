//! Records of pages and areas, which never move, and the sequence counts and lists that are made of them.

pub(crate) mod grace;
pub(crate) mod record;
pub(crate) mod sequence;
pub(crate) mod sync;
pub(crate) mod tree;
pub(crate) mod vma;

pub use record::{CpuList, Page};
pub use sync::{AtomicU32, AtomicU64};
pub use vma::{Protection, Vma};

/// No page, no area.
pub(crate) const NONE: u32 = u32::MAX;
