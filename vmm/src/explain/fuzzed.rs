//! Queues, sleepers and locks of a guest that has written anything.

use std::sync::atomic::Ordering;

use haltkick_fuzzing::{Script, Target, no_seeds};

use super::queues::{Locks, Nodes};
use super::word;
use crate::guest::memory::Memory;

pub(crate) const TARGET: Target = Target { name: "explain", most_bytes: 512, seeds: no_seeds, execute };

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
        describe(memory, &mut script);
        memory.write(IMAGE, &[0; IMAGE_BYTES as usize]);
        let words: Vec<u64> = (0..LOCKS).map(|_| script.number()).collect();
        while !script.is_over() {
            let at = IMAGE + script.number() % (IMAGE_BYTES / 4 - 1) * 4;
            memory.write(at, &(script.number() as u32).to_le_bytes());
        }
        if let Some(locks) = Locks::new(memory, LOCKS) {
            look(memory, locks, &words);
        }
    });
}

fn describe(memory: &Memory, script: &mut Script<'_>) {
    let (control, queues) = (memory.control(), &memory.control().queues);
    // Relaxed: one thread.
    control.lock_word.store(script.number() as u32, Ordering::Relaxed);
    control.locks.store(address(script), Ordering::Relaxed);
    control.lock_stride.store(script.number() as u32, Ordering::Relaxed);
    for field in [&queues.nodes, &queues.in_use, &queues.table] {
        field.store(address(script), Ordering::Relaxed);
    }
    for field in [
        &queues.cpu_bytes,
        &queues.node_bytes,
        &queues.nodes_per_cpu,
        &queues.next,
        &queues.locked,
        &queues.table_entries,
    ] {
        field.store(script.number() as u32, Ordering::Relaxed);
    }
}

fn look(memory: &Memory, locks: Locks, words: &[u64]) {
    let nodes = Nodes::new(memory, locks);
    let links = nodes.as_ref().map(Nodes::links);
    for (lock, word) in (0..LOCKS).zip(words) {
        let there = locks.address(lock).and_then(|address| memory.read(address, 8));
        let bytes = there.map_or(word.to_le_bytes(), |bytes| bytes.try_into().expect("eight bytes"));
        _ = word::decode(0, bytes, locks.format);
        for word in [*word as u32, u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])] {
            let queue = nodes.as_ref().zip(links.as_ref());
            let queue = queue.and_then(|(nodes, links)| nodes.queue(links, word, |vcpu| vcpu == 1));
            let there_are = |vcpus: &[u32]| vcpus.iter().all(|vcpu| *vcpu < VCPUS);
            assert!(queue.is_none_or(|queue| there_are(&queue.vcpus)), "a vCPU that is not there queues");
        }
    }
    let census = nodes.and_then(|nodes| nodes.census());
    for entry in census.into_iter().flat_map(|census| census.entries) {
        assert!(entry.vcpu.is_none_or(|vcpu| vcpu < VCPUS) && entry.lock.is_none_or(|lock| lock < LOCKS));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn fuzz_explain_whatever_a_guest_says_of_its_locks_all_queues_end() {
        super::TARGET.run();
    }
}
