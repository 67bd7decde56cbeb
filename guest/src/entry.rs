//! From the first instruction of a vCPU to its workload.
#![expect(unsafe_code, reason = "the entry point is called by the VMM, with pointers that it vouches for")]

use core::sync::atomic::Ordering;

use haltkick_hypercalls::{BOOT_PARAVIRT, BootBlock};

use crate::{hypercall, percpu, registry, time};

/// Entry point of every vCPU: RDI holds the boot block, RSI the vCPU's index, RSP a stack of its own aligned as
/// after a call (System V ABI), GS base the vCPU's area.
///
/// # Safety
/// Called by the VMM only, with exactly that.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.haltkick_start")]
unsafe extern "C" fn haltkick_start(boot: *const BootBlock, cpu: u32) -> ! {
    // SAFETY: the VMM passes the boot block's address and never changes the block.
    unsafe { percpu::init(boot) };
    if cpu == 0 {
        boot_vcpu_only();
    }
    let boot = percpu::boot();
    let code = &registry::CODE[boot.lock as usize];
    let form = if boot.flags & BOOT_PARAVIRT != 0 { &code.paravirt } else { &code.native };
    let workload =
        form.as_ref().expect("the VMM checked that the lock has this form")[boot.workload as usize];
    if cpu == 0 {
        percpu::control().workload_tsc.store(time::now(), Ordering::Relaxed);
    }
    percpu::control().started.fetch_add(1, Ordering::Relaxed);
    workload();
    hypercall::exit()
}

/// What vCPU 0 does before any other vCPU runs.
fn boot_vcpu_only() {
    let boot = percpu::boot();
    let rate = if boot.work_rate == 0 { time::measure_work_rate() } else { boot.work_rate };
    // Relaxed: the hypercall lies between this store and the first instruction of every other vCPU.
    percpu::control().work_rate.store(rate, Ordering::Relaxed);
    hypercall::booted();
}
