//! Order statistics of all pairs of values. The pairs are counted and never made: their number grows with the square of the blocks.

/// Figures of pairs of values, which are known by how many of them are at most a bound: the sums of a value of one group and one of
/// another, or of the same group.
pub(crate) struct Pairs {
    /// Ascending, as is the other group.
    group: Vec<f64>,
    /// `None`: the same group, of which each pair counts once, and each value has one with itself.
    other: Option<Vec<f64>>,
}

impl Pairs {
    /// Means of all pairs of some values, each value with itself included (Walsh averages).
    pub(crate) fn averages(values: &[f64]) -> Self {
        Self { group: sorted(values.iter().map(|value| value / 2.0)), other: None }
    }

    /// Differences between each value of one group and each of another.
    pub(crate) fn differences(above: &[f64], below: &[f64]) -> Self {
        let negative = below.iter().map(|value| -value);
        Self { group: sorted(above.iter().copied()), other: Some(sorted(negative)) }
    }

    /// Number of figures, at least one.
    pub(crate) fn count(&self) -> usize {
        self.not_above(f64::INFINITY)
    }

    /// Number of figures that are at most `bound`.
    pub(crate) fn not_above(&self, bound: f64) -> usize {
        let other = self.other.as_ref().unwrap_or(&self.group);
        let (mut count, mut end) = (0, other.len());
        for value in &self.group {
            // The larger one value, the fewer others go with it.
            while end > 0 && value + other[end - 1] > bound {
                end -= 1;
            }
            count += end;
        }
        let with_itself = self.group.partition_point(|value| value + value <= bound);
        if self.other.is_some() { count } else { (count + with_itself) / 2 }
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

pub(crate) fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.collect();
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
