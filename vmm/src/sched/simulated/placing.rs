//! The pCPU on which a vCPU that wakes up runs: a pure function of which pCPUs are idle and where they are.

use haltkick_sim::machine::{Placement, Topology};

use crate::sched::idle::PcpuSet;
use crate::sched::placing::wakes_on;

/// The pCPUs of a run at one moment.
pub(super) struct Snapshot<'a> {
    pub(super) topology: &'a Topology,
    /// All that the run uses.
    pub(super) used: &'a PcpuSet,
    pub(super) idle: &'a PcpuSet,
}

impl Snapshot<'_> {
    /// The pCPU for a vCPU that ran on `last`. If that one is busy, Linux looks among those that share its cache, first for a core
    /// none of whose threads works; a work-conserving scheduler then goes farther away, instead of waiting.
    pub(super) fn place(&self, policy: Placement, last: Option<u32>) -> Option<u32> {
        match (policy, last) {
            (Placement::Lowest, _) => self.idle.iter().next(),
            (Placement::Last, last) => wakes_on(last, self.idle, |pcpu| {
                (last.map(|last| self.distance(last, pcpu)), self.has_busy_sibling(pcpu))
            }),
        }
    }

    /// Hops between the sockets, then whether the cluster is another one.
    fn distance(&self, from: u32, to: u32) -> (u8, bool) {
        let (from, to) = (self.topology.place(from), self.topology.place(to));
        (self.topology.hops(from.socket, to.socket), from.cluster != to.cluster)
    }

    fn has_busy_sibling(&self, pcpu: u32) -> bool {
        let is_busy = |sibling| self.used.contains(sibling) && !self.idle.contains(sibling);
        self.topology.siblings(pcpu).any(is_busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pcpus: impl IntoIterator<Item = u32>) -> PcpuSet {
        let set = PcpuSet::new(64);
        pcpus.into_iter().for_each(|pcpu| set.insert(pcpu));
        set
    }

    /// Three sockets in a row of two clusters of two cores with two threads: CPUs 0 to 11, and 12 to 23 as their siblings.
    fn place(policy: Placement, last: Option<u32>, idle: &[u32]) -> Option<u32> {
        let hops = [vec![0, 1, 2], vec![1, 0, 1], vec![2, 1, 0]];
        let topology = Topology::new([3, 4, 2], Some(2), Some(&hops)).unwrap();
        let (used, idle) = (set(0..24), set(idle.iter().copied()));
        Snapshot { topology: &topology, used: &used, idle: &idle }.place(policy, last)
    }

    #[test]
    fn a_vcpu_wakes_on_its_last_pcpu_if_that_is_idle() {
        // Its sibling, 12, is busy, and 1 has an idle core to itself.
        assert_eq!(place(Placement::Last, Some(0), &[0, 1, 13]), Some(0));
        assert_eq!(place(Placement::Last, Some(9), &[0, 4, 9, 10]), Some(9));
        assert_eq!(place(Placement::Lowest, Some(9), &[4, 9, 10]), Some(4));
        assert_eq!(place(Placement::Last, Some(9), &[]), None);
    }

    #[test]
    fn otherwise_it_stays_near_and_off_busy_cores() {
        // Its cluster has an idle pCPU with a busy sibling: that is nearer than idle cores elsewhere.
        assert_eq!(place(Placement::Last, Some(8), &[0, 12, 21, 10, 22]), Some(21));
        // Among those of one cluster, the idle core.
        assert_eq!(place(Placement::Last, Some(8), &[10, 11, 23]), Some(11));
        // The cluster next door, then the socket one hop away.
        assert_eq!(place(Placement::Last, Some(8), &[0, 4, 10]), Some(10));
        assert_eq!(place(Placement::Last, Some(8), &[0, 12, 4]), Some(4));
    }

    #[test]
    fn a_vcpu_that_never_ran_begins_on_an_idle_core() {
        assert_eq!(place(Placement::Last, None, &[0, 1, 13]), Some(1));
        assert_eq!(place(Placement::Last, None, &[14, 15]), Some(14));
    }

    #[test]
    fn siblings_that_the_run_leaves_alone_are_idle() {
        let topology = Topology::new([1, 4, 2], None, None).unwrap();
        let (used, idle) = (set(0..4), set([2, 3]));
        assert_eq!(
            Snapshot { topology: &topology, used: &used, idle: &idle }.place(Placement::Last, Some(0)),
            Some(2)
        );
    }
}
