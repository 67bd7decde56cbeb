//! Guests that come and go (`--vm ...,from=TIME/TIME`): outside these times of its window a guest's vCPUs get no pCPU.
//!
//! Before the window and after it they do, so that the guest boots, warms up and leaves. One that is on a pCPU when its guest goes stays
//! there until its slice ends.

use std::time::Duration;

use crate::host::error::Refused;
use crate::host::span::Span;
use crate::sched::window::WindowTimes;

/// When a guest is there, from the opening of its window on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// It comes.
    pub from: Duration,
    /// It goes; `None`: it stays.
    pub until: Option<Duration>,
}

/// How long a window may last beyond its length before a vCPU looks again.
const LOOK_NS: u64 = 1_000_000;

impl Presence {
    /// Refuses times that are none within a window of this length.
    ///
    /// # Errors
    /// The time that is wrong.
    pub fn check(self, window: Duration) -> Result<(), Refused> {
        let Self { from, until } = self;
        if from >= window {
            let message = format!("{} is beyond the window, which lasts {}", Span(from), Span(window));
            return Err(Refused::new("from", message));
        }
        match until {
            Some(until) if until <= from => {
                let message = format!(
                    "the guest goes at {} and comes at {}: give a later time",
                    Span(until),
                    Span(from)
                );
                Err(Refused::new("from", message))
            }
            Some(until) if until > window => {
                let message = format!("{} is beyond the window, which lasts {}", Span(until), Span(window));
                Err(Refused::new("from", message))
            }
            _ => Ok(()),
        }
    }

    /// The longest time in a window of this length in which the guest is not there.
    pub(crate) fn longest_absence(self, window: Duration) -> Duration {
        self.from.max(self.until.map_or(Duration::ZERO, |until| window.saturating_sub(until)))
    }

    /// When a vCPU that asks for a pCPU at `now_ns` is to ask again; `None`: it gets one. The window was asked to last `length_ns`.
    pub(crate) fn absent_until(self, window: &WindowTimes, length_ns: u64, now_ns: u64) -> Option<u64> {
        if !window.contains(now_ns) {
            return None;
        }
        let [open_ns, _] = window.times();
        let at = |time: Duration| open_ns + time.as_nanos() as u64;
        if now_ns < at(self.from) {
            return Some(at(self.from));
        }
        let gone = self.until.is_some_and(|until| now_ns >= at(until));
        gone.then(|| (open_ns + length_ns).max(now_ns + LOOK_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn presence(from_ms: u64, until_ms: Option<u64>) -> Presence {
        Presence { from: Duration::from_millis(from_ms), until: until_ms.map(Duration::from_millis) }
    }

    #[test]
    fn a_guest_is_there_before_its_window_between_its_times_and_afterwards() {
        let window = WindowTimes::new();
        let at = |now_ms: u64| presence(10, Some(30)).absent_until(&window, 50 * MS, now_ms * MS);
        assert_eq!(at(5), None);
        window.open(100 * MS);
        assert_eq!([99, 100, 109].map(at), [None, Some(110 * MS), Some(110 * MS)]);
        assert_eq!([110, 129].map(at), [None, None]);
        assert_eq!([130, 149, 170].map(at), [Some(150 * MS), Some(150 * MS), Some(171 * MS)]);
        window.close(175 * MS);
        assert_eq!(at(180), None);
    }

    #[test]
    fn times_that_cannot_be_are_refused() {
        let window = Duration::from_millis(50);
        assert_eq!(presence(10, Some(30)).check(window), Ok(()));
        assert_eq!(presence(0, None).check(window), Ok(()));
        for (presence, about) in
            [(presence(50, None), "from"), (presence(10, Some(10)), "from"), (presence(10, Some(51)), "from")]
        {
            assert_eq!(presence.check(window).unwrap_err().about, about, "{presence:?}");
        }
        assert_eq!(presence(10, Some(30)).longest_absence(window), Duration::from_millis(20));
    }
}
