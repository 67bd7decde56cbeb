//! Queues of waiting vCPUs, in order, and sleeping vCPUs: read from the nodes of the lock's kind, which lie in the guest's
//! memory where the guest says.
//!
//! A lock's word names the last in its queue, and each node its successor. So the queue is followed from its end: the one
//! before a node is the node in use that names it as its successor. All nodes are read once; no queue is longer than
//! there are nodes, and a node that comes up again ends it. Invalid addresses and codes match no vCPU.
//!
//! In locks that all vCPUs have left some may have left traces: a lock that still looks taken, and sleepers that are still registered.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use haltkick_hypercalls::{
    MAX_LOCKS, MAX_VCPUS, Queues, WORD_MCS, WORD_OWNER_YIELD, WORD_PV_TICKET, WORD_QSPINLOCK,
    WORD_QSPINLOCK_WHOLE,
};
use serde::Serialize;

use super::word::{self, Word};
use crate::guest::memory::Memory;

/// Nodes of one vCPU that are looked at, at most.
const MOST_NODES_PER_VCPU: u32 = 8;
/// Entries of a table that are looked at, at most.
const MOST_ENTRIES: u32 = 4 * MAX_VCPUS as u32;

/// The queue of one lock, first to last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// The vCPUs in it.
    pub vcpus: Vec<u32>,
    /// Whether the first of them is the first in the queue; else who is before it has not linked up yet, or there is no
    /// telling.
    pub from_head: bool,
}

/// The vCPUs registered as asleep, where unlock looks for the vCPU to kick.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Census {
    /// Entries that there are.
    pub capacity: u32,
    /// Entries in use.
    pub entries: Vec<Registered>,
}

/// An entry of the hash table, or a slot of a vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Registered {
    /// Index of the lock; null if the address belongs to no lock.
    pub lock: Option<u32>,
    /// The address that stands there.
    pub address: u64,
    /// The vCPU that unlock is to kick; null if the entry names no vCPU.
    pub vcpu: Option<u32>,
    /// The ticket that it waits with, where there are tickets.
    pub ticket: Option<u32>,
}

/// The run's locks and the nodes of their kind, where the guest states that they lie. Nothing runs while this is read, so it is read
/// anew each time.
pub(super) struct Locks<'a> {
    memory: &'a Memory,
    first: u64,
    stride: u64,
    count: u32,
    /// Format of a lock's first bytes.
    format: u32,
    /// From the code of each node to that of the node before it, once they have been asked for.
    links: OnceCell<HashMap<u32, u32>>,
}

impl<'a> Locks<'a> {
    /// `None` where the guest does not say.
    pub(super) fn new(memory: &'a Memory, count: u32) -> Option<Self> {
        let control = memory.control();
        // Relaxed, here and below: all threads have ended, or stand still.
        let first = control.locks.load(Ordering::Relaxed);
        let stride = u64::from(control.lock_stride.load(Ordering::Relaxed));
        let format = control.lock_word.load(Ordering::Relaxed);
        let (count, links) = (count.min(MAX_LOCKS), OnceCell::new());
        (first != 0 && stride != 0).then_some(Self { memory, first, stride, count, format, links })
    }

    /// The address and the first bytes of `lock`, as far as they lie in memory.
    fn read(&self, lock: u32) -> Option<(u64, [u8; 8])> {
        let address = self.first.checked_add(u64::from(lock) * self.stride)?;
        Some((address, self.memory.read(address, 8)?.try_into().ok()?))
    }

    pub(super) fn word(&self, lock: u32) -> Option<Word> {
        let (address, bytes) = self.read(lock)?;
        word::decode(address, bytes, self.format).map(|(word, _)| word)
    }

    fn at(&self, address: u64) -> Option<u32> {
        let from_first = address.checked_sub(self.first)?;
        let lock = u32::try_from(from_first / self.stride).ok()?;
        (from_first.is_multiple_of(self.stride) && lock < self.count).then_some(lock)
    }

    /// Whether the guest says where nodes lie.
    fn has_nodes(&self) -> bool {
        self.memory.control().queues.nodes.load(Ordering::Relaxed) != 0
    }

    /// Reads a field by which the guest describes the nodes of its locks.
    fn said(&self, of: fn(&Queues) -> &AtomicU32) -> u32 {
        of(&self.memory.control().queues).load(Ordering::Relaxed)
    }

