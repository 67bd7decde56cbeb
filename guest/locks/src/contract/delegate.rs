//! A platform that is another one, but for what happens at its points and pauses.

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

    /// See [`Platform::pause`].
    #[inline(always)]
    fn pause(&self) {
        self.platform().pause();
    }

    /// See [`Platform::announce`].
    #[inline(always)]
    fn announce(&self, activity: Activity) {
        self.platform().announce(activity);
    }

    /// See [`Platform::is_preempted`].
    #[inline(always)]
    fn is_preempted(&self, cpu: usize) -> bool {
        self.platform().is_preempted(cpu)
    }

    /// See [`Platform::point`].
    #[inline(always)]
    fn point(&self, point: Point) {
        self.platform().point(point);
    }
}

/// Several domains can share one platform.
impl<P: Platform> Delegate for &P {
    type Platform = P;

    #[inline(always)]
    fn platform(&self) -> &P {
        self
    }
}

impl<D: Delegate> Platform for D {
    #[inline(always)]
    fn cpu(&self) -> usize {
        self.platform().cpu()
    }

    #[inline(always)]
    fn pause(&self) {
        Delegate::pause(self);
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        self.platform().now()
    }

    #[inline(always)]
    fn off_ticks(&self) -> u64 {
        self.platform().off_ticks()
    }

    #[inline(always)]
    fn spin_threshold(&self) -> u64 {
        self.platform().spin_threshold()
    }

    #[inline(always)]
    fn spin_rounds(&self) -> u32 {
        self.platform().spin_rounds()
    }

    #[inline(always)]
    fn lock_limit(&self) -> u64 {
        self.platform().lock_limit()
    }

    #[inline(always)]
    fn is_in_nmi(&self) -> bool {
        self.platform().is_in_nmi()
    }

    #[inline(always)]
    fn wait(&self, still: impl Fn() -> bool) {
        self.platform().wait(still);
    }

    #[inline(always)]
    fn kick(&self, cpu: usize) {
        self.platform().kick(cpu);
    }

    #[inline(always)]
    fn is_preempted(&self, cpu: usize) -> bool {
        Delegate::is_preempted(self, cpu)
    }

    #[inline(always)]
    fn is_preempted_for_the_record(&self, cpu: usize) -> bool {
        self.platform().is_preempted_for_the_record(cpu)
    }

    #[inline(always)]
    fn ticks(&self, nanoseconds: u64) -> u64 {
        self.platform().ticks(nanoseconds)
    }

    #[inline(always)]
    fn is_overcommitted(&self) -> bool {
        self.platform().is_overcommitted()
    }

    #[inline(always)]
    fn yield_to(&self, cpu: Option<usize>) {
        self.platform().yield_to(cpu);
    }

    #[inline(always)]
    fn is_in_section(&self) -> bool {
        self.platform().is_in_section()
    }

    #[inline(always)]
    fn section_entered(&self) {
        self.platform().section_entered();
    }

    #[inline(always)]
    fn section_left(&self) {
        self.platform().section_left();
    }

    #[inline(always)]
    fn slice_left(&self) -> u64 {
        self.platform().slice_left()
    }

    #[inline(always)]
    fn slice_margin(&self) -> u64 {
        self.platform().slice_margin()
    }

    #[inline(always)]
    fn slice_ends_soon(&self) -> bool {
        self.platform().slice_ends_soon()
    }

    #[inline(always)]
    fn count(&self, event: Event, n: u64) {
        self.platform().count(event, n);
    }

    #[inline(always)]
    fn announce(&self, activity: Activity) {
        Delegate::announce(self, activity);
    }

    #[inline(always)]
    fn point(&self, point: Point) {
        Delegate::point(self, point);
    }
}

#[cfg(all(test, not(any(loom, shuttle, liveness))))]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    /// The names of the functions that `source` declares.
    fn functions(source: &str) -> Vec<&str> {
        let declared = source.lines().filter_map(|line| line.strip_prefix("    fn "));
        declared.map(|rest| &rest[..rest.find('(').expect("a function has arguments")]).collect()
    }

    /// Answers where the trait's default would answer something else.
    struct Unusual;

    impl Platform for Unusual {
        fn cpu(&self) -> usize {
            0
        }

        fn pause(&self) {}

        fn now(&self) -> u64 {
            0
        }

        fn spin_threshold(&self) -> u64 {
            0
        }

        fn wait(&self, _: impl Fn() -> bool) {}

        fn kick(&self, _: usize) {}

        fn is_preempted(&self, _: usize) -> bool {
            false
        }

        fn ticks(&self, nanoseconds: u64) -> u64 {
            nanoseconds * 3
        }

        fn yield_to(&self, _: Option<usize>) {}

        fn slice_ends_soon(&self) -> bool {
            true
        }

        fn count(&self, _: Event, _: u64) {}
    }

    fn answers(platform: impl Platform) -> (u64, bool) {
        (platform.ticks(7), platform.slice_ends_soon())
    }

    #[test]
    fn a_reference_answers_as_the_platform_does() {
        assert_eq!(answers(Unusual), (21, true));
        assert_eq!(answers(&Unusual), (21, true));
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
