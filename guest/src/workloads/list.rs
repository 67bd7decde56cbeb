//! A linked list under a lock, walked from its head to its end: a section whose length is that of a chain of cache misses.
//!
//! Each lock (`--locks`) has a list of `--footprint` nodes (64 unless given), each in a line of its own and in an order that no
//! prefetcher knows. A section walks all of it and writes to its `--dirty` last nodes; with `--read-share` it only walks.
//!
//! `list-refcount` walks such a list without a lock: each node has a count, which a walk increments by compare-and-swap before it
//! leaves the node in front, and decrements when it has gone on. A walk is one operation.

use core::hint::black_box;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use haltkick_grants::Memory as _;

use crate::cpu::percpu::{add, boot, this};
use crate::cpu::time::work;
use crate::lock::measure::end_round;
use crate::lock::registry::workload;
use crate::work::arena::{self, ARENA};
use crate::work::choice::{Choices, Shares};
use crate::work::random::Random;

workload! {
    "110" "list", "walk a linked list (--footprint nodes, --dirty of them written) under its lock (--locks, --read-share)",
        [NOTES_SECTIONS NOTES_WAITS CHECKS_AT_REST IS_SHAPED],
        ["wait", "hold", "unlock", "read-wait", "read-hold"] => run;
    "115" "list-refcount", "walk a linked list (--footprint nodes), holding a reference count of each node instead of a lock",
        [TAKES_NO_LOCK CHECKS_AT_REST IS_SHAPED], [] => count_references;
}

/// Nodes of a list, unless the run asks for others.
const NODES: u32 = 64;
/// The end of a list.
const NIL: u32 = u32::MAX;

#[repr(align(64))]
struct Node {
    next: AtomicU32,
    value: AtomicU64,
}

struct Lists {
    nodes: &'static [Node],
    each: usize,
}

impl Lists {
    /// Each list's nodes lie together, and are linked in an order drawn by lot (Sattolo's algorithm: one cycle).
    fn new() -> Self {
        let each = if boot().shape.footprint_lines > 0 { boot().shape.footprint_lines } else { NODES };
        let lists = boot().lock_count;
        let node = |index| Node { next: AtomicU32::new(index as u32), value: AtomicU64::new(0) };
        let nodes = ARENA.slice((lists * each) as usize, node);
        let mut random = Random::new(boot().seed, usize::MAX - 1);
        for list in nodes.chunks_exact(each as usize) {
            for last in (1..list.len()).rev() {
                let other = random.below(last as u64) as usize;
                // Relaxed, here and below: no other vCPU looks yet; later the list's lock orders it.
                let next = list[last].next.load(Ordering::Relaxed);
                list[last].next.store(list[other].next.load(Ordering::Relaxed), Ordering::Relaxed);
                list[other].next.store(next, Ordering::Relaxed);
            }
        }
        for (index, first) in nodes.iter().enumerate().step_by(each as usize) {
            // The node that leads back to the first is the last.
            let last = nodes[index..][..each as usize]
                .iter()
                .find(|node| node.next.load(Ordering::Relaxed) == index as u32)
                .unwrap_or(first);
            last.next.store(NIL, Ordering::Relaxed);
        }
        Self { nodes, each: each as usize }
    }

    /// Walks list `list`, and holds a reference to a node while it looks where the next one is.
    #[inline(never)]
    fn walk_by_references(&self, list: usize) {
        let (mut at, mut held) = ((list * self.each) as u32, None::<&Node>);
        while at != NIL {
            let node = &self.nodes[at as usize];
            loop {
                // Acquire: pairs with the release of a vCPU that would free the node.
                let references = node.value.load(Ordering::Relaxed);
                let taken = node.value.compare_exchange(
                    references,
                    references + 1,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                );
                if taken.is_ok() {
                    break;
                }
            }
            // Release: what was read of the node has been read before it could be freed.
            held.replace(node).map(|held| held.value.fetch_sub(1, Ordering::Release));
            at = node.next.load(Ordering::Relaxed);
        }
        held.map(|held| held.value.fetch_sub(1, Ordering::Release));
    }

    /// Walks list `list`, and writes to all nodes from number `from` on.
    #[inline(never)]
    fn walk(&self, list: usize, from: usize) {
        let (mut at, mut step) = ((list * self.each) as u32, 0);
        while at != NIL {
            let node = &self.nodes[at as usize];
            if step >= from {
                add(&node.value, 1);
            }
            step += 1;
            at = node.next.load(Ordering::Relaxed);
        }
        assert!(black_box(step) == self.each, "a list of {} nodes has {step}", self.each);
    }
}

fn run() {
    let lists = arena::shared(Lists::new);
    let shares = Shares::of_this_vcpu();
    let clean = lists.each.saturating_sub(boot().shape.dirty_lines as usize);
    Choices::of_this_vcpu().rounds(|choices| {
        let index = choices.lock();
        let read = |hold| {
            lists.walk(index, lists.each);
            work(hold);
            true
        };
        let write = |hold| {
            lists.walk(index, clean);
            work(hold);
        };
        shares.round(choices, index, None, read, write)
    });
    arena::come_to_rest(|| ());
}

fn count_references() {
    let lists = arena::shared(Lists::new);
    Choices::of_this_vcpu().rounds(|choices| {
        lists.walk_by_references(choices.lock());
        end_round(|| add(&this().results.acquisitions, 1))
    });
    arena::come_to_rest(|| {
        let held = lists.nodes.iter().filter(|node| node.value.load(Ordering::Relaxed) != 0).count();
        assert!(held == 0, "{held} nodes have references that are held by no walk");
    });
}
