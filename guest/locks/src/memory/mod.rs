//! Building blocks of locks: atomics (those of a model checker, where one runs the code) and cache lines.
//!
//! # Atomics
//!
//! Every other module takes its atomics from here, so one source is measured in a kernel, checked
//! exhaustively by loom (`--cfg loom`), explored at random by shuttle (`--cfg shuttle`), and searched
//! state by state (`--cfg liveness`, which makes the atomics watched ones). Loom's atomics
//! cannot be made in a constant, which is the only difference that shows: [`const_unless_loom`], [`fresh`] and
//! [`array`] hide it.

#[cfg(liveness)]
#[doc(hidden)]
pub mod watched;

use core::ops::Deref;

#[cfg(not(any(loom, shuttle, liveness)))]
pub(crate) use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering, compiler_fence, fence};
#[cfg(liveness)]
pub(crate) use core::sync::atomic::{Ordering, compiler_fence, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
#[cfg(liveness)]
pub(crate) use watched::{AtomicU8, AtomicU32, AtomicUsize};

/// For statistics, which no protocol depends on: never modelled, so that it adds no interleavings. Of ticks it holds the
/// lower half where addresses have 32 bits, which is enough for differences of a second and more.
pub(crate) use core::sync::atomic::AtomicUsize as Statistic;

/// A point in time that one lock protects, and no protocol depends on: never modelled. Where addresses have 32 bits it holds the
/// lower half of the ticks: a sleeper that has been overdue for 2^31 ticks counts as patient for as many again.
pub(crate) use core::sync::atomic::AtomicUsize as Time;

/// Orders this CPU against its own interrupts; the model checkers have none.
#[cfg(any(loom, shuttle))]
pub(crate) fn compiler_fence(_: Ordering) {}

/// Whether a model checker runs this code: loops that are long for speed are then short.
pub(crate) const MODELLED: bool = cfg!(any(loom, shuttle, liveness));

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

/// Declares `new` of a type, `const` as above, by its fields as they are at first.
macro_rules! fresh {
    (pub $name:ident<$($parameter:ident: $bound:path),+> $fields:tt) => {
        impl<$($parameter: $bound),+> $name<$($parameter),+> {
            $crate::memory::const_unless_loom! {
                /// The initial state: free, and used by no CPU.
                pub const fn new() -> Self {
                    Self $fields
                }
            }
        }
    };
    ($visibility:vis $name:ident $fields:tt) => {
        impl $name {
            /// The initial state: free, and used by no CPU.
            #[cfg(not(loom))]
            $visibility const fn new() -> Self {
                Self $fields
            }

            /// The initial state: free, and used by no CPU.
            #[cfg(loom)]
            $visibility fn new() -> Self {
                Self $fields
            }
        }
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

pub(crate) use {array, const_unless_loom, fresh};

/// A value alone on its cache lines.
///
/// 128 bytes, not 64: adjacent lines are fetched in pairs by x86 prefetchers, so a neighbour one line away
/// still disturbs. The value is at its beginning.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    /// Pads `value`.
    pub const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for CachePadded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

const _: () = {
    assert!(align_of::<CachePadded<u8>>() == 128);
    assert!(size_of::<CachePadded<u8>>() == 128);
};
