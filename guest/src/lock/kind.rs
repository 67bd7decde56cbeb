//! Kinds of locks: what the table of calls needs of each.

use haltkick_locks::{Domain, RwLock};
use haltkick_mm::Scheme;

pub(crate) trait Kind: 'static {
    /// The lock itself, with readers that share it or do not.
    type Lock: RwLock<Self::Domain> + 'static;
    /// The memory that all locks of this kind share.
    type Domain: Domain + 'static;
    /// Whether it excludes; the one that does not is the measure of the ideal.
    const EXCLUDES: bool = true;
    /// Meaning of a lock's first bytes, for readers of a guest that failed.
    const WORD: u32 = haltkick_hypercalls::WORD_OPAQUE;
    /// How page faults are served in a run with this lock.
    const FAULTS: Option<Serving> = Some(MMAP_SEM);

    fn new() -> Self::Lock;
    /// The shared memory.
    fn domain() -> &'static Self::Domain;
}

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

/// From one lock to the next, whatever their kind.
pub(crate) const INSTANCE_BYTES: usize = 256;

/// State shared by all locks of a kind begins at a page, so that offsets in a page do not depend on its
/// neighbours.
#[repr(align(4096))]
pub(crate) struct Paged<T>(pub(crate) T);

/// Declares a kind of lock with the memory that its locks share; with `= new`, a reader-writer lock and a reference to that memory.
macro_rules! guest_kind {
    ($name:ident: $lock:ty, $domain_type:ty = $domain:expr $(, $constant:ident: $type:ty = $value:expr)*) => {
        $crate::lock::kind::guest_kind! {
            $name: haltkick_grants::Exclusive<$lock> = haltkick_grants::Exclusive(<$lock>::new()),
            $domain_type = {
                static DOMAIN: $crate::lock::kind::Paged<$domain_type> = $crate::lock::kind::Paged($domain);
                &DOMAIN.0
            }
            $(, $constant: $type = $value)*
        }
    };
    ($name:ident: $lock:ty = $new:expr, $domain_type:ty = $domain:expr $(, $constant:ident: $type:ty = $value:expr)*) => {
        pub(crate) enum $name {}

        impl $crate::lock::kind::Kind for $name {
            type Lock = $lock;
            type Domain = $domain_type;
            $(const $constant: $type = $value;)*

            #[inline(always)]
            fn new() -> $lock {
                $new
            }

            #[inline(always)]
            fn domain() -> &'static $domain_type {
                $domain
            }
        }
    };
}

pub(crate) use guest_kind;
