//! Law 15: how long a vCPU that halts polls for its wake-up before its thread sleeps.

use crate::hosts::policy::Poll;

/// The interval of one vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// How long it polls at its next halt.
    pub ns: u64,
}

impl Interval {
    /// The vCPU woke up `blocked_ns` after it halted.
    pub fn woke(&mut self, poll: &Poll, blocked_ns: u64) {
        if poll.most_ns == 0 || blocked_ns <= self.ns {
            return;
        }
        if blocked_ns > poll.most_ns {
            self.shrink(poll);
        } else if self.ns < poll.most_ns {
            self.ns = (self.ns * 2).max(poll.start_ns).min(poll.most_ns);
        }
    }

    fn shrink(&mut self, poll: &Poll) {
        self.ns = self.ns.checked_div(poll.shrink).unwrap_or(0);
        if self.ns < poll.start_ns {
            self.ns = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(shrink: u64, blocked_us: &[u64]) -> Vec<u64> {
        let poll = Poll { most_ns: 200_000, start_ns: 10_000, shrink };
        let mut interval = Interval::default();
        let after = |us: &u64| {
            interval.woke(&poll, us * 1000);
            interval.ns / 1000
        };
        blocked_us.iter().map(after).collect()
    }

    #[test]
    fn polls_double_while_short_blocks_outlast_them() {
        assert_eq!(intervals(2, &[150; 7]), [10, 20, 40, 80, 160, 160, 160]);
        assert_eq!(intervals(2, &[190; 7]), [10, 20, 40, 80, 160, 200, 200]);
    }

    #[test]
    fn a_long_block_shrinks_the_poll() {
        assert_eq!(intervals(2, &[150, 150, 150, 9000, 9000, 9000]), [10, 20, 40, 20, 10, 0]);
        assert_eq!(intervals(0, &[150, 150, 150, 9000]), [10, 20, 40, 0]);
    }
}
