//! A set of cores, and of the clusters that they are in.

/// The cores that have a copy of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sharers {
    cores: Box<[u64]>,
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

    /// Adds a core, which is in this cluster.
    pub(super) fn add(&mut self, core: u16, cluster: u16) {
        self.cores[usize::from(core) / 64] |= 1 << (core % 64);
        self.clusters |= 1 << cluster;
    }

    /// Whether it has a copy.
    pub(super) fn has(&self, core: u16) -> bool {
        self.cores[usize::from(core) / 64] & 1 << (core % 64) != 0
    }

    /// The clusters in which a core has a copy, as bits.
    pub(super) fn clusters(&self) -> u128 {
        self.clusters
    }
}
