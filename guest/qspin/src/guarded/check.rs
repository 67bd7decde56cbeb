//! Calls of the checks by guards, which are nothing without the feature `checked`.

#[cfg(feature = "checked")]
use core::{panic::Location, ptr};

#[cfg(feature = "checked")]
use crate::checks::{Checker, Use, Way};
use crate::contract::{ExclusiveWriter, TrustedCpu};

/// Way of taking a lock.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    #[cfg(feature = "checked")]
    way: Way,
}

impl Kind {
    /// A mutex, or a writer.
    pub(super) const ALONE: Self = Self {
        #[cfg(feature = "checked")]
        way: Way::Alone,
    };

    /// A reader of an `L`.
    pub(super) const fn reader<L: ExclusiveWriter<D>, D>() -> Self {
        let nests = L::READERS_NEST;
        _ = nests;
        Self {
            #[cfg(feature = "checked")]
            way: Way::Shared { nests },
        }
    }
}

/// The checks of a platform, if it has any, and the use of `lock` by the calling CPU, which is pinned.
#[cfg(feature = "checked")]
#[track_caller]
fn checker<'p, L>(platform: &'p impl TrustedCpu, lock: &L) -> Option<(Checker<'p>, Use)> {
    let checker = platform.checks()?;
    Some((checker, Use { cpu: platform.cpu(), lock: ptr::from_ref(lock).addr(), place: Location::caller() }))
}

/// The calling CPU is pinned and about to wait for `lock`.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(super) fn asks<L>(platform: &impl TrustedCpu, lock: &L, kind: Kind) {
    #[cfg(feature = "checked")]
    if let Some((checker, of)) = checker(platform, lock) {
        checker.asks(of, kind.way, platform.context(), |fault| platform.found(&fault));
    }
    _ = (platform, lock, kind);
}

/// The calling CPU is pinned and about to take `lock` if that is free. A fault is found before it has the lock.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(super) fn tries<L>(platform: &impl TrustedCpu, lock: &L, kind: Kind) {
    #[cfg(feature = "checked")]
    if let Some((checker, of)) = checker(platform, lock) {
        checker.tries(of, kind.way, platform.context(), |fault| platform.found(&fault));
    }
    _ = (platform, lock, kind);
}

/// The calling CPU has `lock`, for which it did not wait.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(super) fn got<L>(platform: &impl TrustedCpu, lock: &L, kind: Kind) {
    #[cfg(feature = "checked")]
    if let Some((checker, of)) = checker(platform, lock) {
        checker.got(of, kind.way);
    }
    _ = (platform, lock, kind);
}

/// The calling CPU is about to release `lock`.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(super) fn releases<L>(platform: &impl TrustedCpu, lock: &L) {
    #[cfg(feature = "checked")]
    if let Some((checker, of)) = checker(platform, lock) {
        checker.releases(of, |fault| platform.found(&fault));
    }
    _ = (platform, lock);
}
