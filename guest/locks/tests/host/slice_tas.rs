//! The test-and-set lock that is not taken at the end of a slice.

use haltkick_locks::*;

use crate::support::Cpus;

/// The holder of another lock: others may wait for that one, and would wait for a slice to come back.
#[test]
fn a_holder_of_another_lock_keeps_its_slice() {
    let host = Cpus::impatient(1);
    host.set_slice_ends_soon(true);
    let tas = SliceTas::new();
    let visit = || {
        tas.lock(&host);
        tas.unlock(&host, ());
    };
    host.run(|_| {
        host.section_entered();
        visit();
        assert_eq!(host.slices_given_up(), 0, "its owner made the holder of another lock lose its CPU");
        host.section_left();
        visit();
        assert_eq!(host.slices_given_up(), 1);
    });
}