    fn per_vcpu(&self) -> u32 {
        self.said(|it| &it.nodes_per_cpu).min(MOST_NODES_PER_VCPU)
    }

    /// The address of what is `offset` bytes into a node; `None` when there is no such vCPU or no such node, or beyond all addresses.
    fn node(&self, vcpu: u32, place: u32, offset: u32) -> Option<u64> {
        let exists = vcpu < self.memory.vcpus() && place < self.per_vcpu();
        let [cpu, node] = [self.said(|it| &it.cpu_bytes), self.said(|it| &it.node_bytes)].map(u64::from);
        let from_first = u64::from(vcpu) * cpu + u64::from(place) * node + u64::from(offset);
        let first = self.memory.control().queues.nodes.load(Ordering::Relaxed);
        first.checked_add(from_first).filter(|_| exists)
    }

    fn is_in_use(&self, vcpu: u32, place: u32) -> bool {
        let from_first = u64::from(vcpu) * u64::from(self.said(|it| &it.cpu_bytes));
        let word = self.memory.control().queues.in_use.load(Ordering::Relaxed).checked_add(from_first);
        let word = word.and_then(|address| read_u32(self.memory, address)).unwrap_or(0);
        match self.format {
            WORD_MCS => word >> place & 1 != 0,
            _ => place < word,
        }
    }

    /// Returns the code that names a node in links and tails.
    fn code(&self, vcpu: u32, place: u32) -> u32 {
        (vcpu + 1) * self.per_vcpu() + place
    }

    /// vCPU and place of the node that `code` names.
    fn named(&self, code: u32) -> Option<(u32, u32)> {
        let place = code.checked_rem(self.per_vcpu())?;
        let vcpu = (code / self.per_vcpu()).checked_sub(1)?;
        self.node(vcpu, place, 0).map(|_| (vcpu, place))
    }

    fn links(&self) -> HashMap<u32, u32> {
        let mut links = HashMap::new();
        for vcpu in 0..self.memory.vcpus() {
            for place in (0..self.per_vcpu()).filter(|&place| self.is_in_use(vcpu, place)) {
                let link = self.node(vcpu, place, self.said(|it| &it.next));
                match link.and_then(|link| read_u32(self.memory, link)) {
                    None | Some(0) => {}
                    Some(next) => _ = links.insert(next, self.code(vcpu, place)),
                }
            }
        }
        links
    }

    /// Code of the last node in the queue of a lock whose first word is `word`: `None` where the word does not tell, or the queue is empty.
    fn last(&self, word: u32) -> Option<u32> {
        let code = match self.format {
            WORD_QSPINLOCK => word >> 16,
            WORD_QSPINLOCK_WHOLE => word >> 9,
            WORD_MCS => word,
            WORD_OWNER_YIELD => {
                // Its tail names the vCPU alone, which waits at its deepest level.
                let vcpu = (word >> 17).checked_sub(1)?;
                let depth = (0..self.per_vcpu()).take_while(|&place| self.is_in_use(vcpu, place)).count();
                self.code(vcpu, (depth as u32).saturating_sub(1))
            }
            _ => return None,
        };
        (code != 0).then_some(code)
    }

    /// The queue of `lock`. `is_first` says which vCPUs say that they are first in its queue, or inside.
    pub(super) fn queue(&self, lock: u32, is_first: impl Fn(u32) -> bool) -> Option<Queue> {
        let (_, bytes) = self.read(lock)?;
        self.queue_of(word::halves(bytes)[0], is_first)
    }

    /// As [`Self::queue`], of the lock whose first word is `word`.
    fn queue_of(&self, word: u32, is_first: impl Fn(u32) -> bool) -> Option<Queue> {
        let mut code = self.last(word).filter(|_| self.has_nodes())?;
        let links = self.links.get_or_init(|| self.links());
        let (mut queue, mut seen) = (Queue::default(), Vec::new());
        while let Some((vcpu, place)) = self.named(code)
            && !seen.contains(&code)
        {
            seen.push(code);
            queue.vcpus.push(vcpu);
            let locked = self.node(vcpu, place, self.said(|it| &it.locked));
            let made_first =
                locked.and_then(|locked| self.memory.read(locked, 1)).is_some_and(|byte| byte[0] != 0);
            let before = links.get(&code);
            queue.from_head = made_first || before.is_none() && is_first(vcpu);
            match before {
                Some(&before) if !made_first => code = before,
                _ => break,
            }
        }
        queue.vcpus.reverse();
        Some(queue)
    }

