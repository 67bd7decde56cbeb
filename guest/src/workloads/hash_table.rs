//! A hash table with a lock for each bucket (`--locks` of them): what kernels have by the dozen.
//!
//! A round draws a key (`--zipf`: some far more often than others), locks its bucket, walks the chain to it and changes it, or
//! with `--read-share` only looks at it under the read lock. `--hold` is work in addition to that. A key that is not found, or whose
//! value is not whole, is a failure of the lock.
//!
//! `hash-table-global` has a table of a fixed size. Its buckets share the locks: with `--locks 1` one lock guards the whole table.

use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_grants::Memory as _;

use crate::cpu::percpu::boot;
use crate::cpu::time::work;
use crate::lock::registry::workload;
use crate::work::arena::{self, ARENA};
use crate::work::choice::{Choices, MOST_RANKS, Shares, zipf};

workload! {
    "100" "hash-table", "find and change a key of a hash table, under the lock of its bucket (--locks, --zipf, --read-share)",
        [NOTES_SECTIONS NOTES_WAITS CHECKS_AT_REST IS_SHAPED],
        ["wait", "hold", "unlock", "read-wait", "read-hold"] => || run(boot().lock_count as usize);
    "105" "hash-table-global", "the same with 512 buckets that share --locks locks: one for the whole table by default",
        [NOTES_SECTIONS NOTES_WAITS CHECKS_AT_REST IS_SHAPED],
        ["wait", "hold", "unlock", "read-wait", "read-hold"] => || run(GLOBAL_BUCKETS);
}

/// Buckets of a table whose size has nothing to do with its locks.
const GLOBAL_BUCKETS: usize = 512;

/// Keys of each bucket, one after the other in its chain.
const KEYS_PER_BUCKET: usize = 8;

/// A key and its value, which is written twice: a reader next to a writer finds the two apart.
#[repr(align(64))]
struct Node {
    key: u64,
    value: AtomicU64,
    again: AtomicU64,
}

/// The chain of bucket n is every `buckets`-th node from n on.
struct Table {
    nodes: &'static [Node],
    buckets: usize,
}

impl Table {
    fn new(buckets: usize) -> Self {
        let keys = (buckets * KEYS_PER_BUCKET).min(MOST_RANKS);
        let node = |key| Node { key: key as u64, value: AtomicU64::new(0), again: AtomicU64::new(0) };
        Self { nodes: ARENA.slice(keys, node), buckets }
    }

    fn bucket(&self, key: usize) -> usize {
        key % self.buckets
    }

    fn lock(&self, key: usize) -> usize {
        self.bucket(key) % boot().lock_count as usize
    }

    /// Walks the chain, since the place of the key in it is unknown.
    #[inline(never)]
    fn find(&self, key: usize) -> &Node {
        let mut chain = self.nodes.iter().skip(self.bucket(key)).step_by(self.buckets);
        chain.find(|node| node.key == key as u64).expect("every key is in its bucket")
    }
}

fn run(buckets: usize) {
    let table = arena::shared(|| Table::new(buckets));
    let shares = Shares::of_this_vcpu();
    let is_zipf = boot().shape.zipf_hundredths > 0;
    Choices::of_this_vcpu().rounds(|choices| {
        let keys = table.nodes.len();
        let key = if is_zipf {
            zipf(&mut choices.random, keys)
        } else {
            choices.random.below(keys as u64) as usize
        };
        // Relaxed, here and below: the lock of the bucket orders it.
        let read = |hold| {
            let node = table.find(key);
            let value = node.value.load(Ordering::Relaxed);
            work(hold);
            value == node.again.load(Ordering::Relaxed)
        };
        let write = |hold| {
            let node = table.find(key);
            let value = node.value.load(Ordering::Relaxed) + 1;
            node.value.store(value, Ordering::Relaxed);
            work(hold);
            node.again.store(value, Ordering::Relaxed);
        };
        shares.round(choices, table.lock(key), None, read, write)
    });
    arena::come_to_rest(|| {
        let torn = |node: &&Node| node.value.load(Ordering::Relaxed) != node.again.load(Ordering::Relaxed);
        let torn = table.nodes.iter().filter(torn).count();
        assert!(torn == 0 || !crate::lock::calls::excludes(), "{torn} keys have values that are not whole");
    });
}
