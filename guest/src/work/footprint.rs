//! Cache lines that belong to a lock, which each section walks and partly writes.
//!
//! With `--embed` the first of them is the line in which the lock itself ends.

use core::hint::black_box;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use haltkick_grants::Memory as _;
use haltkick_hypercalls::ShapeFlags;

use crate::cpu::percpu::{add, boot, cpu};
use crate::lock::{calls, registry};
use crate::work::arena::ARENA;

#[repr(align(64))]
struct Line(AtomicU64);

/// The first line of all. Written by vCPU 0 before any other runs.
static LINES: AtomicPtr<Line> = AtomicPtr::new(core::ptr::null_mut());

/// vCPU 0, before any other vCPU runs: makes the lines. Without a lock each vCPU has its own, since what sections do to
/// each other's lines is not what the lock costs.
pub(crate) fn prepare() {
    let owners = if calls::excludes() { boot().lock_count } else { boot().vcpus };
    let lines = owners as usize * lines_apart();
    if lines > 0 {
        let lines = ARENA.slice(lines, |_| Line(AtomicU64::new(0)));
        // Relaxed: the hypercall that starts the other vCPUs comes later.
        LINES.store(lines.as_ptr().cast_mut(), Ordering::Relaxed);
    }
}

/// Whether one of the lines is the lock's own. Without a lock there is none.
fn is_embedded() -> bool {
    boot().shape.flags.has(ShapeFlags::EMBED) && calls::excludes()
}

/// Lines of each owner that are not the lock's own.
fn lines_apart() -> usize {
    boot().shape.footprint_lines as usize - usize::from(is_embedded())
}

/// The lines of all locks.
pub(crate) struct Footprint {
    lines: &'static [Line],
    each: usize,
    dirty: usize,
    /// Bytes of a lock that shares its line with data, and whether a section writes those.
    embedded: Option<(usize, bool)>,
}

impl Footprint {
    #[expect(unsafe_code, reason = "a slice whose beginning lies in an atomic")]
    pub(crate) fn of_run() -> Self {
        let (each, dirty) = (lines_apart(), boot().shape.dirty_lines as usize);
        let bytes = registry::form_of_run().calls.lock_bytes as usize;
        let embedded = is_embedded().then_some((bytes, dirty > 0));
        let dirty = dirty.saturating_sub(usize::from(embedded.is_some()));
        let owners = if calls::excludes() { boot().lock_count } else { boot().vcpus } as usize;
        let first = LINES.load(Ordering::Relaxed);
        let lines = if first.is_null() {
            &[]
        } else {
            // SAFETY: `prepare` has made `owners * each` there; they live as long as the guest.
            unsafe { core::slice::from_raw_parts(first, owners * each) }
        };
        Self { lines, each, dirty: dirty.min(each), embedded }
    }

    #[inline(always)]
    fn of(&self, lock: usize) -> &'static [Line] {
        let owner = if calls::excludes() { lock } else { cpu() };
        &self.lines[owner * self.each..][..self.each]
    }

    /// Reads each line of lock `lock`.
    #[inline(always)]
    pub(crate) fn walk(&self, lock: usize) {
        if let Some((bytes, _)) = self.embedded {
            // Relaxed, here and below: the lock orders it.
            black_box(calls::beside(lock, bytes).load(Ordering::Relaxed));
        }
        if self.each > 0 {
            read(self.of(lock));
        }
    }

    /// Reads each line of lock `lock`, and writes the first ones.
    #[inline(always)]
    pub(crate) fn walk_and_write(&self, lock: usize) {
        match self.embedded {
            Some((bytes, true)) => add(calls::beside(lock, bytes), 1),
            Some((bytes, false)) => _ = black_box(calls::beside(lock, bytes).load(Ordering::Relaxed)),
            None => {}
        }
        if self.each > 0 {
            let (dirty, clean) = self.of(lock).split_at(self.dirty);
            dirty.iter().for_each(|line| add(&line.0, 1));
            read(clean);
        }
    }
}

#[inline(never)]
fn read(lines: &[Line]) {
    let sum = lines.iter().fold(0, |sum: u64, line| sum.wrapping_add(line.0.load(Ordering::Relaxed)));
    black_box(sum);
}
