//! Memory that the locks of a kernel share: the nodes of each CPU.

use core::{mem::offset_of, ptr};

use crate::{
    contract::{Queues, domain::domain},
    memory::sync::{AtomicU8, AtomicU32, AtomicUsize, Ordering::*, array, const_unless_loom},
    waiting::nesting::{Code, LEVELS, Nesting},
};

use super::MAX_CPUS;

/// State shared by the owner-yielding locks of one kernel: the platform, and four nodes for each CPU.
#[derive(Debug)]
pub struct OwnerYieldDomain<P, const CPUS: usize> {
    pub(super) platform: P,
    pub(super) cpus: [PerCpu; CPUS],
}

#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct PerCpu {
    /// Written by neighbours in a queue.
    pub(super) nodes: [Node; LEVELS],
    pub(super) nesting: Nesting,
}

/// A waiter in a queue.
#[derive(Debug)]
pub(super) struct Node {
    /// The lock that this node waits for; 0: none. Written by its own CPU.
    pub(super) lock: AtomicUsize,
    /// Code of the successor, 0 while none is known. Written by the successor.
    pub(super) next: AtomicU32,
    /// 1 once this waiter is head. Written by the predecessor.
    pub(super) locked: AtomicU8,
    /// 1 while the owner is known to be preempted. Written by the predecessor.
    pub(super) sleepy: AtomicU8,
}

impl Node {
    const_unless_loom! {
        const fn new() -> Self {
            Self {
                lock: AtomicUsize::new(0),
                next: AtomicU32::new(0),
                locked: AtomicU8::new(0),
                sleepy: AtomicU8::new(0),
            }
        }
    }
}

impl PerCpu {
    const_unless_loom! {
        const fn new() -> Self {
            Self { nodes: array![Node::new(); LEVELS], nesting: Nesting::new() }
        }
    }
}

domain!(OwnerYieldDomain<CPUS>, queues_in_memory);

impl<P, const CPUS: usize> OwnerYieldDomain<P, CPUS> {
    const_unless_loom! {
        /// The memory of `CPUS` CPUs, none of which waits.
        pub const fn new(platform: P) -> Self {
            const { assert!(CPUS <= MAX_CPUS, "the lock word cannot name so many owners") };
            Self { platform, cpus: array![PerCpu::new(); CPUS] }
        }
    }

    fn queues_in_memory(&self) -> Queues {
        Queues {
            nodes: ptr::from_ref(&self.cpus[0].nodes).addr(),
            cpu_bytes: size_of::<PerCpu>(),
            node_bytes: size_of::<Node>(),
            nodes_per_cpu: LEVELS,
            in_use: ptr::from_ref(&self.cpus[0].nesting).addr(),
            next: offset_of!(Node, next),
            locked: offset_of!(Node, locked),
            ..Queues::default()
        }
    }

    pub(super) fn node(&self, code: Code) -> &Node {
        &self.cpus[code.cpu()].nodes[code.level()]
    }

    /// The node with which `cpu` waits for `lock`.
    pub(super) fn waiting(&self, cpu: usize, lock: usize) -> &Node {
        // Relaxed: published by the swap of the tail in G2, which the caller has acquired from.
        let waits = |node: &&Node| node.lock.load(Relaxed) == lock;
        self.cpus[cpu]
            .nodes
            .iter()
            .find(waits)
            .expect("the CPU in the tail has a node that waits for the lock")
    }
}
