//! Copying blocks within a file that all vCPUs share: what the spin queue's false sharing was first seen with
//! (UnixBench's file copy, at 256, 1024 and 4096 bytes).
//!
//! A round reads one block under the read lock (or the lock, if it has no readers) and writes it elsewhere under the
//! lock. Both are counted as one operation. A block holds one value in all of its words and a copy keeps it that way,
//! so that a reader beside a writer is found out by what it reads.

use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN};

use crate::activity;
use crate::histogram::record;
use crate::locks::{GuestLock, INSTANCES};
use crate::oracle;
use crate::percpu::{add, boot, control, cpu, this};
use crate::random::Random;
use crate::time::{iterations, now, work};
use crate::trace::Ring;

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

static FILES: [File; INSTANCES] =
    [const { File { written: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; FILE_WORDS] } };
        INSTANCES];

/// Copies blocks of 256 bytes.
pub(crate) fn blocks_of_256<L: GuestLock>() {
    run::<L, { 256 / 8 }>();
}

/// Copies blocks of 1024 bytes.
pub(crate) fn blocks_of_1024<L: GuestLock>() {
    run::<L, { 1024 / 8 }>();
}

/// Copies blocks of 4096 bytes.
pub(crate) fn blocks_of_4096<L: GuestLock>() {
    run::<L, { 4096 / 8 }>();
}

/// The workload on one vCPU, with blocks of `WORDS`. The files are visited in turn. Hold is work beside the copy, in
/// the section that writes.
fn run<L: GuestLock, const WORDS: usize>() {
    let (hold, think) = (iterations(boot().hold_ns), iterations(boot().think_ns));
    let files = boot().lock_count as usize;
    let (results, activity, window) = (&this().results, &this().activity, &control().window);
    let (mut index, mut block) = (cpu() % files, cpu());
    let mut buffer = [0; MOST_WORDS];
    let buffer = &mut buffer[..WORDS];
    let excludes = L::excludes();
    let trace = Ring::of_this_vcpu();
    work(Random::of_vcpu().below(think + 1));
    loop {
        activity.lock.store(index as u32, Ordering::Relaxed);
        let asked = now();
        activity.since_tsc.store(asked, Ordering::Relaxed);
        let mut had = 0;
        L::read_section(index, || {
            had = trace.now();
            hold_begins(excludes);
            let whole = read(&FILES[index], block, buffer);
            if excludes {
                oracle::reads(index, whole);
            }
        });
        hold_ends(excludes);
        trace.section(index, asked, had, trace.now());

        block += 1;
        let asked = now();
        activity.since_tsc.store(asked, Ordering::Relaxed);
        activity.awaited_since_tsc.store(asked, Ordering::Relaxed);
        let mut had = 0;
        L::section(index, || {
            had = now();
            activity.awaited_since_tsc.store(0, Ordering::Relaxed);
            hold_begins(excludes);
            if excludes {
                oracle::enter(index);
            }
            write(&FILES[index], block, buffer);
            work(hold);
            if excludes {
                oracle::leave(index);
            }
        });
        let left = now();
        hold_ends(excludes);
        trace.section(index, asked, had, left);
        // Relaxed: a vCPU that sees the window change one round late counts one round more or less.
        match window.load(Ordering::Relaxed) {
            WINDOW_OPEN => {
                add(&results.acquisitions, 1);
                record(&results.wait, had - asked);
                record(&results.hold, left - had);
            }
            WINDOW_CLOSED => return,
            _ => {}
        }
        work(think);
        index += 1;
        if index == files {
            index = 0;
        }
    }
}

fn hold_begins(excludes: bool) {
    if excludes {
        activity::section_entered();
    }
}

fn hold_ends(excludes: bool) {
    if excludes {
        activity::section_left();
    }
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
