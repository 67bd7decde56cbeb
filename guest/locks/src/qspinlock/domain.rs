//! State shared by all queue spinlocks of one kernel: the platform, the queue nodes, and the table of sleeping heads.

use core::{fmt, mem::offset_of, ptr};

use crate::{
    contract::{Event, Platform, Queues, domain},
    memory::{AtomicU8, AtomicU32, AtomicUsize, MODELLED, Ordering::*, array, const_unless_loom, fresh},
    waiting::{Code, KickStamp, LEVELS, Nesting, OF_SPINLOCKS},
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

domain!(QSpinDomain<CPUS, LINES>, |domain| queues_in_memory(&domain.cpus, &domain.table));

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
    let cpu = &cpus[0];
    Queues {
        table: table.as_ptr().addr(),
        table_entries: table.len() * WIDTH,
        ..Queues::of(cpu, &cpu.nodes, &cpu.own.nesting, offset_of!(Node, next), offset_of!(Node, locked))
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
    /// The table in which an unlock finds a sleeping queue head.
    pub table: Table<'a>,
}

impl<P> Clone for Shared<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Shared<'_, P> {}

impl<'a, P> Shared<'a, P> {
    /// The node that a code names.
    pub fn node(self, code: Code) -> &'a Node {
        &self.cpus[code.cpu()].nodes[code.place()]
    }
}

impl<P: Platform> Shared<'_, P> {
    /// Registers `code` as the sleeping head of the queue at `word`.
    pub(super) fn pv_hash(self, word: &AtomicU32, code: Code) {
        match self.table.insert(word, code) {
            Some(hops) => self.platform.count(Event::PvHashHops, hops),
            None => panic!("the table of sleeping queue heads is full\n{}", self.census()),
        }
    }

    /// Takes the sleeping head of the queue at `word` out of the table.
    pub(super) fn pv_unhash(self, word: &AtomicU32) -> Code {
        self.table.remove(word).unwrap_or_else(|| {
            let lock = ptr::from_ref(word).addr();
            let census = self.census();
            panic!("lock {lock:#x} is slow and has no entry in the table of sleeping queue heads\n{census}");
        })
    }

    /// Lists the CPU that sleeps at the head of each queue, for the message of a panic.
    fn census(self) -> impl fmt::Display {
        fmt::from_fn(move |f| {
            let entries = self.table.0.iter().flat_map(|line| &line.0);
            // Relaxed, here and below: a snapshot of what other CPUs go on changing.
            let in_use = entries.clone().enumerate().filter(|(_, entry)| entry.lock.load(Relaxed) != 0);
            let mut used = 0;
            for (slot, entry) in in_use {
                used += 1;
                let lock = entry.lock.load(Relaxed);
                let Some(code) = Code::from_raw(entry.node.load(Relaxed)) else {
                    writeln!(f, "entry {slot}: lock {lock:#x}, being made")?;
                    continue;
                };
                let node = self.node(code);
                writeln!(
                    f,
                    "entry {slot}: lock {lock:#x}, CPU {}, level {}, state {}, head {}",
                    code.cpu(),
                    code.place(),
                    node.state.load(Relaxed),
                    node.locked.load(Relaxed),
                )?;
            }
            write!(f, "{used} of {} entries in use", entries.count())
        })
    }

    /// Sleeps while `still` holds, or less. `time` counts how long.
    pub(super) fn sleep(self, cpu: usize, time: Event, still: impl Fn() -> bool) {
        let asleep = self.platform.now();
        OF_SPINLOCKS.sleep(self.platform, &self.cpus[cpu].own.kicked, still);
        self.platform.count(time, self.platform.now().saturating_sub(asleep));
    }

    pub(super) fn kick(self, cpu: usize) {
        OF_SPINLOCKS.kick(self.platform, &self.cpus[cpu].own.kicked, cpu);
    }
}