    /// Returns the vCPUs registered as asleep; `None` where the lock's kind has no such register.
    pub(super) fn census(&self) -> Option<Census> {
        match self.format {
            _ if !self.has_nodes() => None,
            WORD_QSPINLOCK | WORD_QSPINLOCK_WHOLE => {
                let table = self.memory.control().queues.table.load(Ordering::Relaxed);
                let capacity = self.said(|it| &it.table_entries).min(MOST_ENTRIES);
                let entry = |number: u32| {
                    let (address, code) = self.registered(table.checked_add(u64::from(number) * 16)?)?;
                    Some(self.entry(address, self.named(code).map(|(vcpu, _)| vcpu), None))
                };
                Some(Census { capacity, entries: (0..capacity).filter_map(entry).collect() })
            }
            WORD_PV_TICKET => {
                let (vcpus, per_vcpu) = (self.memory.vcpus(), self.per_vcpu());
                let slots = (0..vcpus).flat_map(|vcpu| (0..per_vcpu).map(move |slot| (vcpu, slot)));
                let entry = |(vcpu, slot)| {
                    let (address, ticket) = self.registered(self.node(vcpu, slot, 0)?)?;
                    Some(self.entry(address, Some(vcpu), Some(ticket)))
                };
                Some(Census { capacity: vcpus * per_vcpu, entries: slots.filter_map(entry).collect() })
            }
            _ => None,
        }
    }

    fn entry(&self, address: u64, vcpu: Option<u32>, ticket: Option<u32>) -> Registered {
        Registered { lock: self.at(address), address, vcpu, ticket }
    }

    /// Reads a registration: the lock's address and the number next to it; `None` for an empty entry.
    fn registered(&self, entry: u64) -> Option<(u64, u32)> {
        let lock = self.memory.read(entry, 8)?;
        let lock = u64::from_le_bytes(lock.try_into().ok()?);
        (lock != 0).then(|| Some((lock, read_u32(self.memory, entry.checked_add(8)?)?)))?
    }
}

