//! Stores that wait for their lines: one after the other, or all at once.

use haltkick_sim::machine::{Ownership, presets};

use crate::programs::{add, store_to_lines};
use crate::{Bench, CODE, DATA};

/// Time of a CPU that stores to a line of each of these CPUs until all its stores are visible.
fn stored_ps(ownership: Ownership, others: &[u32]) -> u64 {
    let mut machine = presets().iter().find(|preset| preset.name == "cascadelake-2s").unwrap().machine();
    machine.model.ownership = ownership;
    machine.model.jitter = 0.0;
    let code = [store_to_lines(), add()].concat();
    let mut bench = Bench::of_machine(1, machine, &code);
    // At last it has the page's tables, too.
    for (slot, line) in others.iter().chain(&[0]).zip(0..) {
        let at_ps = bench.board.now_ps();
        bench.start_at(at_ps, *slot, CODE + store_to_lines().len() as u64, DATA + line * 64, 2);
        bench.board.run(u64::MAX / 4).expect("it comes to its end");
        bench.board.take(*slot);
    }
    let began_ps = bench.board.now_ps();
    let lines = others.len() as u64;
    bench.start_at(began_ps, 0, CODE, DATA, lines);
    let ends = bench.finish(1);
    assert_eq!(bench.word(DATA + 8), lines, "the first line is stored to last, too");
    (0..lines).for_each(|line| assert_eq!(bench.word(DATA + line * 64), 7, "line {line}"));
    ends[0].1 - began_ps
}

#[test]
fn requests_for_ownership_overlap_where_the_model_says_so() {
    let [serial_ps, overlap_ps] = [Ownership::Serial, Ownership::Overlap].map(|it| stored_ps(it, &[30; 8]));
    let far_ps = 135_000;
    assert!(serial_ps > 8 * far_ps, "one after the other: {serial_ps}");
    assert!((far_ps..2 * far_ps).contains(&overlap_ps), "all at once: {overlap_ps}");
    let [serial_ps, overlap_ps] = [Ownership::Serial, Ownership::Overlap].map(|it| stored_ps(it, &[0; 8]));
    assert_eq!(serial_ps, overlap_ps, "lines of its own");
}

#[test]
fn a_store_behind_a_miss_asks_for_no_line_of_its_core() {
    let sibling_ps = 7_000;
    // Another socket has the first line, and the core itself the others.
    let others = [30, 0, 0, 0, 0, 0, 0, 0];
    let [serial_ps, overlap_ps] = [Ownership::Serial, Ownership::Overlap].map(|it| stored_ps(it, &others));
    assert!(serial_ps > overlap_ps + 6 * sibling_ps, "{serial_ps}, {overlap_ps}");
}

#[test]
fn siblings_lines_take_time_where_the_model_says_so() {
    let longer_ps = |ownership| stored_ps(ownership, &[40]) - stored_ps(ownership, &[0]);
    assert_eq!(longer_ps(Ownership::Serial), 0);
    let overlap_ps = longer_ps(Ownership::Overlap);
    assert!((2_000..7_000).contains(&overlap_ps), "as much of it as the fence has to wait for: {overlap_ps}");
}
