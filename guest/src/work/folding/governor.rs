//! The control law of Linux' steal governor, as its document of September 2026 states it.

/// Thresholds of the law, in hundredths of a percent of the time of all active CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Law {
    /// Up to this share of stolen time a CPU is unfolded.
    pub(crate) low: u32,
    /// Above this share one is folded.
    pub(crate) high: u32,
}

/// The governor's memory: its last sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Governor {
    law: Law,
    stolen_ns: u64,
    at_ns: u64,
}

/// A shorter time since the last sample is no sample.
const SHORTEST_NS: u64 = 1_000_000;

impl Governor {
    /// A governor whose first sample is counted from now on.
    #[must_use]
    pub(crate) const fn new(law: Law, stolen_ns: u64, now_ns: u64) -> Self {
        Self { law, stolen_ns, at_ns: now_ns }
    }

    /// Takes a sample: `stolen_ns` is the time stolen from all CPUs since they started, `active` how many of them take part.
    /// Returns how many are preferred from now on, where `preferred` were: the lowest ones, at least one; one more or less.
    #[must_use]
    pub(crate) fn sample(&mut self, stolen_ns: u64, now_ns: u64, preferred: u32, active: u32) -> u32 {
        let passed_ns = now_ns.saturating_sub(self.at_ns);
        if passed_ns < SHORTEST_NS {
            return preferred;
        }
        // A record that is read while it changes may seem to go back.
        let stolen = stolen_ns.saturating_sub(self.stolen_ns);
        (self.stolen_ns, self.at_ns) = (stolen_ns, now_ns);
        let hundredth_of_a_percent = (passed_ns.saturating_mul(u64::from(active)) / 10_000).max(1);
        match stolen / hundredth_of_a_percent {
            share if share > u64::from(self.law.high) => preferred.saturating_sub(1).max(1),
            share if share <= u64::from(self.law.low) => (preferred + 1).min(active),
            _ => preferred,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINUX: Law = Law { low: 200, high: 500 };
    const SECOND: u64 = 1_000_000_000;

    /// Preferred CPUs after each of `samples` seconds, of each of `guests` equal guests of `cpus` CPUs, all busy, on `pcpus` that
    /// are shared fairly.
    fn replay(cpus: u32, guests: u32, pcpus: u32, samples: u64) -> impl Iterator<Item = u32> {
        let mut governor = Governor::new(LINUX, 0, 0);
        let (mut preferred, mut stolen_ns) = (cpus, 0);
        (1..=samples).map(move |second| {
            let lost = u64::from(preferred * guests).saturating_sub(u64::from(pcpus));
            stolen_ns += lost * SECOND / u64::from(guests);
            preferred = governor.sample(stolen_ns, second * SECOND, preferred, cpus);
            preferred
        })
    }

    #[test]
    fn a_small_guest_never_comes_to_rest() {
        // Two pCPUs for each of four guests with 8 CPUs: with 3 of them 12.5 % are stolen, with 2 nothing.
        let steps: [u32; 10] = core::array::from_fn(|at| replay(8, 4, 8, 10).nth(at).expect("a step"));
        assert_eq!(steps, [7, 6, 5, 4, 3, 2, 3, 2, 3, 2]);
    }

    #[test]
    fn a_large_guest_comes_to_rest_near_its_share() {
        // 34 CPUs are enough for a step of less than the 3 % between the thresholds.
        for (cpus, pcpus) in [(34, 17), (64, 32), (128, 100)] {
            let last = replay(cpus, 2, pcpus, 300).last().expect("a step");
            assert_eq!(replay(cpus, 2, pcpus, 301).last(), Some(last), "{cpus}: rests");
            let stolen = f64::from(last) - f64::from(pcpus) / 2.0;
            assert!((0.0201..=0.0501).contains(&(stolen / f64::from(cpus))), "{cpus}: {last}");
        }
    }

    /// Thresholds belong to rest and to unfold. The share is one of all active CPUs, not of the preferred ones (nor of possible ones, as in
    /// version 10 of the law); at least one CPU stays preferred, and at most as many as there are.
    #[test]
    fn a_sample_folds_or_unfolds_one_cpu_by_the_share() {
        for (hundredths, preferred, active, then) in [
            (200, 2, 3, 3),
            (201, 2, 3, 2),
            (500, 2, 3, 2),
            (501, 2, 3, 1),
            (10_000, 1, 8, 1),
            (0, 7, 8, 8),
            (0, 8, 8, 8),
        ] {
            let stolen_ns = hundredths * u64::from(active) * SECOND / 10_000;
            let sample = Governor::new(LINUX, 0, 0).sample(stolen_ns, SECOND, preferred, active);
            assert_eq!(sample, then, "{hundredths} hundredths of a percent of {active}");
        }
    }

    #[test]
    fn a_sample_within_a_millisecond_changes_nothing() {
        let mut governor = Governor::new(LINUX, 0, 0);
        assert_eq!(governor.sample(2_700_000, 999_999, 2, 3), 2);
        assert_eq!(governor.sample(2_700_000, 1_000_000, 2, 3), 1, "the time before it counts");
        assert_eq!(governor.sample(2_400_000, 3_000_000, 2, 3), 3, "time that goes back is none");
    }
}
