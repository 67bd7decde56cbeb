//! Types that name domains.
#![expect(unsafe_code, reason = "who uses a domain beside the guards can break them")]

use crate::contract::{Domain, TrustedCpu};

/// A type that names the domain of guarded locks; [`home!`](crate::home) declares one.
///
/// # Safety
///
/// [`domain`](Home::domain) returns the same domain each time, and there is no other way to a reference to it.
pub unsafe trait Home: 'static {
    /// Domain shared by the locks.
    type Domain: Domain<Platform: TrustedCpu> + 'static;

    /// That domain.
    ///
    /// # Safety
    ///
    /// For each lock that is taken with it: all its users pass this domain, and each token is given to one `unlock` of the
    /// same lock, by the CPU that got it. (Locks share nodes: an `unlock` too many of one may let two CPUs into another.)
    unsafe fn domain() -> &'static Self::Domain;
}

/// The platform that serves the locks at `H`.
pub(super) type PlatformOf<H> = <<H as Home>::Domain as Domain>::Platform;

/// That platform.
#[inline(always)]
pub(super) fn platform<H: Home>() -> &'static PlatformOf<H> {
    // SAFETY: no lock is taken.
    unsafe { H::domain() }.platform()
}

/// Declares types that name domains, for [`guarded`](crate::guarded) locks: `home! { pub Name: Domain = initial value; }`.
#[macro_export]
macro_rules! home {
    ($($(#[$attribute:meta])* $visibility:vis $name:ident: $domain:ty = $initial:expr;)+) => {$(
        $(#[$attribute])*
        #[derive(Debug)]
        $visibility enum $name {}

        #[allow(unsafe_code, reason = "the macro keeps the promise")]
        // SAFETY: it is one static, whose name is known here alone.
        unsafe impl $crate::guarded::Home for $name {
            type Domain = $domain;

            #[inline(always)]
            unsafe fn domain() -> &'static $domain {
                static DOMAIN: $domain = $initial;
                &DOMAIN
            }
        }
    )+};
}
