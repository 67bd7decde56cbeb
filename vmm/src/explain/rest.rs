//! Traces of vCPUs in locks that all of them have left: a lock that still looks taken, and sleepers that are still registered.

use super::queues::{Locks, Nodes};
use super::word;
use crate::guest::memory::Memory;

/// The first trace in `locks` of a guest whose vCPUs have all left, in words. `None`: there is none, or the guest does not say what its
/// locks look like.
pub(crate) fn left_behind(memory: &Memory, locks: u32) -> Option<String> {
    let of_run = Locks::new(memory, locks)?;
    let nodes = Nodes::new(memory, of_run);
    let is_taken = |lock| {
        let address = of_run.address(lock)?;
        let bytes = <[u8; 8]>::try_from(memory.read(address, 8)?).ok()?;
        let word = word::decode(address, bytes, of_run.format)?;
        (!word::is_at_rest(bytes, of_run.format)).then(|| format!("lock {lock} is {}", word.meaning))
    };
    let registered = || {
        let entry = nodes.as_ref()?.census()?.entries.into_iter().next()?;
        let vcpu = entry.vcpu.map_or("no vCPU".into(), |vcpu| format!("vCPU {vcpu}"));
        let lock = entry.lock.map_or("no lock".into(), |lock| format!("lock {lock}"));
        Some(format!("{vcpu} is registered as the sleeper of {lock}"))
    };
    (0..locks).find_map(is_taken).or_else(registered)
}

/// Whether the head of the queue of `lock` has forbidden to steal it, as far as the guest says what its locks look like.
pub(crate) fn forbids_stealing(memory: &Memory, lock: u32, locks: u32) -> bool {
    let bytes = |of_run: &Locks| <[u8; 8]>::try_from(memory.read(of_run.address(lock)?, 8)?).ok();
    let of_run = Locks::new(memory, locks);
    of_run.is_some_and(|it| bytes(&it).is_some_and(|bytes| word::forbids_stealing(bytes, it.format)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use haltkick_hypercalls::WORD_QSPINLOCK;

    use super::*;

    #[test]
    fn a_taken_lock_and_a_registered_sleeper_are_left_behind() {
        const IMAGE: u64 = 0x40_0000;
        const TABLE: u64 = IMAGE + 0x1000;
        const LOCK: u64 = IMAGE + 0x2000;
        let memory = Memory::new(IMAGE + 0x3000, 4, 0, 0).expect("memory for a small guest");
        assert_eq!(left_behind(&memory, 2), None, "the guest does not say where its locks are");
        let (control, queues) = (memory.control(), &memory.control().queues);
        control.locks.store(LOCK, Ordering::Relaxed);
        control.lock_stride.store(128, Ordering::Relaxed);
        control.lock_word.store(WORD_QSPINLOCK, Ordering::Relaxed);
        queues.nodes.store(IMAGE, Ordering::Relaxed);
        queues.cpu_bytes.store(128, Ordering::Relaxed);
        queues.node_bytes.store(16, Ordering::Relaxed);
        queues.nodes_per_cpu.store(4, Ordering::Relaxed);
        queues.table.store(TABLE, Ordering::Relaxed);
        queues.table_entries.store(4, Ordering::Relaxed);
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
