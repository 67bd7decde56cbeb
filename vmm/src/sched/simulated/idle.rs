//! pCPUs that have nothing to run, how they wake up, and on which of them a vCPU does that wakes up.

use haltkick_sim::machine::{Placement, Topology};

use crate::sched::idle::{PcpuSet, wakes_on};

use super::{Doing, Simulated, State};

impl<'a> Simulated<'a> {
    /// An idle pCPU takes a vCPU, if one is ready.
    pub(super) fn looks(&self, state: &mut State<'a>, index: usize, at_ps: u64) {
        if state.hosted.is_some() {
            return self.looks_hosted(state, index, at_ps);
        }
        if matches!(state.slots[index].doing, Doing::Idle { .. }) {
            self.core.idle.leave(state.slots[index].pcpu.number);
            self.changes(state, index, None, at_ps);
        }
    }

    /// Each vCPU that is ready wakes up an idle pCPU, as long as there are both.
    pub(super) fn wake_idle(&self, state: &mut State<'a>) {
        if state.hosted.is_some() {
            return self.admit(state);
        }
        while let Some(last) = self.core.next_ran_on() {
            let (topology, idle) = (&self.machine.topology, &self.core.idle.set);
            let is_used = |pcpu: u32| state.slot_of[pcpu as usize] != usize::MAX;
            let placed = place(self.machine.model.placement, last, topology, idle, is_used);
            let Some(pcpu) = placed else { return };
            self.looks(state, state.slot_of[pcpu as usize], state.now_ps);
        }
    }
}

/// The pCPU for a vCPU that ran on `last`, a pure function of which pCPUs are `idle`, which are used by the run, and where they are.
/// If that one is busy, Linux looks among those that share its cache, first for a core none of whose threads works; a work-conserving
/// scheduler then goes farther away, instead of waiting.
fn place(
    policy: Placement,
    last: Option<u32>,
    topology: &Topology,
    idle: &PcpuSet,
    is_used: impl Fn(u32) -> bool,
) -> Option<u32> {
    // Hops between the sockets, then whether the cluster is another one.
    let distance = |from: u32, to: u32| {
        let (from, to) = (topology.place(from), topology.place(to));
        (topology.hops(from.socket, to.socket), from.cluster != to.cluster)
    };
    let is_busy = |pcpu| is_used(pcpu) && !idle.contains(pcpu);
    match policy {
        Placement::Lowest => idle.iter().next(),
        Placement::Last => wakes_on(last, idle, |pcpu| {
            (last.map(|last| distance(last, pcpu)), topology.siblings(pcpu).any(is_busy))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pcpus: impl IntoIterator<Item = u32>) -> PcpuSet {
        let set = PcpuSet::new(300);
        pcpus.into_iter().for_each(|pcpu| set.insert(pcpu));
        set
    }

    /// Three sockets in a row of two clusters of two cores with two threads: CPUs 0 to 11, and 12 to 23 as their siblings.
    fn placed(policy: Placement, last: Option<u32>, idle: &[u32]) -> Option<u32> {
        let hops = [vec![0, 1, 2], vec![1, 0, 1], vec![2, 1, 0]];
        let topology = Topology::new([3, 4, 2], Some(2), Some(&hops)).unwrap();
        place(policy, last, &topology, &set(idle.iter().copied()), |_| true)
    }

    #[test]
    fn a_vcpu_wakes_on_its_last_pcpu_or_near_it() {
        use Placement::{Last, Lowest};
        for (policy, last, idle, expected) in [
            // Its sibling, 12, is busy, and 1 has an idle core to itself.
            (Last, Some(0), &[0, 1, 13][..], Some(0)),
            (Last, Some(9), &[0, 4, 9, 10], Some(9)),
            (Lowest, Some(9), &[4, 9, 10], Some(4)),
            (Last, Some(9), &[], None),
            // Its cluster has an idle pCPU with a busy sibling: that is nearer than idle cores elsewhere.
            (Last, Some(8), &[0, 12, 21, 10, 22], Some(21)),
            // Among those of one cluster, the idle core.
            (Last, Some(8), &[10, 11, 23], Some(11)),
            // The cluster next door, then the socket one hop away.
            (Last, Some(8), &[0, 4, 10], Some(10)),
            (Last, Some(8), &[0, 12, 4], Some(4)),
            // One that never ran begins on an idle core.
            (Last, None, &[0, 1, 13], Some(1)),
            (Last, None, &[14, 15], Some(14)),
        ] {
            assert_eq!(placed(policy, last, idle), expected, "{policy:?} from {last:?}, of {idle:?}");
        }
    }

    #[test]
    fn a_set_has_what_was_put_in_and_not_taken_out() {
        let pcpus = set([300, 0, 64, 63, 64]);
        assert_eq!(pcpus.iter().collect::<Vec<_>>(), [0, 63, 64, 300]);
        assert!(pcpus.remove(64) && !pcpus.remove(64) && !pcpus.remove(5));
        assert_eq!(pcpus.iter().collect::<Vec<_>>(), [0, 63, 300]);
    }

    #[test]
    fn siblings_that_the_run_leaves_alone_are_idle() {
        let topology = Topology::new([1, 4, 2], None, None).unwrap();
        assert_eq!(place(Placement::Last, Some(0), &topology, &set([2, 3]), |pcpu| pcpu < 4), Some(2));
    }
}
