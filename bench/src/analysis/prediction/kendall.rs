//! Kendall's tau: how far two rows of figures are in the same order.

use super::Efficiencies;

/// 1 if both figures say the same of which of the two is greater, -1 if they say the contrary, 0 if one says neither.
pub(super) fn concordance(a: (f64, f64), b: (f64, f64)) -> i64 {
    let sign = |x: f64, y: f64| x.total_cmp(&y) as i64;
    sign(a.0, b.0) * sign(a.1, b.1)
}

/// Kendall's tau-b of pairs of figures.
pub(super) fn tau_b(figures: &[(f64, f64)]) -> Option<f64> {
    let (mut agreement, mut first_differ, mut second_differ) = (0, 0_u64, 0_u64);
    for (index, a) in figures.iter().enumerate() {
        for b in &figures[index + 1..] {
            agreement += concordance(*a, *b);
            first_differ += u64::from(a.0 != b.0);
            second_differ += u64::from(a.1 != b.1);
        }
    }
    let pairs = (first_differ as f64 * second_differ as f64).sqrt();
    (pairs > 0.0).then(|| agreement as f64 / pairs)
}

/// The mean tau-b of pairs of blocks, over the arms that both have.
pub(super) fn mean_of_pairs<'a>(
    pairs: impl Iterator<Item = (&'a Efficiencies, &'a Efficiencies)>,
) -> Option<f64> {
    let of_pair = |(a, b): (&Efficiencies, &Efficiencies)| {
        let both = a.iter().filter_map(|(arm, of_a)| Some((*of_a, *b.get(arm)?)));
        tau_b(&both.collect::<Vec<_>>())
    };
    let taus: Vec<f64> = pairs.filter_map(of_pair).collect();
    (!taus.is_empty()).then(|| taus.iter().sum::<f64>() / taus.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tau_is_that_of_another_implementation() {
        // scipy.stats.kendalltau([1, 2, 3, 4, 5], [3, 1, 2, 5, 4]) and ([1, 2, 2, 3], [1, 2, 3, 3]).
        let tau = tau_b(&[(1.0, 3.0), (2.0, 1.0), (3.0, 2.0), (4.0, 5.0), (5.0, 4.0)]).unwrap();
        assert!((tau - 0.4).abs() < 1e-12, "{tau}");
        let tau = tau_b(&[(1.0, 1.0), (2.0, 2.0), (2.0, 3.0), (3.0, 3.0)]).unwrap();
        assert!((tau - 0.8).abs() < 1e-12, "{tau}");
        assert_eq!(tau_b(&[(1.0, 1.0)]), None);
        assert_eq!(tau_b(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }

    #[test]
    fn blocks_are_compared_by_the_arms_that_both_have() {
        let block = |figures: &[(&str, f64)]| -> Efficiencies {
            figures.iter().map(|(arm, figure)| ((*arm).to_owned(), *figure)).collect()
        };
        let a = block(&[("tas", 1.0), ("mcs", 2.0), ("clh", 3.0)]);
        let same = block(&[("tas", 10.0), ("mcs", 20.0), ("ticket", 0.1)]);
        let other_way = block(&[("tas", 3.0), ("mcs", 2.0), ("clh", 1.0)]);
        assert_eq!(mean_of_pairs([(&a, &same)].into_iter()), Some(1.0));
        assert_eq!(mean_of_pairs([(&a, &same), (&a, &other_way)].into_iter()), Some(0.0));
        assert_eq!(mean_of_pairs([(&a, &block(&[("tas", 1.0)]))].into_iter()), None);
    }
}
