//! Interrupts that come anywhere: one vCPU sends them to another, whose next instruction is a call of [`taken`].
//!
//! Interrupts arrive as NMIs (see `exceptions`), since the VMM can send those to any vCPU, however it was put
//! to sleep and whether KVM interprets the ring or not. This module makes interrupts of them. A vCPU may hold
//! them off, as it does while it looks whether to sleep and then sleeps, and one that comes meanwhile is taken
//! later. Otherwise a handler that sleeps could use up the kick that ends the sleep which it has interrupted
//! (T11).
//!
//! A vCPU that sleeps does not wake up for an interrupt. It takes it when it is kicked.
#![expect(unsafe_code, reason = "a function pointer that lies in an atomic")]

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, compiler_fence};

use haltkick_hypercalls::{MAX_VCPUS, STALE_INTERRUPT};
use haltkick_locks::CachePadded;

use crate::cpu::percpu::{self, cpu};
use crate::cpu::time::now;

/// Handles an interrupt that was sent at this time.
pub(crate) type Handler = fn(u64);

/// One vCPU's. Relaxed accesses suffice: but for `sent` only the vCPU itself makes them, and compiler fences keep those of the
/// interrupted code and of the handler in order.
struct Line {
    /// It takes interrupts now. Not before its workload says so.
    takes: AtomicBool,
    /// One has come and was not taken.
    pending: AtomicBool,
    /// When the first of those was sent that have not been taken; 0: there are none.
    sent: AtomicU64,
}

static LINES: [CachePadded<Line>; MAX_VCPUS] = [const {
    CachePadded::new(Line {
        takes: AtomicBool::new(false),
        pending: AtomicBool::new(false),
        sent: AtomicU64::new(0),
    })
}; MAX_VCPUS];

/// Every NMI is an interrupt.
static TAKES_ALL: AtomicBool = AtomicBool::new(false);

static HANDLER: AtomicPtr<()> = AtomicPtr::new((nobody as Handler) as *mut ());

fn nobody(_: u64) {}

/// From now on the calling vCPU takes interrupts. Every vCPU calls this with the same handler.
pub(crate) fn take_by(handler: Handler) {
    // Relaxed: this vCPU's own interrupts see its own store, which equals everybody else's.
    HANDLER.store(handler as *mut (), Ordering::Relaxed);
    resume();
}

/// [`take_by`] with every NMI an interrupt, also one that no vCPU has sent.
pub(crate) fn take_all_by(handler: Handler) {
    TAKES_ALL.store(true, Ordering::Relaxed);
    expect_one();
    take_by(handler);
}

/// The next NMI is an interrupt: what the sender says elsewhere.
fn expect_one() {
    percpu::this().invalidation.stale.fetch_or(STALE_INTERRUPT, Ordering::SeqCst);
}

/// Stops taking interrupts for good.
pub(crate) fn take_none() {
    LINES[cpu()].takes.store(false, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// Does `body` without interruption.
#[inline(always)]
pub(crate) fn held_off<R>(body: impl FnOnce() -> R) -> R {
    if !LINES[cpu()].takes.load(Ordering::Relaxed) {
        return body();
    }
    take_none();
    let result = body();
    resume();
    result
}

/// vCPU `cpu` is about to be interrupted, by [`mmu::interrupt`](super::mmu::interrupt).
pub(super) fn sending(cpu: usize) {
    // Relaxed: what counts is the time, and the interrupt comes after it. Fails if another one has not been taken yet.
    let _ = LINES[cpu].sent.compare_exchange(0, now(), Ordering::Relaxed, Ordering::Relaxed);
}

/// Takes an interrupt; the interrupted code calls it without knowing.
pub(super) extern "C" fn taken() {
    let line = &LINES[cpu()];
    if TAKES_ALL.load(Ordering::Relaxed) {
        line.sent.store(now(), Ordering::Relaxed);
        expect_one();
    }
    line.pending.store(true, Ordering::Relaxed);
    if line.takes.load(Ordering::Relaxed) {
        take_none();
        resume();
    }
}

/// Takes interrupts again, those first that have come meanwhile. The handler is not interrupted.
fn resume() {
    let line = &LINES[cpu()];
    // SAFETY: only `Handler`s are ever stored.
    let handler: Handler = unsafe { core::mem::transmute(HANDLER.load(Ordering::Relaxed)) };
    loop {
        while line.pending.load(Ordering::Relaxed) {
            line.pending.store(false, Ordering::Relaxed);
            // One that is sent from here on is another one. What was sent before the last one was taken is one with it.
            let sent = line.sent.swap(0, Ordering::Relaxed);
            if sent != 0 {
                handler(sent);
            }
        }
        compiler_fence(Ordering::SeqCst);
        line.takes.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // One that came between the two is taken here; one that comes later, by itself.
        if !line.pending.load(Ordering::Relaxed) {
            return;
        }
        take_none();
    }
}
