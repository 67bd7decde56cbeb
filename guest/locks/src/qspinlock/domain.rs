//! State shared by all queue spinlocks of one kernel: the platform, the queue nodes, and the table of sleeping heads.

use core::{fmt, mem::offset_of, ptr};

use super::{
    node::Node,
    table::{Line, Table, WIDTH},
};
use crate::{
    contract::{Event, Platform, Queues, domain::domain},
    memory::sync::{AtomicU32, MODELLED, array, const_unless_loom},
    waiting::{
        nesting::{Code, LEVELS, Nesting},
        wake::{KickStamp, OF_SPINLOCKS},
    },
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
        queues_in_memory(&self.cpus, &self.table)
    }

    /// How many locks have a sleeping queue head that their unlock has to kick.
    ///
    /// A snapshot, for diagnosis: it is exact when no lock of this domain is being taken or released, and
    /// then 0.
    pub fn sleeping_heads(&self) -> usize {
        Table::new(&self.table).len()
    }
}

/// Layout of the nodes of `cpus` (at least one) and of `table`.
pub(crate) fn queues_in_memory(cpus: &[PerCpu], table: &[Line]) -> Queues {
    let per_cpu = &cpus[0];
    Queues {
        nodes: ptr::from_ref(&per_cpu.nodes).addr(),
        cpu_bytes: size_of::<PerCpu>(),
        node_bytes: size_of::<Node>(),
        nodes_per_cpu: LEVELS,
        in_use: ptr::from_ref(&per_cpu.own.nesting).addr(),
        next: offset_of!(Node, next),
        locked: offset_of!(Node, locked),
        table: table.as_ptr().addr(),
        table_entries: table.len() * WIDTH,
    }
}

/// A [`QSpinDomain`] whatever its size: a pointer where a lock is inlined, a [`Shared`] in the slow paths.
pub trait Memory {
    /// The platform that serves the locks.
    type Platform: Platform;

    /// How many CPUs there can be.
    const MOST_CPUS: usize;

    /// Borrows the memory without its sizes.
    fn shared(&self) -> Shared<'_, Self::Platform>;
}

impl<P: Platform, const CPUS: usize, const LINES: usize> Memory for QSpinDomain<P, CPUS, LINES> {
    type Platform = P;

    const MOST_CPUS: usize = CPUS;

    #[inline(always)]
    fn shared(&self) -> Shared<'_, P> {
        Shared { platform: &self.platform, cpus: &self.cpus, table: Table::new(&self.table) }
    }
}

/// A view of a [`QSpinDomain`] of any size.
#[derive(Debug)]
pub struct Shared<'a, P> {
    /// The platform that serves the locks.
    pub platform: &'a P,
    /// Each CPU's share.
    pub cpus: &'a [PerCpu],
    /// Where sleeping queue heads are found.
    pub table: Table<'a>,
}

impl<P> Clone for Shared<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Shared<'_, P> {}

impl<'a, P> Shared<'a, P> {
    /// The share of a CPU.
    pub fn cpu(self, cpu: usize) -> &'a PerCpu {
        &self.cpus[cpu]
    }

    /// The node that a code names.
    pub fn node(self, code: Code) -> &'a Node {
        &self.cpus[code.cpu()].nodes[code.level()]
    }
}

impl<P: Platform> Shared<'_, P> {
    /// Registers `code` as the sleeping head of the queue at `word`.
    pub(super) fn register(self, word: &AtomicU32, code: Code) {
        match self.table.insert(word, code) {
            Some(hops) => self.platform.count(Event::PvHashHops, hops),
            None => panic!("the table of sleeping queue heads is full\n{}", self.census()),
        }
    }

    /// Takes the sleeping head of the queue at `word` out of the table.
    pub(super) fn deregister(self, word: &AtomicU32) -> Code {
        self.table.remove(word).unwrap_or_else(|| {
            let lock = ptr::from_ref(word).addr();
            let census = self.census();
            panic!("lock {lock:#x} is slow and has no entry in the table of sleeping queue heads\n{census}");
        })
    }

    /// Lists the CPU that sleeps at the head of each queue.
    fn census(self) -> impl fmt::Display {
        self.table.census(move |code| self.node(code))
    }

    /// Sleeps while `still` holds, or less. `time` counts how long.
    pub(super) fn sleep(self, cpu: usize, time: Event, still: impl Fn() -> bool) {
        let asleep = self.platform.now();
        OF_SPINLOCKS.sleep(self.platform, &self.cpus[cpu].own.kicked, still);
        self.platform.count(time, self.platform.now().saturating_sub(asleep));
    }

    /// Ends the sleep of `cpu`.
    pub(super) fn kick(self, cpu: usize) {
        OF_SPINLOCKS.kick(self.platform, &self.cpus[cpu].own.kicked, cpu);
    }
}

/// One CPU's share of a domain.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct PerCpu {
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
        pub const fn new() -> Self {
            Self {
                nodes: array![Node::new(); LEVELS],
                own: Own { nesting: Nesting::new(), kicked: KickStamp::new() },
            }
        }
    }

    pub fn nesting(&self) -> &Nesting {
        &self.own.nesting
    }

    /// The node of a nesting level, if that many nest.
    pub fn node(&self, level: usize) -> Option<&Node> {
        self.nodes.get(level)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    extern crate std;

    use std::{format, string::String, vec::Vec};

    use super::*;
    use crate::contract::test_platform::{IDLE, Scripted};

    type Domain = QSpinDomain<Scripted, 64>;

    const ENTRIES: usize = 64 * WIDTH;

    fn locks(n: usize) -> Vec<AtomicU32> {
        (0..n).map(|_| AtomicU32::new(0)).collect()
    }

    fn panic_message(f: impl FnOnce()) -> String {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_err();
        panic.downcast_ref::<String>().expect("a formatted message").clone()
    }

    #[test]
    fn every_entry_can_be_used_and_found_again_past_holes() {
        let domain = Domain::new(IDLE);
        let locks = locks(ENTRIES);
        let code = |i: usize| Code::new(i % 64, i / 64);
        for (i, lock) in locks.iter().enumerate() {
            domain.shared().register(lock, code(i));
        }
        assert_eq!(domain.sleeping_heads(), ENTRIES);
        // Every other one first, so that searches for the rest pass holes.
        for i in (0..ENTRIES).step_by(2).chain((1..ENTRIES).step_by(2)) {
            assert_eq!(domain.shared().deregister(&locks[i]), code(i));
        }
        assert_eq!(domain.sleeping_heads(), 0);
    }

    #[test]
    fn a_full_table_says_who_sleeps() {
        let domain = Domain::new(IDLE);
        let locks = locks(ENTRIES + 1);
        let message = panic_message(|| {
            for lock in &locks {
                domain.shared().register(lock, Code::new(5, 3));
            }
        });
        assert!(message.contains("is full") && message.contains("256 of 256 entries in use"), "{message}");
        assert!(
            message.contains(&format!("lock {:#x}, CPU 5, level 3", ptr::from_ref(&locks[0]).addr())),
            "{message}"
        );
    }

    #[test]
    fn a_missing_entry_says_who_sleeps_instead() {
        let domain = Domain::new(IDLE);
        let locks = locks(2);
        domain.shared().register(&locks[0], Code::new(7, 0));
        let message = panic_message(|| _ = domain.shared().deregister(&locks[1]));
        assert!(message.contains("has no entry") && message.contains("CPU 7, level 0"), "{message}");
    }
}
