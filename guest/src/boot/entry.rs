//! From the first instruction of a vCPU to its workload; and the note that the VMM reads before it runs the image: the ABI that it
//! was built for, and where its vector stubs are.
#![expect(
    unsafe_code,
    reason = "an entry point that the VMM calls and a note that it reads, with addresses in both"
)]

use core::sync::atomic::Ordering;

use haltkick_hypercalls::{
    ABI_FINGERPRINT, ABI_VERSION, BootBlock, BootFlags, ImageNote, NOTE_OWNER, NOTE_TYPE, PORT_BOOTED,
    PORT_EXIT, PORT_STARTED,
};

use crate::cpu::{halt, percpu, time};
use crate::lock::form::Form;
use crate::lock::registry;
use crate::memory;
use crate::monitor::hypercall;
use crate::traps::exceptions;
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

/// An ELF note: sizes, type, owner padded to four bytes, descriptor.
#[repr(C)]
struct Note {
    owner_bytes: u32,
    descriptor_bytes: u32,
    kind: u32,
    owner: [u8; NOTE_OWNER.len().next_multiple_of(4)],
    abi_version: u32,
    vector_stub_bytes: u32,
    vector_stubs: Unaligned,
    fingerprint: [u32; 2],
}

/// A pointer that an ELF note holds at four-byte alignment.
#[repr(C, packed(4))]
struct Unaligned(*const u8);

// SAFETY: an address in a note that only the VMM's loader reads.
unsafe impl Sync for Unaligned {}

#[used]
#[unsafe(link_section = ".note.haltkick")]
static NOTE: Note = Note {
    owner_bytes: NOTE_OWNER.len() as u32,
    descriptor_bytes: size_of::<ImageNote>() as u32,
    kind: NOTE_TYPE,
    owner: {
        let mut owner = [0; NOTE_OWNER.len().next_multiple_of(4)];
        let mut i = 0;
        while i < NOTE_OWNER.len() {
            owner[i] = NOTE_OWNER[i];
            i += 1;
        }
        owner
    },
    abi_version: ABI_VERSION,
    vector_stub_bytes: exceptions::STUB_BYTES,
    vector_stubs: Unaligned(&raw const exceptions::STUBS),
    fingerprint: [ABI_FINGERPRINT as u32, (ABI_FINGERPRINT >> 32) as u32],
};
