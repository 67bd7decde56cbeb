//! Boards by the machine's model: words in two lines, stores that are late or ask at once, and the speed of a core's threads.

use haltkick_sim::machine::{Machine, Smt, Stores};

use crate::programs::*;
use crate::{Bench, CODE, DATA, preset};

fn with_stores(name: &str, stores: Stores) -> Machine {
    let mut machine = preset(name);
    machine.model.stores = stores;
    machine
}

#[test]
fn a_word_in_two_lines_is_exchanged_as_one() {
    const EACH: u64 = 50;
    for (machine, stores) in [("skylake-8s", Stores::Prompt), ("nehalem-2s", Stores::Late)] {
        for (cpus, (program, at, bits)) in [2, 3, 8]
            .into_iter()
            .flat_map(|cpus| [(add_across(), 62, 32), (lock_across(), 128, 64)].map(|it| (cpus, it)))
        {
            let mut bench = Bench::of_machine(1, with_stores(machine, stores), program);
            (0..cpus).for_each(|slot| bench.start(slot, CODE, DATA, EACH));
            // A hundred times what it takes: CPUs that take the lines from each other forever come to no end.
            bench.end(cpus as usize, 100_000_000_000);
            let left = bench.word(DATA + at) & (u64::MAX >> (64 - bits));
            assert_eq!(left, EACH * u64::from(cpus), "{machine}, {cpus} CPUs, word at {at}");
        }
    }
}

#[test]
fn late_stores_are_not_seen_unless_a_fence_follows() {
    // In how many of some runs neither of two CPUs saw the other's store.
    let unseen = |program: &[u8], stores: Stores| {
        let is_unseen = |&seed: &u64| {
            let mut bench = Bench::of_machine(1, with_stores("nehalem-2s", stores), program);
            bench.board.set_seed(seed);
            bench.start(0, CODE, DATA, DATA + 64);
            bench.start(1, CODE, DATA + 64, DATA);
            bench.finish(2).iter().all(|end| end.2 == 0)
        };
        (0..20).filter(is_unseen).count()
    };
    assert_eq!(unseen(write_and_look(), Stores::Prompt), 0);
    assert!(unseen(write_and_look(), Stores::Late) > 10);
    assert_eq!(unseen(write_fence_and_look(), Stores::Late), 0);
    // A CPU sees its own store at once.
    let mut bench = Bench::of_machine(1, with_stores("nehalem-2s", Stores::Late), write_and_look());
    bench.start(0, CODE, DATA, DATA);
    bench.start(1, CODE, DATA + 64, DATA);
    assert_eq!(bench.finish(2)[0].2, 1);
}

/// Time of a CPU that stores to a line of each of these CPUs until all its stores are visible.
fn stored_ps(others: &[u32]) -> u64 {
    let mut machine = preset("cascadelake-2s");
    machine.model.jitter = 0.0;
    let code = [store_to_lines(), add()].concat();
    let mut bench = Bench::of_machine(1, machine, &code);
    // At last it has the page's tables, too.
    for (slot, line) in others.iter().chain(&[0]).zip(0..) {
        let at_ps = bench.board.now_ps();
        bench.start_cpu(0, *slot, (CODE + store_to_lines().len() as u64, DATA + line * 64, 2), at_ps);
        bench.board.run(u64::MAX / 4).expect("it comes to its end");
        bench.board.take(*slot);
    }
    let began_ps = bench.board.now_ps();
    let lines = others.len() as u64;
    bench.start_cpu(0, 0, (CODE, DATA, lines), began_ps);
    let ends = bench.finish(1);
    assert_eq!(bench.word(DATA + 8), lines, "the first line is stored to last, too");
    (0..lines).for_each(|line| assert_eq!(bench.word(DATA + line * 64), 7, "line {line}"));
    ends[0].1 - began_ps
}

#[test]
fn the_stores_of_a_buffer_ask_for_their_lines_at_once() {
    let far_ps = 135_000;
    let (all_far_ps, all_own_ps) = (stored_ps(&[30; 8]), stored_ps(&[0; 8]));
    assert!((far_ps..2 * far_ps).contains(&all_far_ps), "eight lines of another socket: {all_far_ps}");
    // Behind a miss, lines that the core has are asked for by none.
    let behind_ps = stored_ps(&[30, 0, 0, 0, 0, 0, 0, 0]) - stored_ps(&[30]);
    assert!(behind_ps <= all_own_ps, "{behind_ps} for seven lines of its own, {all_own_ps} for eight");
    let longer_ps = stored_ps(&[40]) - stored_ps(&[0]);
    assert!((2_000..7_000).contains(&longer_ps), "a sibling's, as much as the fence waits for: {longer_ps}");
}

#[derive(Clone, Copy)]
enum Sibling {
    Nothing,
    Spins,
    Counts,
    /// It waits for lines, most of the time.
    Stalls,
}

/// Time of a thread that counts, or else does work, with such a sibling.
fn taken_ps(smt: Smt, counts: bool, sibling: Sibling) -> f64 {
    let mut machine = preset("cascadelake-2s");
    machine.model.smt = smt;
    let other = machine.topology.siblings(0).next().expect("the core has a second thread");
    let code = [count_then_set(), work_then_set(), wait_for_flag(), add()].concat();
    let works = CODE + count_then_set().len() as u64;
    let waits = works + work_then_set().len() as u64;
    let adds = waits + wait_for_flag().len() as u64;
    let mut bench = Bench::of_machine(1, machine, &code);
    let (rip, rounds) = if counts { (CODE, 500_000) } else { (works, 50_000) };
    bench.start(0, rip, DATA, rounds);
    let others: &[_] = match sibling {
        Sibling::Nothing => &[],
        Sibling::Spins => &[(other, waits, DATA, 0)],
        Sibling::Counts => &[(other, CODE, DATA + 4096, 1_000_000)],
        // A core of the other socket wants the same line.
        Sibling::Stalls => &[(other, adds, DATA + 4096, 50_000), (30, adds, DATA + 4096, 50_000)],
    };
    others.iter().for_each(|&(slot, rip, rdi, rsi)| bench.start(slot, rip, rdi, rsi));
    bench.finish(1 + others.len())[0].1 as f64
}

#[test]
fn a_sibling_costs_what_the_model_says_of_what_it_does() {
    for (smt, counts, sibling, least, most, what) in [
        (Smt::Busy, true, Sibling::Spins, 0.98, 1.02, "a parked spinner takes nothing"),
        (Smt::Issue, true, Sibling::Spins, 1.021, 1.062, "a spinner takes a tenth of what a busy one takes"),
        (Smt::Busy, true, Sibling::Stalls, 1.634, 1.7, "a stall takes as much as work"),
        (Smt::Issue, true, Sibling::Stalls, 0.98, 1.2, "a stall takes nothing"),
        (Smt::Busy, true, Sibling::Counts, 1.5, 1.7, "two threads share the core's units"),
        (Smt::Busy, false, Sibling::Counts, 0.99, 1.01, "the loop that stands for work has no busy sibling"),
    ] {
        let over_alone = taken_ps(smt, counts, sibling) / taken_ps(smt, counts, Sibling::Nothing);
        assert!((least..most).contains(&over_alone), "{what}: {over_alone}");
    }
}
