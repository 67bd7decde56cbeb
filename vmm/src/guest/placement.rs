//! NUMA nodes of a guest's memory. All is said before the memory is touched, so it does not matter which thread touches it first.

use std::io;
use std::ops::Range;

use libc::{MPOL_BIND, MPOL_INTERLEAVE, MPOL_PREFERRED};

use crate::guest::memory::Memory;
use crate::host::cpus;

/// Rule by which guest memory is spread over the host's NUMA nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// Each vCPU's own memory on the node of the pCPU that runs it first, what all vCPUs share on the node of the first pCPU, and
    /// the memory that the guest manages on the node of the vCPU that touches it.
    #[default]
    Local,
    /// Pages in turn on the nodes of the run's pCPUs.
    Interleave,
    /// All on this node.
    Node(u32),
}

pub(crate) struct Placement {
    numa: Numa,
    pcpus: Vec<u32>,
    with_memory: Vec<u32>,
}

impl Placement {
    pub(crate) fn new(numa: Numa, cpus: &[u32]) -> Self {
        Self {
            numa,
            pcpus: cpus.iter().copied().map(cpus::node_of_cpu).collect(),
            with_memory: cpus::nodes_with_memory(),
        }
    }

    /// Says to the kernel where `memory`, which nothing has touched, is to be. On a host with one node there is nothing to say.
    pub(crate) fn apply(&self, memory: &Memory) -> io::Result<()> {
        if self.with_memory.len() < 2 {
            return Ok(());
        }
        self.decisions(memory).into_iter().try_for_each(|(range, policy, nodes)| {
            let bytes = (range.end - range.start) as usize;
            cpus::place_memory(memory.host_address(range.start), bytes, policy, &nodes)
        })
    }

    /// Policies for ranges of guest memory, each of which overrides those before it. Schedulers deal vCPUs out to pCPUs in turn, so the
    /// home of a vCPU is the node of that pCPU.
    fn decisions(&self, memory: &Memory) -> Vec<Decision> {
        let all = memory.mapped();
        let whole = |policy, nodes| vec![(all.clone(), policy, nodes)];
        match self.numa {
            Numa::Node(node) => whole(MPOL_BIND, vec![node]),
            Numa::Interleave => {
                let mut nodes = self.pcpus.clone();
                nodes.retain(|node| self.with_memory.contains(node));
                nodes.sort_unstable();
                nodes.dedup();
                whole(MPOL_INTERLEAVE, if nodes.is_empty() { self.with_memory.clone() } else { nodes })
            }
            Numa::Local => {
                let mut homes = vec![(all.start..memory.pool_start(), self.pcpus[0])];
                for (start, stride) in memory.rows_of_vcpus() {
                    let border = |vcpu| nearest_page(start + u64::from(vcpu) * stride);
                    let places = (0..memory.vcpus()).map(|vcpu| border(vcpu)..border(vcpu + 1));
                    homes.extend(places.zip(self.pcpus.iter().copied().cycle()));
                }
                // The kernel refuses to prefer a node without memory.
                homes.retain(|(range, node)| !range.is_empty() && self.with_memory.contains(node));
                homes.into_iter().map(|(range, node)| (range, MPOL_PREFERRED, vec![node])).collect()
            }
        }
    }
}

/// The page's border that is next to an address: where a place ends within a page, that is its neighbour's or its own.
fn nearest_page(address: u64) -> u64 {
    const PAGE: u64 = 4096;
    (address + PAGE / 2) / PAGE * PAGE
}

/// A range of guest memory, the policy for its pages, and the policy's nodes.
type Decision = (Range<u64>, libc::c_int, Vec<u32>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::memory::LARGE_PAGE;

    const VCPUS: u32 = 6;

    /// pCPUs 0 and 1 on node 0, pCPU 2 on node 1, and a third node that has memory alone.
    fn placement(numa: Numa) -> Placement {
        Placement { numa, pcpus: vec![0, 0, 1], with_memory: vec![0, 1, 2] }
    }

    /// The policy and the nodes that an address has in the end.
    fn of(decisions: &[Decision], address: u64) -> Option<(libc::c_int, &[u32])> {
        let (_, policy, nodes) = decisions.iter().rev().find(|(range, ..)| range.contains(&address))?;
        Some((*policy, nodes))
    }

    #[test]
    fn each_vcpu_has_its_own_memory_on_its_pcpus_node() {
        let memory = Memory::new(LARGE_PAGE * 3, VCPUS, 4 << 20, 0).unwrap();
        let decisions = placement(Numa::Local).decisions(&memory);
        for vcpu in 0..VCPUS {
            let node = u32::from(vcpu % 3 == 2);
            let area = memory.area_address(vcpu).0;
            for address in
                [area + 0x1000, area + 0x3000, memory.stack_top(vcpu) - 1, memory.ring0_stack_top(vcpu) - 1]
            {
                assert_eq!(of(&decisions, address), Some((MPOL_PREFERRED, &[node][..])), "vCPU {vcpu}");
            }
        }
        assert_eq!(of(&decisions, LARGE_PAGE * 2), Some((MPOL_PREFERRED, &[0][..])));
        assert_eq!(of(&decisions, memory.pool_start()), None);
        assert!(
            decisions.iter().all(|(at, ..)| at.start % 4096 == 0 && at.end % 4096 == 0 && !at.is_empty())
        );
        // Interleaved memory uses the nodes of the pCPUs only.
        for (numa, expected) in
            [(Numa::Interleave, (MPOL_INTERLEAVE, &[0, 1][..])), (Numa::Node(2), (MPOL_BIND, &[2][..]))]
        {
            let decisions = placement(numa).decisions(&memory);
            assert_eq!(of(&decisions, 0), Some(expected));
            assert_eq!(of(&decisions, memory.size() - 1), Some(expected));
        }
    }

    /// Only on one node, since the node of a test's host may be the only one.
    #[test]
    fn the_kernel_takes_every_policy() {
        let memory = Memory::new(LARGE_PAGE * 3, VCPUS, 4 << 20, 0).unwrap();
        let node = cpus::nodes_with_memory()[0];
        for numa in [Numa::Local, Numa::Interleave, Numa::Node(node)] {
            let placement = Placement { numa, pcpus: vec![node; 3], with_memory: vec![node, node] };
            match placement.apply(&memory) {
                Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {}
                done => done.unwrap(),
            }
        }
    }
}
