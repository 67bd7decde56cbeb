//! Which cores have a line, how far a request has to go for it, and what that costs.

use crate::machine::{CpuPlace, LineCosts, Machine};

use super::{Copies, Need};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sharers {
    cores: Box<[u64]>,
    /// The clusters in which a core has a copy, as bits.
    clusters: u128,
}

impl Sharers {
    /// An empty set of at most `cores` cores.
    pub(super) fn new(cores: usize) -> Self {
        Self { cores: vec![0; cores.div_ceil(64)].into(), clusters: 0 }
    }

    /// Bytes on the heap of one.
    pub(super) fn most_bytes(cores: usize) -> usize {
        cores.div_ceil(64) * size_of::<u64>()
    }

    pub(super) fn add(&mut self, core: u16, cluster: u16) {
        self.cores[usize::from(core) / 64] |= 1 << (core % 64);
        self.clusters |= 1 << cluster;
    }

    pub(super) fn has(&self, core: u16) -> bool {
        self.cores[usize::from(core) / 64] & 1 << (core % 64) != 0
    }
}

/// Place of the line, or of the farthest copy that has to be invalidated, from a core's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// In the core itself: the sibling fetched it meanwhile.
    Core,
    /// In the common cache of the core's own cluster, as a copy.
    Shared,
    /// In another core of the cluster.
    Cluster,
    /// In another cluster of the socket.
    Socket,
    /// In another socket, this many hops away.
    Far(u8),
    /// In memory.
    Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    way: Way,
    /// Copies have to be invalidated, which takes longer.
    invalidates: bool,
    /// It reads what others may read, too.
    shares: bool,
}

impl Task {
    /// Work of a core at `place` to get the line of which these have `copies`. `places` are the places of all cores.
    pub(super) fn new(
        machine: &Machine,
        (copies, sharers): (Copies, Option<&Sharers>),
        place: CpuPlace,
        need: Need,
        places: &[CpuPlace],
    ) -> Self {
        let (way, invalidates) = match copies {
            Copies::Memory => (Way::Memory, false),
            Copies::One(owner) => (between(machine, places[usize::from(owner)], place), false),
            Copies::Many => {
                let clusters = sharers.map_or(0, |sharers| sharers.clusters);
                let topology = &machine.topology;
                let sockets = 0..topology.sockets() as u16;
                let with_copies = sockets.filter(|socket| clusters & topology.clusters_of(*socket) != 0);
                let hops = with_copies.map(|socket| topology.hops(place.socket, socket));
                let own = 1_u128 << place.cluster;
                let own_socket = topology.clusters_of(place.socket);
                let way = match need {
                    Need::Read if clusters & own != 0 => Way::Shared,
                    Need::Read if clusters & own_socket != 0 => Way::Socket,
                    Need::Read => Way::Far(hops.min().unwrap_or(1)),
                    Need::Write if clusters == own => Way::Cluster,
                    Need::Write if clusters & !own_socket == 0 => Way::Socket,
                    Need::Write => Way::Far(hops.max().unwrap_or(1)),
                };
                (way, need == Need::Write)
            }
        };
        let shares = need == Need::Read && copies == Copies::Many;
        Self { way, invalidates, shares }
    }

    /// The time until it is done, where no other request is under way.
    pub(super) fn latency_ps(self, costs: &LineCosts) -> u64 {
        let ps = match self.way {
            Way::Core => costs.sibling_ps,
            Way::Shared => costs.shared_ps,
            Way::Cluster => costs.near_ps,
            Way::Socket => costs.socket_ps,
            Way::Far(hops) => costs.hops_ps[usize::from(hops) - 1],
            Way::Memory => costs.memory_ps,
        };
        let upgrade_permille = match self.way {
            _ if !self.invalidates => return ps,
            Way::Far(hops) => costs.upgrade_hops_permille[usize::from(hops) - 1],
            _ => costs.upgrade_socket_permille,
        };
        ps * upgrade_permille / 1000
    }

    /// The time until it is done after the request before it, for one that has waited.
    pub(super) fn spacing_ps(self, costs: &LineCosts) -> u64 {
        let permille = self.occupancy_permille(costs);
        match self.way {
            // Under contention a sibling is as any core of the cluster: with all siblings busy, a machine whose counts are
            // published does no more operations on one word than without them.
            Way::Core => costs.near_visit_ps(),
            // Copies go to many at once, and as much longer to those who are farther away.
            _ if self.shares => {
                let multiple = costs.shared_ps * self.latency_ps(costs).max(costs.near_ps);
                multiple.checked_div(costs.near_ps).unwrap_or(costs.shared_ps)
            }
            _ => self.latency_ps(costs) * permille / 1000,
        }
    }

    /// The time until the request of another cluster has come to the owner's. One of the same cluster waits there already.
    pub(super) fn flight_ps(self, costs: &LineCosts) -> u64 {
        match self.way {
            Way::Socket | Way::Far(_) => self.latency_ps(costs).saturating_sub(costs.near_ps),
            _ => 0,
        }
    }

    fn occupancy_permille(self, costs: &LineCosts) -> u64 {
        match self.way {
            // Readers are served one after the other, at a cost that is one of occupancy as it is.
            Way::Shared | Way::Memory => 1000,
            Way::Core | Way::Cluster => costs.occupancy_near_permille,
            Way::Socket => costs.occupancy_socket_permille,
            Way::Far(_) => costs.occupancy_far_permille,
        }
    }
}

fn between(machine: &Machine, from: CpuPlace, to: CpuPlace) -> Way {
    match () {
        () if from.core == to.core => Way::Core,
        () if from.cluster == to.cluster => Way::Cluster,
        () if from.socket == to.socket => Way::Socket,
        () => Way::Far(machine.topology.hops(from.socket, to.socket)),
    }
}
