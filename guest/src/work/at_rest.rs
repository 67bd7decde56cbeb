//! The end of a run that is inspected when all vCPUs have stopped.

use core::sync::atomic::Ordering;

use crate::cpu::percpu::{boot, control};

/// This vCPU has finished what it was doing; the last to say so does `check`, and then the VMM ends the run.
///
/// For workloads with `CHECKS_AT_REST`.
pub(crate) fn arrive(check: impl FnOnce()) {
    let control = control();
    // AcqRel: what each vCPU did comes before the check. The releases of all continue one sequence.
    if control.finished.fetch_add(1, Ordering::AcqRel) + 1 == boot().vcpus {
        check();
        // Release: pairs with the supervisor's acquire: results come before.
        control.at_rest.store(1, Ordering::Release);
    }
}