/// One CPU's share of a domain.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct PerCpu {
    /// One line, which neighbours in a queue write.
    pub(crate) nodes: [Node; LEVELS],
    pub(crate) own: Own,
}

/// The line that this CPU writes, but for the stamp of a kick.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Own {
    pub(crate) nesting: Nesting,
    kicked: KickStamp,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<PerCpu>() == 128 && core::mem::offset_of!(PerCpu, own) == 64);

fresh!(pub PerCpu {
    nodes: array![Node::new(); LEVELS],
    own: Own { nesting: Nesting::new(), kicked: KickStamp::new() },
});

/// The waiter does not sleep.
pub(super) const RUNNING: u8 = 0;
/// The waiter sleeps and is not head.
pub(super) const HALTED: u8 = 1;
/// The waiter is head, and in the table.
pub(super) const HASHED: u8 = 2;

/// `locked`: the waiter is behind another one.
pub(crate) const WAITS: u32 = 0;
/// `locked`: the waiter is head.
pub(crate) const HEAD: u32 = 1;
/// `locked`: the waiter has to leave, with all behind it. In the queue of an `RqSpinLock` only.
pub(crate) const DISSOLVED: u32 = 2;

/// A waiter in a queue. Initialised by its own CPU, then written by neighbours.
///
/// The `state` of a node tells the owner what to do when it makes the node's CPU head:
///
/// | state | meaning | set by |
/// |---|---|---|
/// | [`RUNNING`] | does not sleep | the waiter |
/// | [`HALTED`] | sleeps, or is about to, and is not head | the waiter |
/// | [`HASHED`] | stands in the table, or will before the lock is released | the head; the owner, from HALTED |
#[derive(Debug)]
#[cfg_attr(not(any(loom, shuttle)), repr(align(16)))]
pub struct Node {
    /// Code of the successor, 0 while none is known. Written by the successor.
    pub next: AtomicU32,
    /// [`WAITS`], [`HEAD`] or [`DISSOLVED`]. Written by the predecessor.
    pub locked: AtomicU32,
    /// Paravirtual only: [`RUNNING`], [`HALTED`] or [`HASHED`].
    pub(super) state: AtomicU8,
    /// 1 once the unlocker has taken this head's entry out of the table. Set by the unlocker, cleared by the
    /// head.
    pub(super) taken_out: AtomicU8,
}

fresh!(pub(super) Node {
    next: AtomicU32::new(0),
    locked: AtomicU32::new(0),
    state: AtomicU8::new(RUNNING),
    taken_out: AtomicU8::new(0),
});

impl Node {
    /// Prepares the node for a new wait. Relaxed: published by [`Word::swap_tail`](super::Word::swap_tail).
    pub fn init(&self) {
        self.next.store(0, Relaxed);
        self.locked.store(WAITS, Relaxed);
        self.state.store(RUNNING, Relaxed);
        self.taken_out.store(0, Relaxed);
    }
}

/// Entries in a line.
pub(super) const WIDTH: usize = 4;

/// A cache line of the table.
#[derive(Debug)]
#[repr(align(64))]
pub struct Line([Entry; WIDTH]);

/// Laid out for those who look at it from outside: see [`Queues`](crate::Queues).
#[derive(Debug)]
#[repr(C)]
struct Entry {
    /// Address of the lock word; 0: the entry is free.
    lock: AtomicUsize,
    /// Code of the head. Belongs to the CPU that took the entry or may remove it.
    node: AtomicU32,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Line>() == 64);

fresh!(pub(super) Line(array![Entry { lock: AtomicUsize::new(0), node: AtomicU32::new(0) }; WIDTH]));

