//! The atomics of this crate: the real ones, loom's, shuttle's, or ones that are watched.
//!
//! Every other module takes its atomics from here, so one source is measured in a kernel, checked
//! exhaustively by loom (`--cfg loom`), explored at random by shuttle (`--cfg shuttle`), and simulated on machines of any
//! size (`--cfg coherence`). Loom's atomics
//! cannot be made in a constant, which is the only difference that shows: [`const_unless_loom`] and [`array`]
//! hide it.

#[cfg(coherence)]
pub(crate) use crate::coherence::{AtomicU8, AtomicU32, AtomicUsize};
#[cfg(not(any(loom, shuttle, coherence)))]
pub(crate) use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering, compiler_fence, fence};
#[cfg(coherence)]
pub(crate) use core::sync::atomic::{Ordering, compiler_fence, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};

/// An atomic for statistics, which no protocol depends on: never modelled, so that it adds no interleavings.
pub(crate) use core::sync::atomic::AtomicU64 as Statistic;

/// Orders this CPU against its own interrupts; the model checkers have none.
#[cfg(any(loom, shuttle))]
pub(crate) fn compiler_fence(_: Ordering) {}

/// Whether a model checker runs this code: loops that are long for speed are then short.
pub(crate) const MODELLED: bool = cfg!(any(loom, shuttle));

/// Declares a function that is `const` wherever the atomics it makes can be made in a constant.
macro_rules! const_unless_loom {
    ($(#[$attribute:meta])* $visibility:vis const fn $($rest:tt)*) => {
        #[cfg(not(loom))]
        $(#[$attribute])*
        $visibility const fn $($rest)*

        #[cfg(loom)]
        $(#[$attribute])*
        $visibility fn $($rest)*
    };
}

/// An array whose elements are all made by the same expression, without `Copy`.
macro_rules! array {
    ($element:expr; $length:expr) => {{
        #[cfg(not(loom))]
        let array = [const { $element }; $length];
        #[cfg(loom)]
        let array: [_; $length] = core::array::from_fn(|_| $element);
        array
    }};
}

pub(crate) use {array, const_unless_loom};
