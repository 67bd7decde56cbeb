//! Address spaces: their pages and page tables, and what changes them under `mmap_sem`.

pub(crate) mod deferred;
pub(crate) mod mm;
mod page;
mod space;
pub(crate) mod table;
mod vma_lock;

pub use mm::{Mm, Scheme, Space};
pub use page::Memory;
pub use table::{ENTRIES, PAGE_BYTES, USER_END, USER_START};
