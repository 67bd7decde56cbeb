//! One CPU: its state, the instructions that it executes, and how it comes to its memory.
//!
//! ```text
//!  run ─> code: the block where the CPU stands ── not known yet ─> decode: from bytes to operations
//!    │
//!    └─> op: each operation in turn, a function of `operations` ─> memory ─> tlb ── not cached ─> paging
//!                                                                    │
//!                                                                    └─> Bus: the CPU's driver grants lines
//! ```

pub(crate) mod bus;
pub(crate) mod code;
pub(crate) mod decode;
mod faults;
pub(crate) mod flags;
mod memory;
pub(crate) mod op;
mod operations;
mod paging;
mod run;
pub(crate) mod state;
mod tlb;
