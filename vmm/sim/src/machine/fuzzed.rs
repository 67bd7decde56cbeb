//! Texts that call themselves machines.

use haltkick_fuzzing::Target;

use super::{Machine, presets};

/// Fuzzed reading of machine files.
pub const TARGET: Target = Target { name: "machine", most_bytes: 256, seeds, execute };

fn seeds() -> Vec<Vec<u8>> {
    presets().iter().map(|preset| preset.text.as_bytes().to_vec()).collect()
}

/// Any text is refused, or is a machine on which every line has a way and every moment its tick.
fn execute(bytes: &[u8]) {
    let Ok(machine) = Machine::parse("any.toml", &String::from_utf8_lossy(bytes)) else { return };
    let last = machine.topology.place(machine.topology.cpus() - 1);
    let places = (0..machine.topology.cpus()).step_by(7).map(|cpu| machine.topology.place(cpu));
    for place in places {
        assert!(machine.occupancy_ps(place, last) <= 2 * machine.transfer_ps(place, last) + 1);
        _ = machine.transfer_ps(last, place);
    }
    for at_ps in [0, 1, 1_000_000_007, u64::MAX / 2] {
        let tick = machine.ticks_at(at_ps);
        assert!(machine.time_of_tick(tick) <= at_ps, "tick {tick} comes after {at_ps} ps");
    }
    _ = (machine.work_rate(), machine.deep_wake_ps(u64::MAX));
}

#[cfg(test)]
mod tests {
    #[test]
    fn fuzz_machine_any_text_is_refused_or_is_a_machine() {
        super::TARGET.run();
    }

    #[test]
    fn long_texts_take_time_in_proportion_to_their_length() {
        super::TARGET.grow(0);
    }
}
