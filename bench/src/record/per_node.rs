//! A run by the NUMA nodes of its pCPUs.

use std::collections::BTreeMap;

use haltkick_vmm::{OurGuest, Rules, Sched, Share, node_of_cpu};
use serde::{Deserialize, Serialize};

use super::PerVcpu;

/// The vCPUs that began on one node. Schedulers deal them out to the pCPUs in turn, and may move them.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct PerNode {
    /// The node; on a simulated machine the socket.
    pub(crate) node: u32,
    /// How many vCPUs.
    pub(crate) vcpus: u32,
    /// Sections that they completed inside the window.
    pub(crate) acquisitions: u64,
    /// Their time on pCPUs inside the window; null if it is not measured.
    pub(crate) run_ns: Option<u64>,
}

impl PerNode {
    /// All nodes that a guest began on; `None`: there is one, or it is not known which.
    pub(crate) fn of(asked: OurGuest<'_>, vcpus: &[PerVcpu]) -> Option<Vec<Self>> {
        let run = asked.run;
        let is_dealt_out = match run.rules {
            // Threads run where the kernel wants; a model starts each guest where it finds least.
            Rules { sched: Sched::Host, .. } => run.engine.is_simulated() && run.guests.len() == 1,
            Rules { share, .. } => share == Share::Vcpu || run.guests.len() == 1,
        };
        if !is_dealt_out {
            return None;
        }
        let before: u32 = run.guests[..asked.index].iter().map(|guest| guest.vcpus).sum();
        let cpus = &run.cpus;
        let node = |cpu: u32| match run.engine.machine() {
            Some(machine) => machine.topology.place(cpu).socket.into(),
            None => node_of_cpu(cpu),
        };
        let mut nodes: BTreeMap<u32, Vec<&PerVcpu>> = BTreeMap::new();
        for (number, vcpu) in vcpus.iter().enumerate() {
            nodes.entry(node(cpus[(before as usize + number) % cpus.len()])).or_default().push(vcpu);
        }
        let of_node = |(node, vcpus): (u32, Vec<&PerVcpu>)| Self {
            node,
            vcpus: vcpus.len() as u32,
            acquisitions: vcpus.iter().map(|vcpu| vcpu.acquisitions).sum(),
            run_ns: vcpus.iter().map(|vcpu| vcpu.run_ns).sum(),
        };
        (nodes.len() > 1).then(|| nodes.into_iter().map(of_node).collect())
    }
}
