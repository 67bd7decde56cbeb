//! Machines whose stores become visible late.

use haltkick_sim::machine::Stores;

use crate::programs::{write_and_look, write_fence_and_look};
use crate::{Bench, CODE, DATA, presets};

/// In how many of some runs neither of two CPUs saw the other's store.
fn unseen(program: &[u8], stores: Stores) -> usize {
    let is_unseen = |&seed: &u64| {
        let mut machine = presets().iter().find(|preset| preset.name == "nehalem-2s").unwrap().machine();
        machine.model.stores = stores;
        let mut bench = Bench::of_machine(1, machine, program);
        bench.board.set_seed(seed);
        bench.start(0, CODE, DATA, DATA + 64);
        bench.start(1, CODE, DATA + 64, DATA);
        bench.finish(2).iter().all(|end| end.2 == 0)
    };
    (0..20).filter(is_unseen).count()
}

#[test]
fn late_stores_are_not_seen_unless_a_fence_follows() {
    assert_eq!(unseen(write_and_look(), Stores::Prompt), 0);
    assert!(unseen(write_and_look(), Stores::Late) > 10);
    assert_eq!(unseen(write_fence_and_look(), Stores::Late), 0);
}
