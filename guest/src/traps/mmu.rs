//! The CPU's side of address translation: CR3, and what the CPU has cached of the page tables.
//!
//! Both need ring 0. A guest in ring 3 gets there by INT3, whose gate is open to it (see `exceptions`); `INT n` would not
//! do, since PVM's emulator lacks it.
#![expect(unsafe_code, reason = "privileged instructions")]

use core::arch::asm;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::{PORT_INVALIDATE, STALE_ALL, STALE_INTERRUPT};

use crate::cpu::percpu;
use crate::monitor::hypercall;
use crate::traps::exceptions::{SERVICE_INVALIDATE_PAGE, SERVICE_LOAD_CR3};
use crate::traps::interrupts;

fn in_ring_0() -> bool {
    let selector: u32;
    // SAFETY: reads a segment register.
    unsafe { asm!("mov {:e}, cs", out(reg) selector, options(nomem, nostack, preserves_flags)) };
    selector & 3 == 0
}

/// Makes the page table at `root` this vCPU's.
///
/// # Safety
/// It must map the kernel as the VMM's own does, and nothing else to the kernel's memory.
pub(crate) unsafe fn load_root(root: u64) {
    if in_ring_0() {
        // SAFETY: the caller's promise.
        unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
    } else {
        // SAFETY: as above; the handler changes no register.
        unsafe { asm!("int3", in("rax") root, in("edx") SERVICE_LOAD_CR3, options(nostack)) };
    }
}

/// Makes this vCPU forget what it has cached of the page at `address`. The store that changed the entry comes first: a
/// compiler barrier lies in the instruction, and x86 serialises here.
pub(crate) fn invalidate_page(address: u64) {
    if in_ring_0() {
        // SAFETY: only costs time.
        unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
    } else {
        // SAFETY: as above; the handler changes no register.
        unsafe { asm!("int3", in("rax") address, in("edx") SERVICE_INVALIDATE_PAGE, options(nostack)) };
    }
}

/// Returns the number of a request to a vCPU, higher than any before.
fn next_ticket() -> u64 {
    static TICKETS: AtomicU64 = AtomicU64::new(0);
    TICKETS.fetch_add(1, Ordering::SeqCst) + 1
}

/// Interrupts vCPU `cpu`, as soon as it is in the guest: see [`interrupts`].
pub(crate) fn interrupt(cpu: usize) {
    interrupts::sending(cpu);
    let invalidation = &percpu::area(cpu).invalidation;
    // First what, then that: as in `invalidate_others`.
    invalidation.stale.fetch_or(STALE_INTERRUPT, Ordering::SeqCst);
    invalidation.requested.fetch_max(next_ticket(), Ordering::SeqCst);
    hypercall::out(PORT_INVALIDATE, 0);
}

/// Makes the other vCPUs of `cpus` drop their cached translation of `page`, or all of them, and waits until
/// none of them can use it. Returns the number of vCPUs that were asked.
///
/// One page is dropped by INVLPG: a reload of CR3 makes shadow paging protect every page table anew, so that the next
/// store to each of them traps.
pub(crate) fn invalidate_others(cpus: impl Iterator<Item = usize> + Clone, page: Option<u64>) -> u64 {
    let this = percpu::cpu();
    let others = cpus.filter(|cpu| *cpu != this);
    let ticket = next_ticket();
    let mut asked = 0;
    for cpu in others.clone() {
        let invalidation = &percpu::area(cpu).invalidation;
        // First what, then that: the NMI comes after both, and one that came too early leaves nothing for this one's.
        let stale = page.unwrap_or(STALE_ALL);
        let merge = |old: u64| {
            let (interrupt, old) = (old & STALE_INTERRUPT, old & !STALE_INTERRUPT);
            Some(interrupt | if old == 0 || old == stale { stale } else { STALE_ALL })
        };
        let _ = invalidation.stale.fetch_update(Ordering::SeqCst, Ordering::SeqCst, merge);
        // Orders the page-table stores before it against the VMM's look at it.
        invalidation.requested.fetch_max(ticket, Ordering::SeqCst);
        asked += 1;
    }
    if asked == 0 {
        return 0;
    }
    hypercall::out(PORT_INVALIDATE, 0);
    for cpu in others {
        let area = percpu::area(cpu);
        // The set may have grown: a vCPU that was not asked has joined since, with nothing cached that is
        // older.
        let was_asked = area.invalidation.requested.load(Ordering::SeqCst) >= ticket;
        while was_asked && area.host.invalidated.load(Ordering::SeqCst) < ticket {
            spin_loop();
        }
    }
    asked
}
