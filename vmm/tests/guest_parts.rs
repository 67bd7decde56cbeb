//! Parts of the guest, compiled for the host: folding, which has its own tests, and dice, whose streams have nothing to do with each
//! other and whose distributions are what their names say.

use std::collections::HashSet;

#[path = "../../guest/src/work/folding/mod.rs"]
#[expect(unused_imports, reason = "tests use the files themselves")]
mod folding;
#[path = "../../guest/src/work/random.rs"]
#[expect(dead_code, reason = "the guest uses more of the file than these tests")]
mod random;

use random::{Random, log2, power_of_half};

/// As long as what vCPUs draw in a short run.
const DRAWN: usize = 4096;

#[test]
fn no_vcpu_replays_what_another_one_draws() {
    let mut seen = HashSet::new();
    for seed in [0, 1, 2, u64::MAX] {
        for cpu in 0..64 {
            let mut random = Random::new(seed, cpu);
            for _ in 0..DRAWN {
                assert!(seen.insert((seed, random.next())), "vCPU {cpu} draws what another one has drawn");
            }
        }
    }
}

#[test]
fn seeds_that_follow_each_other_do_not_replay_each_other_either() {
    let draw = |seed| {
        let mut random = Random::new(seed, 0);
        (0..DRAWN).map(|_| random.next()).collect::<HashSet<_>>()
    };
    assert_eq!(draw(1).intersection(&draw(2)).count(), 0);
}

#[test]
fn exponential_times_have_their_mean_and_their_tail() {
    const MEAN: u64 = 1_000_000;
    const TIMES: usize = 200_000;
    let mut random = Random::new(1, 0);
    let times: Vec<u64> = (0..TIMES).map(|_| random.exponential(MEAN)).collect();
    let mean = times.iter().sum::<u64>() as f64 / TIMES as f64 / MEAN as f64;
    assert!((mean - 1.0).abs() < 0.01, "mean {mean}");
    let beyond = |times_mean: u64| times.iter().filter(|time| **time > times_mean * MEAN).count() as f64;
    for times_mean in [1, 2, 3] {
        let share = beyond(times_mean) / TIMES as f64;
        let expected = (-(times_mean as f64)).exp();
        assert!((share / expected - 1.0).abs() < 0.05, "beyond {times_mean}: {share} instead of {expected}");
    }
}

#[test]
fn times_about_a_length_stay_within_their_share_and_reach_both_ends() {
    let mut random = Random::new(1, 0);
    let times: Vec<u64> = (0..100_000).map(|_| random.about(1000, 20)).collect();
    assert_eq!((times.iter().min(), times.iter().max()), (Some(&800), Some(&1200)));
    assert_eq!(random.about(1000, 0), 1000);
}

#[test]
fn logarithms_and_powers_are_those_of_floating_point() {
    for number in [1, 2, 3, 10, 255, 256, 4096, 1 << 40, u64::MAX] {
        let (fixed, float) = (log2(number) as f64 / 65536.0, (number as f64).log2());
        assert!((fixed - float).abs() < 1e-4, "log2 {number}: {fixed} instead of {float}");
    }
    for exponent in [0, 1, 1 << 15, 1 << 16, 3 << 15, 5 << 16] {
        let fixed = power_of_half(exponent) as f64 / 2_f64.powi(32);
        let float = (-(exponent as f64) / 65536.0).exp2();
        assert!((fixed / float - 1.0).abs() < 1e-6, "2^-{exponent}: {fixed} instead of {float}");
    }
}