/// A table of any size.
///
/// Unlock knows the lock, not the queue: nothing points to the head. So a head that goes to sleep stores
/// (lock, node) here and writes SLOW into the lock word, and the unlock that finds SLOW takes the entry out
/// again.
///
/// Invariant: one entry for each lock whose word is SLOW, or about to be, and none for any other lock. It
/// holds because a queue has one head, and because the head and the owner that registers a head on its behalf
/// agree through the node's state which of them does it (T2).
///
/// A search starts at the first of the four entries of the line that the lock's address hashes to, and goes
/// on from there to the end of the table and around. There is always a free entry (see
/// [`QSpinDomain::new`](super::QSpinDomain::new)), and an unlock finds what it looks for, so neither failure
/// can happen in a sound kernel: the domain panics at both, with a census of the table.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a>(&'a [Line]);

impl<'a> Table<'a> {
    /// A table in these lines.
    pub fn new(lines: &'a [Line]) -> Self {
        Self(lines)
    }

    /// Entries in use. Relaxed: a snapshot of what other CPUs go on changing.
    pub(super) fn len(self) -> usize {
        self.0.iter().flat_map(|line| &line.0).filter(|entry| entry.lock.load(Relaxed) != 0).count()
    }

    /// All entries, in the order in which a search for `lock` visits them.
    fn search(self, lock: usize) -> impl Iterator<Item = &'a Entry> {
        // Multiplication by 2^64 / phi spreads addresses that differ in few bits over the upper half.
        let hash = (lock as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let (before, after) = self.0.split_at(hash as usize % self.0.len());
        after.iter().chain(before).flat_map(|line| &line.0)
    }

    /// Registers `code` as the head of the queue at `word`. At how many entries it has looked; `None`: all are in use.
    pub(super) fn insert(self, word: &AtomicU32, code: Code) -> Option<u64> {
        let lock = ptr::from_ref(word).addr();
        for (hops, entry) in (1..).zip(self.search(lock)) {
            // Acquire: pairs with the release in `remove`, so that the store to `node` below comes after the
            // load of `node` there.
            if entry.lock.compare_exchange(0, lock, Acquire, Relaxed).is_ok() {
                // Relaxed: the unlock that looks for it has first seen SLOW, which is published after this.
                entry.node.store(code.raw(), Relaxed);
                return Some(hops);
            }
        }
        None
    }

    /// Takes out the head of the queue at `word`, if it stands here.
    pub(super) fn remove(self, word: &AtomicU32) -> Option<Code> {
        let lock = ptr::from_ref(word).addr();
        for entry in self.search(lock) {
            // Relaxed: the caller has acquired from the CPU that made the entry, or made it itself.
            if entry.lock.load(Relaxed) == lock {
                // Relaxed: as above.
                let code = entry.node.load(Relaxed);
                // Release: pairs with the acquire in `insert`.
                entry.lock.store(0, Release);
                return Some(Code::from_raw(code).expect("an entry names a node"));
            }
        }
        None
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
            domain.shared().pv_hash(lock, code(i));
        }
        assert_eq!(domain.sleeping_heads(), ENTRIES);
        // Every other one first, so that searches for the rest pass holes.
        for i in (0..ENTRIES).step_by(2).chain((1..ENTRIES).step_by(2)) {
            assert_eq!(domain.shared().pv_unhash(&locks[i]), code(i));
        }
        assert_eq!(domain.sleeping_heads(), 0);
    }

    #[test]
    fn a_full_table_and_a_missing_entry_say_who_sleeps() {
        let domain = Domain::new(IDLE);
        let locks = locks(ENTRIES + 1);
        let full = panic_message(|| {
            for lock in &locks {
                domain.shared().pv_hash(lock, Code::new(5, 3));
            }
        });
        assert!(full.contains("is full") && full.contains("256 of 256 entries in use"), "{full}");
        let missing = panic_message(|| _ = domain.shared().pv_unhash(&locks[ENTRIES]));
        assert!(missing.contains("has no entry"), "{missing}");
        let first = format!("lock {:#x}, CPU 5, level 3", ptr::from_ref(&locks[0]).addr());
        assert!(full.contains(&first) && missing.contains(&first), "{full}\n{missing}");
    }
}
