//! Latin hypercubes: a few points that try every part of every dimension's range.

use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _, rngs::ChaCha8Rng};

/// `points` points in the unit cube of `dimensions` dimensions. Each dimension's range is cut into as many equal parts as there
/// are points; every part has one of them.
pub(crate) fn latin_hypercube(dimensions: usize, points: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut cube = vec![vec![0.0; dimensions]; points];
    for dimension in 0..dimensions {
        let mut parts: Vec<usize> = (0..points).collect();
        parts.shuffle(&mut random);
        for (point, part) in cube.iter_mut().zip(parts) {
            point[dimension] = (part as f64 + random.random::<f64>()) / points as f64;
        }
    }
    cube
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_every_dimension_has_one_point() {
        let cube = latin_hypercube(5, 12, 7);
        for dimension in 0..5 {
            let mut parts: Vec<u32> = cube.iter().map(|point| (point[dimension] * 12.0) as u32).collect();
            parts.sort_unstable();
            assert_eq!(parts, (0..12).collect::<Vec<_>>());
        }
        assert_eq!(cube, latin_hypercube(5, 12, 7));
        assert_ne!(cube, latin_hypercube(5, 12, 8));
        assert_ne!(cube[0][0], cube[0][1], "dimensions differ");
    }
}
