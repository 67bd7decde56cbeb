//! How long a sleeper takes to wake up, by how long it has slept: an idle CPU sleeps deeper the longer nothing happens.

/// A token that two vCPUs on two pCPUs hand to each other, each after it has worked for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandOver {
    /// The work before the token is passed on, in nanoseconds.
    pub hold_ns: f64,
    /// From one passing on to the next, in nanoseconds.
    pub period_ns: f64,
}

/// The cost of a wake-up, as machine files say it.
#[derive(Debug, PartialEq)]
pub(super) struct WakeUp {
    /// Cost after the shortest sleep, in nanoseconds.
    pub wake_ns: f64,
    /// `after-us` and `wake-us` of each deeper idle state, in microseconds, ascending.
    pub idle: Vec<(f64, f64)>,
}

impl WakeUp {
    /// From handoffs in the order of their `hold_ns`, given what an exit and a kick cost on this host.
    ///
    /// A period is the work, half of an exit and the kick, after which the sleeper is ready, and what is left: its way out of the
    /// sleep and into the guest. It had slept since it had passed the token on, kicked, and left its guest once more, which is a
    /// period less an exit.
    pub(super) fn from_hand_overs(hand_overs: &[HandOver], exit_ns: f64, kick_ns: f64) -> Self {
        let wake = |it: &HandOver| (it.period_ns - it.hold_ns - exit_ns / 2.0 - kick_ns).max(0.0);
        let slept = |it: &HandOver| (it.period_ns - exit_ns).max(1000.0);
        let wake_ns = hand_overs.first().map_or(0.0, wake);
        let (mut idle, mut deepest_ns) = (Vec::new(), 0.0);
        for pair in hand_overs.windows(2) {
            let longer_ns = wake(&pair[1]) - wake_ns;
            // A state begins half way between the sleeps that were tried, on a scale of ratios. Steps below a microsecond are noise.
            if longer_ns > deepest_ns + 1000.0 {
                let after_ns = (slept(&pair[0]) * slept(&pair[1])).sqrt();
                idle.push((after_ns / 1000.0, longer_ns / 1000.0));
                deepest_ns = longer_ns;
            }
        }
        Self { wake_ns, idle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hand_overs(pairs: &[(f64, f64)]) -> Vec<HandOver> {
        pairs.iter().map(|&(hold_ns, period_ns)| HandOver { hold_ns, period_ns }).collect()
    }

    #[test]
    fn a_host_with_equally_fast_wake_ups_has_no_idle_states() {
        let measured = hand_overs(&[(0.0, 5000.0), (20_000.0, 25_100.0), (500_000.0, 504_900.0)]);
        let wake_up = WakeUp::from_hand_overs(&measured, 1000.0, 1500.0);
        assert_eq!(wake_up, WakeUp { wake_ns: 3000.0, idle: vec![] });
    }

    #[test]
    fn an_added_cost_is_an_idle_state_between_the_tried_sleeps() {
        let measured = hand_overs(&[(0.0, 5000.0), (20_000.0, 37_000.0), (500_000.0, 640_000.0)]);
        let wake_up = WakeUp::from_hand_overs(&measured, 1000.0, 1500.0);
        let [(first_after, first), (second_after, second)] = wake_up.idle[..] else { panic!("{wake_up:?}") };
        assert_eq!((first, second), (12.0, 135.0));
        assert!((4.0..36.0).contains(&first_after) && (36.0..639.0).contains(&second_after), "{wake_up:?}");
    }

    #[test]
    fn no_time_is_less_than_none_where_the_host_was_busy() {
        let wake_up =
            WakeUp::from_hand_overs(&hand_overs(&[(0.0, 900.0), (20_000.0, 19_000.0)]), 1000.0, 1500.0);
        assert_eq!(wake_up, WakeUp { wake_ns: 0.0, idle: vec![] });
    }
}
