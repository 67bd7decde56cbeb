//! Copying blocks within a file that all vCPUs share: what the spin queue's false sharing was first seen with
//! (UnixBench's file copy, at 256, 1024 and 4096 bytes).
//!
//! A round reads one block under the read lock (or the lock, if it has no readers) and writes it elsewhere
//! under the lock. Both are counted as one operation. A block holds one value in all of its words and a copy
//! keeps it that way, so that a reader next to a writer is detected by what it reads.

use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::MAX_LOCKS;

use crate::cpu::percpu::{add, cpu};
use crate::cpu::time::work;
use crate::lock::measure::{self, Sections, end_round};
use crate::lock::registry::workload;
use crate::work::choice::Choices;

workload! {
    "040" "copy-256", "copy blocks of 256 bytes within a file: read under the read lock, write under the lock",
        [NOTES_SECTIONS NOTES_WAITS], ["wait", "hold", "unlock"] => run::<{ 256 / 8 }>;
    "050" "copy-1024", "the same with blocks of 1024 bytes",
        [NOTES_SECTIONS NOTES_WAITS], ["wait", "hold", "unlock"] => run::<{ 1024 / 8 }>;
    "060" "copy-4096", "the same with blocks of 4096 bytes; --locks N copies within N files in turn",
        [NOTES_SECTIONS NOTES_WAITS], ["wait", "hold", "unlock"] => run::<{ 4096 / 8 }>;
}

/// Words of a file: four of the largest blocks.
const FILE_WORDS: usize = 4 * 4096 / 8;
const MOST_WORDS: usize = 4096 / 8;

/// A file, guarded by the lock of the same number.
#[repr(align(128))]
struct File {
    /// Writes so far: what an inode's times are.
    written: AtomicU64,
    /// Atomics, since without a lock (`none`) everybody writes at once. Relaxed throughout: the lock orders them.
    words: [AtomicU64; FILE_WORDS],
}

static FILES: [File; MAX_LOCKS as usize] =
    [const { File { written: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; FILE_WORDS] } };
        MAX_LOCKS as usize];

/// Runs the workload on one vCPU, with blocks of `WORDS`. The files are visited in turn. Hold is work in
/// addition to the copy, in the section that writes; the reported times are those of that section.
fn run<const WORDS: usize>() {
    let (sections, mut block) = (Sections::of_this_vcpu(), cpu());
    let mut buffer = [0; MOST_WORDS];
    let buffer = &mut buffer[..WORDS];
    Choices::of_this_vcpu().rounds(|choices| {
        let (index, hold) = (choices.lock(), choices.hold());
        sections.shared(index, || read(&FILES[index], block, buffer));
        block += 1;
        let times = sections.exclusive(index, || {
            write(&FILES[index], block, buffer);
            work(hold);
        });
        end_round(|| measure::count(&times))
    });
}

/// The words of block number `block`, counted round the file.
fn words_of(file: &File, block: usize, words: usize) -> &[AtomicU64] {
    let first = block * words % FILE_WORDS;
    &file.words[first..first + words]
}

/// Reads a block; `false` if it does not hold one value.
#[inline(never)]
fn read(file: &File, block: usize, buffer: &mut [u64]) -> bool {
    let mut differing = 0;
    let words = words_of(file, block, buffer.len());
    let first = words[0].load(Ordering::Relaxed);
    for (to, from) in buffer.iter_mut().zip(words) {
        *to = from.load(Ordering::Relaxed);
        differing |= *to ^ first;
    }
    differing == 0
}

/// Writes a block: what was read, plus one, so that no two blocks need be alike.
#[inline(never)]
fn write(file: &File, block: usize, buffer: &[u64]) {
    add(&file.written, 1);
    for (to, from) in words_of(file, block, buffer.len()).iter().zip(buffer) {
        to.store(from + 1, Ordering::Relaxed);
    }
}
