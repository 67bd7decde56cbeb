//! What all queue spinlocks of one kernel share: the platform, the queue nodes, and the table of sleeping
//! heads.

use core::{mem::offset_of, ptr};

use super::table::{Line, Table, WIDTH};
use crate::{
    Platform, Queues,
    domain::domain,
    nesting::{Code, LEVELS, Nesting},
    sync::{AtomicU8, AtomicU32, MODELLED, Ordering::*, array, const_unless_loom},
    wake::{KickStamp, OF_SPINLOCKS},
};

/// The memory that all queue spinlocks of one kernel share.
///
/// `CPUS` bounds [`Platform::cpu`]. `LINES` sizes the table in which sleeping queue heads are found, at
/// four entries a line: a power of two, at least `CPUS` and at least 64.
#[derive(Debug)]
pub struct QSpinDomain<P, const CPUS: usize, const LINES: usize = 64> {
    platform: P,
    cpus: [PerCpu; CPUS],
    table: [Line; LINES],
}

domain!(QSpinDomain<CPUS, LINES>, queues_in_memory);

impl<P, const CPUS: usize, const LINES: usize> QSpinDomain<P, CPUS, LINES> {
    const_unless_loom! {
        /// The memory of `CPUS` CPUs, none of which waits.
        pub const fn new(platform: P) -> Self {
            const {
                assert!(LINES.is_power_of_two());
                // A CPU sleeps at the head of at most one queue for each level: with as many lines as CPUs
                // the table cannot fill. The model checkers run with a few CPUs and a single line.
                assert!(MODELLED || (LINES >= CPUS && LINES >= 64));
            }
            Self { platform, cpus: array![PerCpu::new(); CPUS], table: array![Line::new(); LINES] }
        }
    }

    fn queues_in_memory(&self) -> Queues {
        let per_cpu = &self.cpus[0];
        Queues {
            nodes: ptr::from_ref(&per_cpu.nodes).addr(),
            cpu_bytes: size_of::<PerCpu>(),
            node_bytes: size_of::<Node>(),
            nodes_per_cpu: LEVELS,
            in_use: ptr::from_ref(&per_cpu.own.nesting).addr(),
            next: offset_of!(Node, next),
            locked: offset_of!(Node, locked),
            table: ptr::from_ref(&self.table).addr(),
            table_entries: LINES * WIDTH,
        }
    }

    /// How many locks have a sleeping queue head that their unlock has to kick.
    ///
    /// A snapshot, for diagnosis: it is exact when no lock of this domain is being taken or released, and
    /// then 0.
    pub fn sleeping_heads(&self) -> usize {
        Table::new(&self.table).len()
    }
}

/// A [`QSpinDomain`] whatever its size: a pointer where a lock is inlined, a [`Shared`] in the slow paths.
pub trait Memory {
    /// The platform that serves the locks.
    type Platform: Platform;

    /// The same memory with its sizes forgotten.
    fn shared(&self) -> Shared<'_, Self::Platform>;
}

impl<P: Platform, const CPUS: usize, const LINES: usize> Memory for QSpinDomain<P, CPUS, LINES> {
    type Platform = P;

    #[inline(always)]
    fn shared(&self) -> Shared<'_, P> {
        Shared { platform: &self.platform, cpus: &self.cpus, table: Table::new(&self.table) }
    }
}

/// A view of a [`QSpinDomain`] of any size.
#[derive(Debug)]
pub struct Shared<'a, P> {
    pub(super) platform: &'a P,
    cpus: &'a [PerCpu],
    table: Table<'a>,
}

impl<P> Clone for Shared<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Shared<'_, P> {}

impl<'a, P> Shared<'a, P> {
    pub(super) fn cpu(self, cpu: usize) -> &'a PerCpu {
        &self.cpus[cpu]
    }

    pub(super) fn node(self, code: Code) -> &'a Node {
        &self.cpus[code.cpu()].nodes[code.level()]
    }
}

impl<P: Platform> Shared<'_, P> {
    /// Registers `code` as the sleeping head of the queue at `word`.
    pub(super) fn register(self, word: &AtomicU32, code: Code) {
        self.table.insert(self, word, code);
    }

    /// Takes the sleeping head of the queue at `word` out of the table.
    pub(super) fn deregister(self, word: &AtomicU32) -> Code {
        self.table.remove(self, word)
    }

    /// Sleeps while `still` holds, or less.
    pub(super) fn sleep(self, cpu: usize, still: impl Fn() -> bool) {
        OF_SPINLOCKS.sleep(self.platform, &self.cpus[cpu].own.kicked, still);
    }

    /// Ends the sleep of `cpu`.
    pub(super) fn kick(self, cpu: usize) {
        OF_SPINLOCKS.kick(self.platform, &self.cpus[cpu].own.kicked, cpu);
    }
}

/// One CPU's share of the domain.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct PerCpu {
    /// One line, which neighbours in a queue write.
    nodes: [Node; LEVELS],
    own: Own,
}

/// The line that this CPU writes, but for the stamp of a kick.
#[derive(Debug)]
#[repr(align(64))]
struct Own {
    nesting: Nesting,
    kicked: KickStamp,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<PerCpu>() == 128 && core::mem::offset_of!(PerCpu, own) == 64);

impl PerCpu {
    const_unless_loom! {
        const fn new() -> Self {
            Self {
                nodes: array![Node::new(); LEVELS],
                own: Own { nesting: Nesting::new(), kicked: KickStamp::new() },
            }
        }
    }

    pub(super) fn nesting(&self) -> &Nesting {
        &self.own.nesting
    }

    /// The node of a nesting level, if that many nest.
    pub(super) fn node(&self, level: usize) -> Option<&Node> {
        self.nodes.get(level)
    }
}

/// A waiter in a queue. Initialised by its own CPU, then written by neighbours.
#[derive(Debug)]
#[cfg_attr(not(any(loom, shuttle)), repr(align(16)))]
pub(super) struct Node {
    /// Code of the successor, 0 while none is known. Written by the successor.
    pub(super) next: AtomicU32,
    /// 1 once this waiter is head. Written by the predecessor.
    pub(super) locked: AtomicU32,
    /// Paravirtual only: see [`pv`](super::pv).
    pub(super) state: AtomicU8,
    /// 1 once the unlocker has taken this head's entry out of the table. Set by the unlocker, cleared by the
    /// head.
    pub(super) taken_out: AtomicU8,
}

impl Node {
    const_unless_loom! {
        const fn new() -> Self {
            Self {
                next: AtomicU32::new(0),
                locked: AtomicU32::new(0),
                state: AtomicU8::new(super::pv::RUNNING),
                taken_out: AtomicU8::new(0),
            }
        }
    }

    /// Prepares the node for a new wait. Relaxed: published by [`Word::swap_tail`](super::Word::swap_tail).
    pub(super) fn init(&self) {
        self.next.store(0, Relaxed);
        self.locked.store(0, Relaxed);
        self.state.store(super::pv::RUNNING, Relaxed);
        self.taken_out.store(0, Relaxed);
    }
}
