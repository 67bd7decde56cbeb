//! Slices that are given back before their end.

use crate::{contract::Platform, faults::mutant::mutant};

/// Gives the slice back, unless the CPU is in a section already: that is what must not lose it.
pub(crate) fn give_up_unless_in_section<P: Platform>(platform: &P) {
    if mutant!("slice-ignore-outer": !platform.is_in_section() => true) {
        platform.yield_to(None);
    }
}
