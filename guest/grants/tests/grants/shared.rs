//! The arrangement that tests with threads and tests with a model checker share.

use haltkick_grants::*;

/// Mapping and granting domain.
pub(crate) const MAPPER: u16 = 0;
pub(crate) const GRANTER: u16 = 1;

/// Runs tests by a function of the caller under every scheme of a kernel; under Miri, which is slow, under the one with most kinds
/// of locks.
macro_rules! under_every_scheme {
    ($run:ident, $kernel:ident; $($test:ident)+) => {
        #[cfg(not(miri))]
        mod others {
            use super::*;

            under_every_scheme!(in $run $kernel [$($test)+] single Single, split Split, unpadded Unpadded,
                strict_single StrictSingle, strict_split StrictSplit, brief Brief, cleaned Cleaned,
                lists Lists, per_cpu PerCpu);
        }
        under_every_scheme!(in $run $kernel [$($test)+] fair Fair);
    };
    (in $run:ident $kernel:ident $tests:tt $($module:ident $scheme:ident),+) => {
        $(under_every_scheme!(@ $module $scheme $run $kernel $tests);)+
    };
    (@ $module:ident $scheme:ident $run:ident $kernel:ident [$($test:ident)+]) => {
        mod $module {
            $(#[test] fn $test() { super::$run(super::$test::<super::$scheme<super::$kernel>>); })+
        }
    };
}

pub(crate) use under_every_scheme;

pub(crate) fn to_map(reference: u32, flags: u32) -> MapRequest {
    MapRequest { granter: GRANTER, reference, flags }
}

/// The heap. What is made here stays until the process ends.
pub(crate) struct Heap;

impl Memory for Heap {
    fn slice<T: Sync>(&self, length: usize, make: impl FnMut(usize) -> T) -> &'static [T] {
        (0..length).map(make).collect::<Vec<_>>().leak()
    }
}
