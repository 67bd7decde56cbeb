//! Order statistics of all pairs of values. The pairs are counted and never made: their number grows with the square of the blocks.

/// Figures of pairs of values, which are known by how many of them are at most a bound.
pub(crate) enum Pairs {
    /// Means of all pairs of some ascending values, each value with itself included (Walsh averages).
    Averages(Vec<f64>),
    /// Differences between each ascending value of one group and each of another.
    Differences { above: Vec<f64>, below: Vec<f64> },
}

impl Pairs {
    pub(crate) fn averages(values: &[f64]) -> Self {
        Self::Averages(sorted(values))
    }

    pub(crate) fn differences(above: &[f64], below: &[f64]) -> Self {
        Self::Differences { above: sorted(above), below: sorted(below) }
    }

    /// Number of figures, at least one.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Averages(values) => values.len() * (values.len() + 1) / 2,
            Self::Differences { above, below } => above.len() * below.len(),
        }
    }

    /// Number of figures that are at most `bound`.
    pub(crate) fn not_above(&self, bound: f64) -> usize {
        let mut count = 0;
        match self {
            Self::Averages(values) => {
                let mut end = values.len();
                for (at, value) in values.iter().enumerate() {
                    // The larger one value, the fewer others go with it.
                    while end > at && f64::midpoint(*value, values[end - 1]) > bound {
                        end -= 1;
                    }
                    count += end.saturating_sub(at);
                }
            }
            Self::Differences { above, below } => {
                let mut start = 0;
                for value in above {
                    while start < below.len() && value - below[start] > bound {
                        start += 1;
                    }
                    count += below.len() - start;
                }
            }
        }
        count
    }

    /// The figure with this rank, from 0 for the least.
    pub(crate) fn ranked(&self, rank: usize) -> f64 {
        let [mut low, mut high] = [f64::NEG_INFINITY, f64::INFINITY].map(key);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.not_above(of_key(middle)) > rank {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        // Not -0, which is the same number with an earlier key.
        of_key(low) + 0.0
    }

    pub(crate) fn median(&self) -> f64 {
        let count = self.count();
        f64::midpoint(self.ranked((count - 1) / 2), self.ranked(count / 2))
    }
}

/// The place of the sign in a number, which the numbers of [`key`] have the other way round.
const SIGN: u64 = 1 << 63;

/// Number in the order of `f64::total_cmp`.
fn key(value: f64) -> u64 {
    let bits = value.to_bits();
    if bits & SIGN == 0 { bits | SIGN } else { !bits }
}

fn of_key(key: u64) -> f64 {
    f64::from_bits(if key & SIGN == 0 { !key } else { key & !SIGN })
}

pub(crate) fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _, rngs::ChaCha8Rng};

    use super::*;

    /// Every rank, against the figures themselves.
    fn check(pairs: &Pairs, mut figures: Vec<f64>) {
        figures.sort_by(f64::total_cmp);
        assert_eq!(pairs.count(), figures.len());
        for (rank, figure) in figures.iter().enumerate() {
            assert_eq!(pairs.ranked(rank), *figure, "{rank} of {figures:?}");
        }
        for bound in [-1.0, 0.0, 0.25, 3.0] {
            let below = figures.iter().filter(|figure| **figure <= bound).count();
            assert_eq!(pairs.not_above(bound), below, "{bound} in {figures:?}");
        }
    }

    #[test]
    fn ranks_are_those_of_the_pairs_themselves() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for n in 1..25 {
            // Few different values have ties; others differ in their last digits.
            let mut draw = |steps: u32| f64::from(rng.random_range(0..steps)) / 7.0 - 1.5;
            for steps in [4, 1_000_000] {
                let values: Vec<f64> = (0..n).map(|_| draw(steps)).collect();
                let others: Vec<f64> = (0..n / 2 + 1).map(|_| draw(steps)).collect();
                let pairs = (0..n).flat_map(|i| (i..n).map(move |j| (i, j)));
                let averages = pairs.map(|(i, j)| f64::midpoint(values[i], values[j])).collect();
                check(&Pairs::averages(&values), averages);
                let differences = values.iter().flat_map(|a| others.iter().map(move |b| a - b)).collect();
                check(&Pairs::differences(&values, &others), differences);
            }
        }
    }

    /// All pairs of them would take 40 GB.
    #[test]
    fn a_hundred_thousand_values_need_no_room_for_their_pairs() {
        let values: Vec<f64> = (0..100_000).map(f64::from).collect();
        assert_eq!(Pairs::averages(&values).median(), 49_999.5);
        assert_eq!(Pairs::differences(&values, &values).median(), 0.0);
    }
}
