//! The calling vCPU's own data, found through GS; and the shared data of all, found through the boot block.
#![expect(unsafe_code, reason = "turns addresses that the VMM promised into references, in this one place")]

use core::arch::asm;
use core::ptr::null;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use haltkick_hypercalls::{
    BootBlock, CPU_OFFSET, Control, ENTRIES_ROW_BYTES, Oracle, SELF_OFFSET, StealTime, VcpuArea,
};

/// Set by each vCPU at entry, always to the same value; by the boot CPU alone where it starts the others.
static BOOT: AtomicPtr<BootBlock> = AtomicPtr::new(null::<BootBlock>().cast_mut());

/// Remembers the boot block.
///
/// # Safety
/// `boot` must be the address that the VMM passed at entry: a [`BootBlock`] that never changes.
pub(crate) unsafe fn init(boot: *const BootBlock) {
    // Relaxed: every vCPU stores the same value before it loads it, or is started by an interrupt after the store.
    BOOT.store(boot.cast_mut(), Ordering::Relaxed);
}

/// The settings of this run.
#[inline(always)]
pub(crate) fn boot() -> &'static BootBlock {
    // SAFETY: `init` ran first, on this vCPU or on the one that started it, and its caller vouched for the pointer.
    unsafe { &*BOOT.load(Ordering::Relaxed) }
}

/// Index of the calling vCPU.
#[inline(always)]
pub(crate) fn cpu() -> usize {
    let cpu: u32;
    // SAFETY: GS base is the address of this vCPU's area (contract of the entry); the field never changes.
    unsafe {
        asm!("mov {:e}, gs:[{}]", out(reg) cpu, const CPU_OFFSET, options(nostack, preserves_flags, pure, readonly));
    }
    cpu as usize
}

/// The calling vCPU's area.
#[inline(always)]
pub(crate) fn this() -> &'static VcpuArea {
    let area: *const VcpuArea;
    // SAFETY: as in `cpu`; `Identity::this` is the address of the area itself, which lives as long as the guest.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg) area, const SELF_OFFSET, options(nostack, preserves_flags, pure, readonly));
        &*area
    }
}

#[inline(always)]
pub(crate) fn area(cpu: usize) -> &'static VcpuArea {
    assert!(cpu < boot().vcpus as usize, "there is no such vCPU");
    // SAFETY: the VMM laid out `vcpus` areas without gaps from `vcpu_areas` on.
    unsafe { &*(boot().vcpu_areas.0 as *const VcpuArea).add(cpu) }
}

/// Whether the host says that vCPU `cpu` lost its pCPU.
#[inline(always)]
pub(crate) fn is_marked(cpu: usize) -> bool {
    // Acquire, both, so that looks at the flag and at what its vCPU does stay in order; free on x86. As a hint it is stale
    // in both directions by the time it is used.
    if area(cpu).steal.preempted.load(Ordering::Acquire) != 0 {
        return true;
    }
    let flags = boot().preempted_flags.0 as *const StealTime;
    // SAFETY: not null: the VMM laid out a line for each of `MAX_VCPUS` vCPUs there.
    !flags.is_null() && unsafe { (*flags.add(cpu)).preempted.load(Ordering::Acquire) != 0 }
}

/// The measuring window.
#[inline(always)]
pub(crate) fn control() -> &'static Control {
    // SAFETY: the VMM laid out a `Control` there.
    unsafe { &*(boot().control.0 as *const Control) }
}

/// The calling vCPU's counters of its sections, one for each lock.
pub(crate) fn entries() -> &'static [AtomicU64] {
    entries_of(cpu() as u32)
}

pub(crate) fn entries_of(cpu: u32) -> &'static [AtomicU64] {
    let locks = boot().lock_count;
    let row = boot().entries.0 + u64::from(cpu) * ENTRIES_ROW_BYTES as u64;
    // SAFETY: the VMM laid out a row of `locks` entries for each vCPU there.
    unsafe { core::slice::from_raw_parts(row as *const AtomicU64, locks as usize) }
}

pub(crate) fn oracles() -> &'static [Oracle] {
    // SAFETY: the VMM laid out `lock_count` oracles there.
    unsafe { core::slice::from_raw_parts(boot().oracles.0 as *const Oracle, boot().lock_count as usize) }
}

pub(crate) fn words<T>(shared: &'static T) -> &'static [AtomicU64] {
    // By its address, not by the reference: that does not allow to write to padding.
    let address = (&raw const *shared).addr();
    // SAFETY: the VMM, or `boot::bare`, has laid out this structure at an address of its own, zeroed, aligned to eight
    // bytes and a multiple of that long. Rust uses it as atomics and padding everywhere; what padding holds is of no matter.
    unsafe { core::slice::from_raw_parts(address as *const AtomicU64, size_of::<T>() / 8) }
}

/// Adds to a counter that only this vCPU writes. No LOCK prefix: the reader may see any earlier value.
#[inline(always)]
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// A vCPU's `preempted` flag at one look, and the number of times that the vCPU had been marked until then.
pub(crate) struct FlagSnapshot {
    generation: u64,
    /// Whether the vCPU was marked.
    pub(crate) is_set: bool,
}

impl FlagSnapshot {
    /// A first look at vCPU `cpu`'s flag.
    pub(crate) fn of(cpu: usize) -> Self {
        // The generation first. A flag that was set after that belongs to a later generation, which `still_holds` then sees.
        let generation = area(cpu).host.generation.load(Ordering::Acquire);
        Self { generation, is_set: is_marked(cpu) }
    }

    /// Whether `cpu`'s flag has not changed since this look.
    pub(crate) fn still_holds(&self, cpu: usize) -> bool {
        // The flag first, the other way round than in `of`: a vCPU that came back and was marked anew between the two loads
        // has moved its generation, which is counted before the flag is set. Acquire keeps the order; partner: the VMM's
        // release of both when it marks a vCPU.
        is_marked(cpu) == self.is_set && area(cpu).host.generation.load(Ordering::Acquire) == self.generation
    }
}
