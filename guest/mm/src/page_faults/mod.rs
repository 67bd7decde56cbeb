//! The fault paths of three generations.

mod classic;
mod per_vma;
mod speculative;
