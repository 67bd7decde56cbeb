//! `--spin-threshold`: how long a paravirtual waiter spins before it sleeps, by the clock or by count.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use haltkick_vmm::Span;

/// A bound on spinning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinThreshold {
    /// A duration.
    For(Span),
    /// As Linux has it: 2^15 rounds, each with one PAUSE, however long these take.
    Linux,
}

impl SpinThreshold {
    /// `SPIN_THRESHOLD` of Linux on x86.
    const LINUX_ROUNDS: u32 = 1 << 15;
    /// Duration in their place where a lock needs a time: a PAUSE takes 3 to 35 ns, so that they are 0.1 to 1.1 ms.
    const LINUX_ABOUT: Duration = Duration::from_millis(1);

    /// The time, and how many rounds go before it; 0: none do.
    pub(crate) fn time_and_rounds(self) -> (Duration, u32) {
        match self {
            Self::For(Span(time)) => (time, 0),
            Self::Linux => (Self::LINUX_ABOUT, Self::LINUX_ROUNDS),
        }
    }
}

impl FromStr for SpinThreshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "linux" => Ok(Self::Linux),
            time => time.parse().map(Self::For).map_err(|error| format!("{error}; or 'linux'")),
        }
    }
}

impl fmt::Display for SpinThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::For(time) => time.fmt(f),
            Self::Linux => f.write_str("linux"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_a_time_or_that_of_linux() {
        let resolved = |text: &str| text.parse().map(SpinThreshold::time_and_rounds);
        assert_eq!(resolved("5us"), Ok((Duration::from_micros(5), 0)));
        assert_eq!(resolved("linux").map(|(_, rounds)| rounds), Ok(32_768));
        assert!(resolved("32768").unwrap_err().ends_with("or 'linux'"));
    }
}
