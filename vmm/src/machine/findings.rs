//! Findings of trials about this host's KVM: kept in a process, and given by a caller who knows them from an earlier process.
//!
//! Only findings that further trials would confirm are given on. That a back end failed may have been a busy host's fault, and so is
//! found out anew by each process.

use crate::machine::finding;
use crate::machine::in_kernel;
use crate::machine::pv_backend::PvBackend;
use crate::machine::ring;
use crate::machine::ring_probe;

/// Findings about this host's KVM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KvmFindings {
    /// Instructions a second in ring 0, if they were measured.
    pub ring0_instructions_per_second: Option<f64>,
    /// Back ends that work, each with exits at HLT or without.
    pub working_backends: Vec<(PvBackend, bool)>,
}

impl KvmFindings {
    /// Returns the findings of this process, given ones included.
    #[must_use]
    pub fn of_process() -> Self {
        Self {
            ring0_instructions_per_second: ring_probe::told_ring0_rate(),
            working_backends: in_kernel::known_to_work(),
        }
    }

    /// Gives these to the process, which then tries no such thing itself. What it has found out by itself stays.
    pub fn give(&self) {
        if let Some(rate) = self.ring0_instructions_per_second {
            ring_probe::give_ring0_rate(rate);
        }
        self.working_backends.iter().for_each(|&(backend, hlt_exits)| in_kernel::give(backend, hlt_exits));
    }

    /// Whether a process that goes by these will hardly find out more: what it does not need is not tried.
    #[must_use]
    pub fn are_complete(&self) -> bool {
        self.ring0_instructions_per_second.is_some_and(|rate| {
            !ring::is_native(rate) || self.working_backends.contains(&(PvBackend::Kvm, true))
        })
    }

    /// Whether a run of this process went by a finding that was given.
    #[must_use]
    pub fn given_were_used() -> bool {
        finding::given_was_used()
    }
}
