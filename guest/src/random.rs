//! Dice.

use crate::percpu::{boot, cpu};

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Numbers that differ between vCPUs and seeds: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn of_vcpu() -> Self {
        // Mixed, since seeds one step apart give the same sequence one step apart.
        Self(mix(boot().seed.wrapping_add((cpu() as u64 + 1).wrapping_mul(STEP))))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `limit`, which must not be 0. Without a division by a multiplication (Lemire 2019); its bias is
    /// below one in 2^32.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// True once in `n` times on average; never for 0.
    pub(crate) fn one_in(&mut self, n: u32) -> bool {
        n > 0 && self.below(u64::from(n)) == 0
    }
}
