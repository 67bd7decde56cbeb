//! Figures that a board derives from its machine.

use std::sync::Arc;

use super::*;
use crate::cpu::ram::Ram;
use crate::machine::presets;

#[test]
fn no_cpu_runs_further_ahead_than_the_shortest_transfer_allows() {
    let mut machine = presets().iter().find(|preset| preset.name == "genoa-2s").unwrap().machine();
    machine.model.jitter = 0.1;
    let line = &mut machine.costs.line;
    (line.near_ps, line.shared_ps, line.occupancy_near_permille) = (20_000, 15_000, 300);
    let least_ps = |change: &dyn Fn(&mut Machine)| {
        let mut machine = machine.clone();
        change(&mut machine);
        Board::new(Arc::new(machine), Ram::new(1 << 12), &[]).least_transfer_ps
    };
    assert_eq!(
        least_ps(&|_| ()),
        20_000 * 3 / 10 * 9 / 10,
        "the next of a queue, as short as jitter makes it"
    );
    assert_eq!(least_ps(&|machine| machine.costs.line.shared_ps = 5_000), 4_500, "a copy of the cluster");
    assert_eq!(least_ps(&|machine| machine.costs.line.occupancy_near_permille = 2_000), 13_500);
}

#[test]
fn memory_without_bytes_is_empty() {
    assert!(Memory::is_empty(&Ram::new(0)) && !Memory::is_empty(&Ram::new(1)));
}
