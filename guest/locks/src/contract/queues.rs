//! Layout of waiters in memory, for observers outside the kernel such as a debugger or a hypervisor.

/// Location of the queue nodes of a domain. Sizes and offsets are in bytes.
///
/// A link names the node of another CPU by a code: (CPU + 1) * [`LEVELS`](crate::LEVELS) + level for locks whose nodes
/// nest, 1 + 8 * CPU + place for those that keep theirs until unlock (MCS).
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Queues {
    /// Address of CPU 0's first node.
    pub nodes: usize,
    /// From one CPU's nodes, and from one CPU's `in_use`, to the next one's.
    pub cpu_bytes: usize,
    /// From one node of a CPU to its next.
    pub node_bytes: usize,
    /// Nodes of each CPU.
    pub nodes_per_cpu: usize,
    /// Address of CPU 0's word that says which are in use: how many, or for locks that are released in any order, a
    /// mask.
    pub in_use: usize,
    /// Offset of the successor's code in a node.
    pub next: usize,
    /// Offset of the byte in a node that is not 0 once the node is first in its queue.
    pub locked: usize,
    /// Address of the domain's table, 0: it has none.
    pub table: usize,
    /// How many entries it has.
    pub table_entries: usize,
}
