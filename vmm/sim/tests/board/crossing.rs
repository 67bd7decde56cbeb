//! Words that lie in two lines.

use haltkick_sim::Event;
use haltkick_sim::board::{Happening, What};
use haltkick_sim::machine::Stores;

use crate::programs::{add_across, lock_across};
use crate::{Bench, CODE, DATA, DONE, presets};

const EACH: u64 = 50;

/// The word at `DATA + at`, after each of some CPUs has gone through the program's loop `EACH` times.
fn left(program: &[u8], machine: &str, stores: Stores, cpus: u32, at: u64) -> u64 {
    let mut machine = presets().iter().find(|preset| preset.name == machine).unwrap().machine();
    machine.model.stores = stores;
    let mut bench = Bench::of_machine(1, machine, program);
    (0..cpus).for_each(|slot| bench.start(slot, CODE, DATA, EACH));
    for ended in 0..cpus {
        // A hundred times what it takes: CPUs that take the lines from each other forever come to no end.
        let happening = bench.board.run(100_000_000_000);
        let Some(Happening { cpu, what: What::Event(Event::Out { port: DONE, .. }), .. }) = happening else {
            panic!("{ended} of {cpus} came to their end, then {happening:?}")
        };
        bench.board.take(cpu).unwrap();
    }
    bench.word(DATA + at)
}

#[test]
fn a_word_in_two_lines_is_exchanged_as_one() {
    for (machine, stores) in [("skylake-8s", Stores::Prompt), ("nehalem-2s", Stores::Late)] {
        for cpus in [2, 3, 8] {
            let all = EACH * u64::from(cpus);
            let added = left(add_across(), machine, stores, cpus, 62) & 0xffff_ffff;
            assert_eq!(added, all, "{machine}, {cpus} CPUs add");
            assert_eq!(
                left(lock_across(), machine, stores, cpus, 128),
                all,
                "{machine}, {cpus} CPUs exclude"
            );
        }
    }
}
