//! Dice: the one generator of this guest. (A test of the VMM compiles this file for the host and looks at its numbers.)

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Numbers that differ between vCPUs and seeds: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
pub(crate) struct Random(u64);

impl Random {
    /// Makes the numbers of vCPU `cpu` in a run with this seed.
    pub(crate) fn new(seed: u64, cpu: usize) -> Self {
        // Mixed, since seeds one step apart give the same sequence one step apart.
        Self(mix(seed.wrapping_add((cpu as u64 + 1).wrapping_mul(STEP))))
    }

    pub(crate) fn next(&mut self) -> u64 {
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

    /// True in `percent` of a hundred times on average.
    pub(crate) fn percent(&mut self, percent: u32) -> bool {
        percent > 0 && self.below(100) < u64::from(percent)
    }

    /// `length` give or take `percent` of it, every value as likely.
    pub(crate) fn about(&mut self, length: u64, percent: u32) -> u64 {
        let most = length / 100 * u64::from(percent) + length % 100 * u64::from(percent) / 100;
        if most == 0 { length } else { length - most + self.below(2 * most + 1) }
    }

    /// A number from an exponential distribution with this mean, at most 44 times as large: what lies between the events of a
    /// Poisson process. Minus the logarithm of a uniform number (fixed point: this guest has no floating point).
    pub(crate) fn exponential(&mut self, mean: u64) -> u64 {
        /// Natural logarithm of 2, in 2^-16.
        const LN_2: u128 = 45_426;
        // -log2(n / 2^64) in 2^-16
        let binary = (64 << 16) - log2(self.next() | 1);
        ((u128::from(mean) * u128::from(binary) * LN_2) >> 32) as u64
    }
}

/// Binary logarithm of a number that is not 0, in 2^-16.
pub(crate) fn log2(number: u64) -> u64 {
    let whole = 63 - u64::from(number.leading_zeros());
    // From 1 to 2 in 2^-31; squaring it doubles its logarithm, whose bits come out one by one.
    let mut mantissa = (number << number.leading_zeros()) >> 32;
    let mut fraction = 0;
    for _ in 0..16 {
        mantissa = (mantissa * mantissa) >> 31;
        let carry = mantissa >> 32;
        mantissa >>= carry;
        fraction = fraction << 1 | carry;
    }
    whole << 16 | fraction
}

/// 2 to the power of minus `exponent` (in 2^-16), in 2^-32.
pub(crate) fn power_of_half(exponent: u64) -> u64 {
    /// 2^(-2^-(n + 1)) in 2^-32: the roots of one half.
    const ROOTS: [u64; 16] = {
        let (mut roots, mut root, mut n) = ([0; 16], 1_u128 << 63, 0);
        while n < roots.len() {
            // In 2^-64, and rounded.
            root = (root << 64).isqrt();
            roots[n] = ((root + (1 << 31)) >> 32) as u64;
            n += 1;
        }
        roots
    };
    let whole = exponent >> 16;
    if whole >= 32 {
        return 0;
    }
    let mut power = 1_u64 << 32;
    for (bit, root) in ROOTS.into_iter().enumerate() {
        if exponent >> (15 - bit) & 1 != 0 {
            power = ((u128::from(power) * u128::from(root)) >> 32) as u64;
        }
    }
    power >> whole
}
