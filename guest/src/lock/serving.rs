//! How page faults are served in a run with a lock.

use haltkick_mm::Scheme;

/// Whose rules `mmap_sem` has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    Today,
    Of2018,
}

/// A way to serve page faults: the scheme, and what `mmap_sem` is like.
pub(crate) type Serving = (Scheme, Rules);

/// Setting of a run with any other lock.
pub(crate) const MMAP_SEM: Serving = (Scheme::MmapSem, Rules::Today);
