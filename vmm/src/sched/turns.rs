//! One vCPU's place among those that take turns: its virtual time, and what it owes or was given.

/// The turns of one vCPU.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// CPU time for the ready queue's order: grows with time on a pCPU, and is moved up after a sleep.
    pub(crate) virtual_ns: u64,
    /// The part of the present turn that does not count there.
    boot_ns: u64,
    /// Time that it ran beyond the end of its last slice: the next one is shorter by that.
    pub(crate) debt_ns: u64,
    /// Directed yields to it, or kicks that handed it a pCPU, whole run.
    pub(crate) handed: u64,
}

impl Turns {
    /// The vCPU, which has run for `ran_ns`, has booted the guest by itself: from now on it takes turns with the others, which
    /// start at `virtual_ns`. The time of the boot is not charged, or it would be the last for as long.
    pub(super) fn booted(&mut self, virtual_ns: u64, ran_ns: u64) {
        self.virtual_ns = virtual_ns;
        self.boot_ns = ran_ns;
    }

    /// The vCPU has been on a pCPU for `ran_ns`.
    pub(super) fn ran(&mut self, ran_ns: u64) {
        self.virtual_ns += ran_ns.saturating_sub(std::mem::take(&mut self.boot_ns));
    }
}
