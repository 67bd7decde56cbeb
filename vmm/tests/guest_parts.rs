//! Parts of the guest, compiled for the host: folding, which has its own tests, and dice, whose streams have nothing to do with each
//! other and whose distributions are what their names say. Also the addresses of the image's code and data: no figure may depend on
//! what happens to be its neighbour.

use std::collections::HashSet;

use haltkick_vmm::Image;
use object::{Object as _, ObjectSymbol as _};

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
fn no_vcpu_replays_what_another_one_draws_with_any_seed() {
    let mut seen = HashSet::new();
    for seed in [0, 1, 2, u64::MAX] {
        for cpu in 0..64 {
            let mut random = Random::new(seed, cpu);
            for _ in 0..DRAWN {
                assert!(seen.insert(random.next()), "vCPU {cpu} with seed {seed} draws what was drawn");
            }
        }
    }
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

/// Pairs of lines are fetched together.
const PAIR: u64 = 128;
const LINE: u64 = 64;

/// The optimiser shrinks a padded static to what is used of it, keeps its alignment, and puts a neighbour behind it.
#[test]
fn statics_that_several_vcpus_write_have_their_lines_for_themselves() {
    let file = object::File::parse(Image::embedded_elf()).expect("the image is an ELF file");
    let place = |name| file.symbol_by_name(name).unwrap_or_else(|| panic!("the image has {name}")).address();
    let hot = place("__haltkick_hot_start")..place("__haltkick_hot_end");
    let is_within = |symbol: &object::Symbol<'_, '_>| hot.contains(&symbol.address()) && symbol.size() > 0;
    let within: Vec<_> = file.symbols().filter(is_within).collect();
    for symbol in &within {
        let (name, address, size) = (symbol.name(), symbol.address(), symbol.size());
        assert!(address % PAIR == 0 && size % PAIR == 0, "{name:?}: {size} bytes at {address:#x}");
    }
    for expected in ["TURN", "TAKEN", "DONE", "TABLE", "INSTANCES"] {
        let found = within.iter().any(|symbol| symbol.name().is_ok_and(|name| name.contains(expected)));
        assert!(found, "{expected} is not among the hot statics");
    }
}

#[test]
fn the_functions_of_all_locks_begin_a_line() {
    let image = Image::embedded();
    for (index, lock) in image.locks.iter().enumerate() {
        for pv in [false, true] {
            let calls = image.calls(index, pv).expect("the image tells of its locks");
            for function in calls.functions.into_iter().flatten() {
                assert!(function % LINE == 0, "{}: {function:#x}", lock.name);
            }
        }
    }
}

/// A shared reference promises that the parts outside of cells never change, and the guest may write anywhere.
#[test]
fn what_host_and_guest_share_is_atomic_to_the_last_byte() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../hypercalls/src");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let text: String = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let mut structures = vec!["Control", "Oracle", "VcpuArea", "StealTime", "TraceSection"];
    let mut looked_at = 0;
    while let Some(name) = structures.pop() {
        let (_, rest) =
            text.split_once(&format!("pub struct {name} {{\n")).unwrap_or_else(|| panic!("{name}"));
        let (fields, _) = rest.split_once("\n}\n").expect("it has an end");
        let fields = fields.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        for (field, kind) in fields.filter_map(|line| line.trim_end_matches(',').split_once(": ")) {
            looked_at += 1;
            let element = kind.trim_start_matches('[').split([';', '<']).next().unwrap_or(kind);
            if !element.starts_with("Atomic") && element != "Padding" {
                assert!(text.contains(&format!("pub struct {element} {{")), "{name}: {field} is {kind}");
                structures.push(element);
            }
        }
    }
    assert!(looked_at > 50, "{looked_at} fields");
}
