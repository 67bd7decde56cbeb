//! The memory manager on host threads, over a machine that checks it.

#![cfg(not(shuttle))]

mod areas;
mod injected;
mod machine;
