//! How runs scatter around the truth. Every shape has the median 1, so that the truth is the median of the runs.

use rand::{RngExt as _, SeedableRng as _, rngs::ChaCha8Rng};

/// Relative noise of a run; the number is its size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shape {
    /// No noise.
    Exact,
    /// Normal around 1.
    Normal(f64),
    /// Log-normal: a tail towards fast runs, symmetric only in the logarithm.
    LogNormal(f64),
    /// The logarithm has an exponential tail towards slow runs and none towards fast ones, as a host does that only takes.
    Skewed(f64),
    /// Student's t with two degrees of freedom, which has no variance: now and then a run is far off.
    HeavyTailed(f64),
    /// Log-normal, and like that of the run before: an autoregressive process of first order.
    Correlated {
        /// Size.
        deviation: f64,
        /// Correlation of neighbours.
        correlation: f64,
    },
}

/// Source of the noise.
pub(crate) struct Scatter {
    rng: ChaCha8Rng,
    /// The last value of the autoregressive process, in its deviations.
    last: f64,
}

impl Scatter {
    pub(crate) fn new(seed: u64) -> Self {
        Self { rng: ChaCha8Rng::seed_from_u64(seed), last: 0.0 }
    }

    /// The next run's throughput over the true one.
    pub(crate) fn next(&mut self, shape: Shape) -> f64 {
        /// No noise takes all.
        const LEAST: f64 = 0.01;
        let normal = self.normal();
        let factor = match shape {
            Shape::Exact => 1.0,
            Shape::Normal(deviation) => 1.0 + deviation * normal,
            Shape::LogNormal(deviation) => (deviation * normal).exp(),
            Shape::Skewed(mean) => (mean * (std::f64::consts::LN_2 - self.exponential())).exp(),
            Shape::HeavyTailed(scale) => {
                // The mean of two squared normal values is exponential with mean 1.
                (scale * normal / self.exponential().sqrt()).clamp(-3.0, 3.0).exp()
            }
            Shape::Correlated { deviation, correlation } => {
                self.last = correlation * self.last + (1.0 - correlation * correlation).sqrt() * normal;
                (deviation * self.last).exp()
            }
        };
        factor.max(LEAST)
    }

    /// With mean 1.
    fn exponential(&mut self) -> f64 {
        -self.uniform().ln()
    }

    /// Box and Muller.
    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Above 0, at most 1.
    fn uniform(&mut self) -> f64 {
        1.0 - self.rng.random::<f64>()
    }
}
