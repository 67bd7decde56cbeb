//! A platform that is another one, but for what happens at its points.

use super::{Activity, Event, Platform, Point};

/// Hands every method of [`Platform`] on to another platform.
///
/// For instrumented variants, which differ from the plain ones by [`point`](Delegate::point) alone, and for platforms that know more than the one below.
/// All methods are forwarded in one place, so that no wrapper can forget one: its default would answer unnoticed.
pub trait Delegate: Sync {
    /// The platform that receives the calls.
    type Platform: Platform;

    /// The one that answers.
    fn platform(&self) -> &Self::Platform;

    /// See [`Platform::point`].
    #[inline(always)]
    fn point(&self, point: Point) {
        self.platform().point(point);
    }
}

/// Declares methods of [`Platform`] that the platform below answers.
macro_rules! handed_on {
    ($(fn $method:ident(&self $(, $argument:ident: $type:ty)*) $(-> $answer:ty)?;)+) => {$(
        #[inline(always)]
        fn $method(&self $(, $argument: $type)*) $(-> $answer)? {
            self.platform().$method($($argument),*)
        }
    )+};
}

impl<D: Delegate> Platform for D {
    handed_on! {
        fn cpu(&self) -> usize;
        fn pause(&self);
        fn now(&self) -> u64;
        fn off_ticks(&self) -> u64;
        fn spin_threshold(&self) -> u64;
        fn spin_rounds(&self) -> u32;
        fn lock_limit(&self) -> u64;
        fn announce(&self, activity: Activity);
        fn is_in_nmi(&self) -> bool;
        fn wait(&self, still: impl Fn() -> bool);
        fn kick(&self, cpu: usize);
        fn is_preempted(&self, cpu: usize) -> bool;
        fn is_preempted_for_the_record(&self, cpu: usize) -> bool;
        fn ticks(&self, nanoseconds: u64) -> u64;
        fn is_overcommitted(&self) -> bool;
        fn yield_to(&self, cpu: Option<usize>);
        fn is_in_section(&self) -> bool;
        fn section_entered(&self);
        fn section_left(&self);
        fn slice_left(&self) -> u64;
        fn slice_margin(&self) -> u64;
        fn slice_ends_soon(&self) -> bool;
        fn count(&self, event: Event, n: u64);
    }

    #[inline(always)]
    fn point(&self, point: Point) {
        Delegate::point(self, point);
    }
}

#[cfg(all(test, not(any(loom, shuttle, liveness))))]
mod tests {
    extern crate std;

    use std::collections::BTreeSet;

    /// The names of the functions that `source` declares.
    fn functions(source: &str) -> BTreeSet<&str> {
        let declared = source.lines().filter_map(|line| line.trim_start().strip_prefix("fn "));
        declared.map(|rest| &rest[..rest.find('(').expect("a function has arguments")]).collect()
    }

    #[test]
    fn every_method_of_the_platform_is_handed_on() {
        let contract = include_str!("platform.rs");
        let handing_on = include_str!("delegate.rs");
        let start = handing_on.find("impl<D: Delegate> Platform for D {").expect("the one place");
        let end = start + handing_on[start..].find("\n}\n").expect("it ends");
        assert_eq!(functions(contract), functions(&handing_on[start..end]));
    }
}
