//! From the first instruction of a vCPU to its workload.
#![expect(unsafe_code, reason = "the entry point is called by the VMM, with pointers that it vouches for")]

use core::sync::atomic::Ordering;

use haltkick_hypercalls::{
    ABI_FINGERPRINT, ABI_VERSION, BootBlock, BootFlags, PORT_BOOTED, PORT_EXIT, PORT_STARTED,
};

use crate::cpu::{halt, percpu, time};
use crate::lock::form::Form;
use crate::lock::registry;
use crate::memory;
use crate::monitor::hypercall;
use crate::work::{choice, footprint};
use crate::workloads::{harm, tasks};

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
    let boot = percpu::boot();
    // The first two words have been where they are since the first version.
    assert!(
        boot.abi_version == ABI_VERSION && boot.fingerprint == ABI_FINGERPRINT,
        "the VMM speaks another ABI (version {}, fingerprint {:#x}) than this image (version {ABI_VERSION}, {:#x})",
        boot.abi_version,
        boot.fingerprint,
        ABI_FINGERPRINT
    );
    if halt::is_on() {
        halt::init();
    }
    if cpu == 0 {
        boot_vcpu_only(&registry::form_of_run());
    }
    let control = percpu::control();
    // Relaxed, here and below: the VMM reads the count as a hint, and the time after the run.
    control.started.fetch_add(1, Ordering::Relaxed);
    if boot.flags.has(BootFlags::EACH_SAYS_STARTED) && !harm::keeps_silent() {
        hypercall::out(PORT_STARTED, 0);
    }
    if control.workload_tsc.load(Ordering::Relaxed) == 0 {
        // Fails if another vCPU was first.
        _ = control.workload_tsc.compare_exchange(0, time::now(), Ordering::Relaxed, Ordering::Relaxed);
    }
    registry::workload_of_run()();
    hypercall::end(PORT_EXIT)
}

/// Work of vCPU 0 before any other vCPU runs.
fn boot_vcpu_only(form: &Form) {
    let (boot, control) = (percpu::boot(), percpu::control());
    let rate = if boot.work_rate == 0 { time::measure_work_rate() } else { boot.work_rate };
    // Relaxed, here and below: the hypercall lies between this and the first instruction of every other vCPU.
    control.work_rate.store(rate, Ordering::Relaxed);
    form.prepare();
    choice::prepare();
    footprint::prepare();
    tasks::prepare();
    if boot.pool_bytes > 0 {
        memory::init(form.faults);
    }
    control.booted_tsc.store(time::now(), Ordering::Relaxed);
    hypercall::out(PORT_BOOTED, 0);
}