fn read_u32(memory: &Memory, address: u64) -> Option<u32> {
    memory.read(address, 4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
}

/// The first trace in `locks` of a guest whose vCPUs have all left, in words. `None`: there is none, or the guest does not say what its
/// locks look like.
pub(crate) fn left_behind(memory: &Memory, locks: u32) -> Option<String> {
    let of_run = Locks::new(memory, locks)?;
    let is_taken = |lock| {
        let (address, bytes) = of_run.read(lock)?;
        let (word, is_at_rest) = word::decode(address, bytes, of_run.format)?;
        (!is_at_rest).then(|| format!("lock {lock} is {}", word.meaning))
    };
    let registered = || {
        let entry = of_run.census()?.entries.into_iter().next()?;
        let vcpu = entry.vcpu.map_or("no vCPU".into(), |vcpu| format!("vCPU {vcpu}"));
        let lock = entry.lock.map_or("no lock".into(), |lock| format!("lock {lock}"));
        Some(format!("{vcpu} is registered as the sleeper of {lock}"))
    };
    (0..locks).find_map(is_taken).or_else(registered)
}

/// Whether the head of the queue of `lock` has forbidden to steal it, as far as the guest says what its locks look like.
pub(crate) fn forbids_stealing(memory: &Memory, lock: u32, locks: u32) -> bool {
    Locks::new(memory, locks).is_some_and(|of_run| {
        let read = of_run.read(lock);
        read.is_some_and(|(_, bytes)| word::forbids_stealing(bytes, of_run.format))
    })
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed {
    use haltkick_fuzzing::{Script, Target};

    use super::*;

    pub(crate) const TARGET: Target = Target { name: "explain", most_bytes: 512, seeds: Vec::new, execute };

    const IMAGE: u64 = 0x40_0000;
    const IMAGE_BYTES: u64 = 0x3000;
    const VCPUS: u32 = 4;
    const LOCKS: u32 = 3;

    thread_local! {
        static MEMORY: Memory = Memory::new(IMAGE + IMAGE_BYTES, VCPUS, 0, 0).expect("a small guest's memory");
    }

    /// Draws an address that the guest may state: in its image, at its end, or anywhere.
    fn address(script: &mut Script<'_>) -> u64 {
        match script.byte() % 4 {
            0 => script.number(),
            1 => (IMAGE + IMAGE_BYTES).wrapping_sub(script.number()),
            _ => IMAGE + script.number() % (IMAGE_BYTES / 4) * 4,
        }
    }

    /// Writes anything into the description of locks and nodes, and into these. All queues must end, and only existing vCPUs be named.
    fn execute(bytes: &[u8]) {
        let mut script = Script::new(bytes);
        MEMORY.with(|memory| {
            let of_locks = [(); 2].map(|()| script.number() as u32);
            let places = [(); 4].map(|()| address(&mut script));
            describe(memory, of_locks, places, [(); 6].map(|()| script.number() as u32));
            memory.write(IMAGE, &[0; IMAGE_BYTES as usize]);
            let words: Vec<u64> = (0..LOCKS).map(|_| script.number()).collect();
            while !script.is_over() {
                let at = IMAGE + script.number() % (IMAGE_BYTES / 4 - 1) * 4;
                memory.write(at, &(script.number() as u32).to_le_bytes());
            }
            if let Some(locks) = Locks::new(memory, LOCKS) {
                look(&locks, &words);
            }
        });
    }

    /// Describes locks and nodes: the locks' format and stride; where locks, nodes, their use and the table are; and of nodes the lengths,
    /// the number, the places of their fields, and the table's length.
    pub(super) fn describe(
        memory: &Memory,
        [format, stride]: [u32; 2],
        places: [u64; 4],
        of_nodes: [u32; 6],
    ) {
        let (control, queues) = (memory.control(), &memory.control().queues);
        // Relaxed: one thread.
        control.lock_word.store(format, Ordering::Relaxed);
        control.lock_stride.store(stride, Ordering::Relaxed);
        let fields = [&control.locks, &queues.nodes, &queues.in_use, &queues.table];
        fields.iter().zip(places).for_each(|(field, place)| field.store(place, Ordering::Relaxed));
        let fields = [
            &queues.cpu_bytes,
            &queues.node_bytes,
            &queues.nodes_per_cpu,
            &queues.next,
            &queues.locked,
            &queues.table_entries,
        ];
        fields.iter().zip(of_nodes).for_each(|(field, number)| field.store(number, Ordering::Relaxed));
    }

    fn look(locks: &Locks<'_>, words: &[u64]) {
        for (lock, word) in (0..LOCKS).zip(words) {
            let bytes = locks.read(lock).map_or(word.to_le_bytes(), |(_, bytes)| bytes);
            _ = word::decode(0, bytes, locks.format);
            for word in [*word as u32, word::halves(bytes)[0]] {
                let queue = locks.queue_of(word, |vcpu| vcpu == 1);
                let there_are = |vcpus: &[u32]| vcpus.iter().all(|vcpu| *vcpu < VCPUS);
                assert!(queue.is_none_or(|queue| there_are(&queue.vcpus)), "a vCPU that is not there queues");
            }
        }
        let census = locks.census();
        for entry in census.into_iter().flat_map(|census| census.entries) {
            assert!(entry.vcpu.is_none_or(|vcpu| vcpu < VCPUS) && entry.lock.is_none_or(|lock| lock < LOCKS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fuzzed::describe;
    use super::*;

    const IMAGE: u64 = 0x40_0000;
    const NODES: u64 = IMAGE;
    const IN_USE: u64 = IMAGE + 64;
    const TABLE: u64 = IMAGE + 0x1000;
    const LOCK: u64 = IMAGE + 0x2000;
    const VCPUS: u32 = 4;

    /// Four vCPUs with four nodes of 16 bytes each and a table of four entries, as a qspinlock has them.
    fn memory() -> Memory {
        let memory = Memory::new(IMAGE + 0x3000, VCPUS, 0, 0).expect("memory for a small guest");
        describe(&memory, [WORD_QSPINLOCK, 128], [LOCK, NODES, IN_USE, TABLE], [128, 16, 4, 0, 4, 4]);
        memory
    }

    fn code(vcpu: u32) -> u32 {
        (vcpu + 1) * 4
    }

    /// `vcpu` waits, with `next` behind it.
    fn waits(memory: &Memory, vcpu: u32, next: u32, locked: u32) {
        let at = u64::from(vcpu) * 128;
        memory.write(IN_USE + at, &1_u32.to_le_bytes());
        memory.write(NODES + at, &next.to_le_bytes());
        memory.write(NODES + at + 4, &locked.to_le_bytes());
    }

    fn queue(memory: &Memory, tail: u32, first: Option<u32>) -> Option<Queue> {
        Locks::new(memory, 2)?.queue_of(tail << 16 | 1, |vcpu| Some(vcpu) == first)
    }

    fn order(vcpus: &[u32], from_head: bool) -> Option<Queue> {
        Some(Queue { vcpus: vcpus.to_vec(), from_head })
    }

    #[test]
    fn a_queue_is_followed_as_far_as_its_nodes_are_linked() {
        let (linked, alone, circle) =
            ([(2, code(0), 1), (0, code(3), 0), (3, 0, 0)], [(2, 0, 0)], [(0, code(1), 0), (1, code(0), 0)]);
        for (waiters, tail, first, expected) in [
            (&linked[..], code(3), None, order(&[2, 0, 3], true)),
            (&linked, 0, None, None),
            // It may be the head, or not have linked up yet.
            (&alone, code(2), None, order(&[2], false)),
            (&alone, code(2), Some(2), order(&[2], true)),
            (&circle, code(1), None, order(&[0, 1], false)),
            // Codes that match no vCPU.
            (&circle, code(VCPUS), None, order(&[], false)),
            (&circle, 3, None, order(&[], false)),
        ] {
            let memory = memory();
            // vCPU 1 was in the queue once: unless it waits its node is free, whatever still stands there.
            memory.write(NODES + 128, &code(2).to_le_bytes());
            waiters.iter().for_each(|&(vcpu, next, locked)| waits(&memory, vcpu, next, locked));
            assert_eq!(queue(&memory, tail, first), expected, "{waiters:?}, {tail}, {first:?}");
        }
        // Nodes beyond the memory and beyond all addresses belong to no vCPU.
        let memory = memory();
        for address in [memory.size(), u64::MAX] {
            memory.control().queues.nodes.store(address, Ordering::Relaxed);
            memory.control().queues.in_use.store(address, Ordering::Relaxed);
            assert_eq!(queue(&memory, code(1), None).map(|queue| queue.from_head), Some(false));
        }
    }

    #[test]
    fn the_census_names_locks_and_vcpus_or_says_that_there_are_none() {
        let memory = memory();
        let entries = [(LOCK + 128, code(2)), (LOCK + 1, code(0)), (LOCK, code(VCPUS))];
        for (entry, (lock, node)) in (1..).zip(entries) {
            memory.write(TABLE + 16 * entry, &lock.to_le_bytes());
            memory.write(TABLE + 16 * entry + 8, &node.to_le_bytes());
        }
        let locks = Locks::new(&memory, 2).expect("told");
        let census = locks.census().expect("a qspinlock has a table");
        let found: Vec<_> = census.entries.iter().map(|entry| (entry.lock, entry.vcpu)).collect();
        assert_eq!((census.capacity, found), (4, vec![(Some(1), Some(2)), (None, Some(0)), (Some(0), None)]));
        memory.control().queues.table_entries.store(u32::MAX, Ordering::Relaxed);
        memory.control().queues.table.store(u64::MAX - 64, Ordering::Relaxed);
        let census = locks.census().expect("a table beyond all addresses");
        assert_eq!((census.capacity, census.entries), (MOST_ENTRIES, vec![]));
    }

    #[test]
    fn a_taken_lock_and_a_registered_sleeper_are_left_behind() {
        let silent = Memory::new(IMAGE + 0x3000, VCPUS, 0, 0).expect("memory for a small guest");
        assert_eq!(left_behind(&silent, 2), None, "the guest does not say where its locks are");
        let memory = memory();
        assert_eq!(left_behind(&memory, 2), None);
        // The pending bit of the second lock.
        memory.write(LOCK + 128, &0x100_u32.to_le_bytes());
        assert_eq!(left_behind(&memory, 2).as_deref(), Some("lock 1 is free; pending; no queue"));
        assert_eq!(left_behind(&memory, 1), None, "the run has one lock");
        // vCPU 2 as the sleeper of the first lock.
        memory.write(TABLE, &LOCK.to_le_bytes());
        memory.write(TABLE + 8, &12_u32.to_le_bytes());
        let sleeper = "vCPU 2 is registered as the sleeper of lock 0";
        assert_eq!(left_behind(&memory, 1).as_deref(), Some(sleeper));
    }
}
