//! From the first instruction of a vCPU to its workload.
#![expect(unsafe_code, reason = "the entry point is called by the VMM, with pointers that it vouches for")]

use core::sync::atomic::Ordering;

use haltkick_hypercalls::{BOOT_PARAVIRT, BootBlock, PAIR_AT_SITES, PAIR_COMPILED_IN, PAIR_THROUGH_TABLE};

use crate::calls::{Sites, Unmarked};
use crate::cost::pair_ticks;
use crate::registry::LockForm;
use crate::{halt, hypercall, memory, percpu, registry, time};

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
    run(cpu)
}

/// The calling vCPU, number `cpu`, from its first line of ordinary code to its last.
pub(crate) fn run(cpu: u32) -> ! {
    if halt::is_on() {
        halt::init();
    }
    let boot = percpu::boot();
    let code = &registry::CODE[boot.lock as usize];
    let form = if boot.flags & BOOT_PARAVIRT != 0 { &code.paravirt } else { &code.native };
    let form = form.as_ref().expect("the VMM checked that the lock has this form");
    if cpu == 0 {
        boot_vcpu_only(form);
    }
    let workload = form.workloads[boot.workload as usize];
    // Relaxed: the VMM reads the time after the run, and the count as a hint.
    if percpu::control().started.fetch_add(1, Ordering::Relaxed) == 0 {
        percpu::control().workload_tsc.store(time::now(), Ordering::Relaxed);
    }
    workload();
    hypercall::exit()
}

/// What vCPU 0 does before any other vCPU runs.
fn boot_vcpu_only(form: &LockForm) {
    let (boot, control) = (percpu::boot(), percpu::control());
    let rate = if boot.work_rate == 0 { time::measure_work_rate() } else { boot.work_rate };
    // Relaxed, here and below: the hypercall lies between this and the first instruction of every other vCPU.
    control.work_rate.store(rate, Ordering::Relaxed);
    control.pair_ticks[PAIR_COMPILED_IN].store((form.pair_ticks)(), Ordering::Relaxed);
    if let Some(called) = &form.called {
        called.install();
        control.pair_ticks[PAIR_THROUGH_TABLE].store(pair_ticks::<Unmarked>(), Ordering::Relaxed);
        control.pair_ticks[PAIR_AT_SITES].store(pair_ticks::<Sites>(), Ordering::Relaxed);
    }
    if boot.pool_bytes > 0 {
        memory::init(form.faults);
    }
    control.booted_tsc.store(time::now(), Ordering::Relaxed);
    hypercall::booted();
}
