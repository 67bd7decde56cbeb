//! The boot CPU lays out memory, starts the others and keeps the window; the others become vCPUs.
#![expect(unsafe_code, reason = "lays out memory and hands out references to it, in this one place")]

use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicU32, Ordering};

use haltkick_hypercalls::{
    BootBlock, BootFlags, CPU_OFFSET, Control, ENTRIES_ROW_BYTES, EXCEPTION_STACK_OFFSET, GuestAddress,
    MAX_LOCKS, MAX_VCPUS, NANOSECOND_TICKS_KHZ, Oracle, Request, SELF_OFFSET, VcpuArea, WAKE_VECTOR, WAKES,
    WINDOW_CLOSED, WINDOW_OPEN, WorkloadFlags,
};

use crate::boot::entry;
use crate::cpu::time::{now, ticks};
use crate::cpu::{apic, halt, percpu};
use crate::lock::{object, registry};

use super::{ground, ground::Zeroed, tables};
use crate::monitor::hypercall::{ALL_MAY_BEGIN, FIRST_MAY_BEGIN, stop};
use crate::monitor::record::{self, fail, leave};

static BOOT_BLOCK: Zeroed<BootBlock> = Zeroed::new();
static CONTROL: Zeroed<Control> = Zeroed::new();
static ORACLES: Zeroed<[Oracle; MAX_LOCKS as usize]> = Zeroed::new();

/// Written into the image's file by who starts the monitor, before there is a guest.
#[used]
#[unsafe(link_section = ".haltkick.request")]
static REQUEST: Zeroed<Request> = Zeroed::new();

/// Bytes of a vCPU's stack for exceptions.
const EXCEPTION_STACK_BYTES: u64 = 4096;
/// vCPUs that can be kicked.
static PRESENT: AtomicU32 = AtomicU32::new(0);

/// The boot CPU, in 64-bit mode. The first four GiB are mapped as far as `ground` says.
pub(super) extern "C" fn boot() -> ! {
    prepare_to_fail();
    // SAFETY: written before there was a guest, never after.
    let request = unsafe { &*REQUEST.pointer() };
    if request.boot.vcpus == 0 {
        fail(format_args!("its request is empty: start it by haltkick run --engine qemu"));
    }
    let boot = lay_out(request);
    tables::load(boot.vcpus, area_address(boot.vcpus));
    start_others(boot);
    ground::unmap_null();
    record::line(format_args!("vcpus {}", boot.vcpus));
    FIRST_MAY_BEGIN.store(true, Ordering::Release);
    halt::kick(0);
    keep_window(boot, request);
    if !record::begin_end() {
        // A vCPU failed, and tells of it.
        stop();
    }
    stop_others();
    record::nobody_else_sends();
    record::shared_memory(boot);
    leave(record::DONE)
}

/// Area of the boot CPU until it knows where its own lies.
static EARLY: Zeroed<VcpuArea> = Zeroed::new();
static EARLY_STACK: Zeroed<[u8; EXCEPTION_STACK_BYTES as usize]> = Zeroed::new();

/// Before anything can fail: tables that lead an exception to its report, an area to hold that, and no
/// interrupts from controllers that are not set up.
fn prepare_to_fail() {
    const PIC_MASKS: [u16; 2] = [0x21, 0xa1];
    let (area, boot) = ((&raw const EARLY) as u64, BOOT_BLOCK.pointer());
    // SAFETY: alone: no other CPU runs, and there is no reference to any of it. Ring 0; a machine without that
    // interrupt controller ignores what is written there.
    unsafe {
        for mask in PIC_MASKS {
            core::arch::asm!("out dx, al", in("dx") mask, in("al") 0xff_u8, options(nostack, nomem, preserves_flags));
        }
        ((area + SELF_OFFSET as u64) as *mut u64).write(area);
        ((area + EXCEPTION_STACK_OFFSET as u64) as *mut u64)
            .write((&raw const EARLY_STACK) as u64 + EXCEPTION_STACK_BYTES);
        (*boot).flags = BootFlags::BARE.with(BootFlags::HALT);
        (*boot).vcpus = 1;
        (*boot).vcpu_areas = GuestAddress(area);
        (*boot).entries = GuestAddress(area);
        percpu::init(boot);
    }
    tables::write_gates();
    tables::load(MAX_VCPUS as u32, area);
}

/// Every other CPU, on the stack of its number.
pub(super) extern "C" fn other(cpu: u32) -> ! {
    // The boot block was written before the interrupt that started this CPU, and `apic::send` orders the two.
    tables::load(cpu, area_address(cpu));
    prepare_apic();
    keep_steal_time(area_address(cpu));
    apic::enter_id(cpu);
    // Release pairs with the acquire in `start_others`: the APIC id is there.
    PRESENT.fetch_add(1, Ordering::Release);
    let may_begin = if cpu == 0 { &FIRST_MAY_BEGIN } else { &ALL_MAY_BEGIN };
    while !may_begin.load(Ordering::Acquire) {
        halt::wait();
    }
    entry::run(cpu)
}

/// Address of the area of vCPU `cpu`; the boot CPU has the one after the last, for its reports.
fn area_address(cpu: u32) -> u64 {
    let large_page = 2 << 20;
    let end = object::end().max((&raw const ground::IMAGE_END) as u64);
    end.next_multiple_of(large_page) + u64::from(cpu) * size_of::<VcpuArea>() as u64
}

/// Writes the boot block and what each vCPU must know of itself.
fn lay_out(request: &Request) -> &'static BootBlock {
    let areas = u64::from(request.boot.vcpus) + 1;
    let exception_stacks = area_address(0) + areas * size_of::<VcpuArea>() as u64;
    let stacks = exception_stacks + areas * EXCEPTION_STACK_BYTES;
    let entries = stacks + areas * ground::STACK_BYTES;
    let end = entries + areas * ENTRIES_ROW_BYTES as u64;
    let (needed, there) = (end.div_ceil(1 << 20), u64::from(request.memory_mib));
    if needed > there {
        fail(format_args!("{needed} MiB of memory are needed, there are {there}"));
    }
    // SAFETY: unused memory (just checked) behind the image; zero is valid for all that lies there.
    unsafe { core::ptr::write_bytes(area_address(0) as *mut u8, 0, (end - area_address(0)) as usize) };
    for cpu in 0..=request.boot.vcpus {
        let this = area_address(cpu);
        let exception_stack = exception_stacks + u64::from(cpu + 1) * EXCEPTION_STACK_BYTES;
        // SAFETY: within the area; no reference to it exists yet.
        unsafe {
            ((this + SELF_OFFSET as u64) as *mut u64).write(this);
            ((this + CPU_OFFSET as u64) as *mut u32).write(cpu);
            ((this + EXCEPTION_STACK_OFFSET as u64) as *mut u64).write(exception_stack);
        }
    }
    ground::STACKS.store(stacks, Ordering::Relaxed);
    ground::EXPECTED.store(request.boot.vcpus, Ordering::Relaxed);
    let alone = BootFlags::BARE.with(BootFlags::HALT);
    let block = BootBlock {
        flags: request.boot.flags.with(alone).with(kick_flags(request.wakes)),
        vcpu_areas: GuestAddress(area_address(0)),
        control: GuestAddress((&raw const CONTROL) as u64),
        oracles: GuestAddress((&raw const ORACLES) as u64),
        entries: GuestAddress(entries),
        page_table: GuestAddress((&raw const ground::PML4) as u64),
        ..request.boot
    };
    let boot = BOOT_BLOCK.pointer();
    // SAFETY: alone: no other CPU runs, and there is no reference to it. `percpu` knows its address since `prepare_to_fail`.
    unsafe {
        *boot = block;
        // Needs the APIC, whose form depends on nothing of the above but on the flags.
        prepare_machine();
        *boot = with_clock(&block, if request.tsc_khz == 0 { measure_tsc_khz() } else { request.tsc_khz });
        &*boot
    }
}

/// The boot block of a request, for the clock that there is.
fn with_clock(block: &BootBlock, tsc_khz: u64) -> BootBlock {
    let ticks = |ns: u64| (u128::from(ns) * u128::from(tsc_khz) / u128::from(NANOSECOND_TICKS_KHZ)) as u64;
    BootBlock {
        tsc_khz,
        spin_threshold_ticks: ticks(block.spin_threshold_ticks),
        slice_margin_ticks: ticks(block.slice_margin_ticks),
        fold_interval_ticks: ticks(block.fold_interval_ticks),
        ..*block
    }
}

/// Returns how to kick: by KVM's hypercall where KVM offers that (and the request does not ask otherwise),
/// else by interrupt.
fn kick_flags(asked: u32) -> BootFlags {
    const PV_SCHED_YIELD: u32 = 1 << 13;
    let kvm = halt::has_pv_unhalt();
    match WAKES.get(asked as usize) {
        Some(&"kvm") if !kvm => fail(format_args!(
            "a kick by hypercall is asked for, and CPUID does not offer KVM_FEATURE_PV_UNHALT"
        )),
        Some(&"ipi") => BootFlags::NONE,
        _ if !kvm => BootFlags::NONE,
        _ => {
            let yields = halt::kvm_features() & PV_SCHED_YIELD != 0;
            let vendor = __cpuid(0);
            let amd = [*b"Auth", *b"Hygo"].contains(&vendor.ebx.to_le_bytes());
            BootFlags::KICK_HYPERCALL
                .with_if(yields, BootFlags::YIELD_HYPERCALL)
                .with_if(amd, BootFlags::VMMCALL)
        }
    }
}

/// Prepares state that all CPUs rely on, on the first: which form the APIC has.
fn prepare_machine() {
    const X2APIC: u32 = 1 << 21;
    apic::IN_MEMORY.store(__cpuid(1).ecx & X2APIC == 0, Ordering::Relaxed);
    prepare_apic();
}

fn prepare_apic() {
    if !apic::IN_MEMORY.load(Ordering::Relaxed) {
        apic::enable_x2apic();
    }
    apic::mask_legacy();
    apic::accept_interrupts();
}

/// Asks KVM to keep the steal-time record of the vCPU, where there is KVM.
fn keep_steal_time(area: u64) {
    const STEAL_TIME: u32 = 1 << 5;
    const MSR_KVM_STEAL_TIME: u32 = 0x4b56_4d03;
    const ENABLE: u64 = 1;
    if halt::kvm_features() & STEAL_TIME != 0 {
        // SAFETY: ring 0, under a KVM that has the register; the area's first line is KVM's to write.
        unsafe { apic::write_msr(MSR_KVM_STEAL_TIME, area | ENABLE) };
    }
}

/// TSC ticks per millisecond, against the APIC's timer: that counts nanoseconds in KVM, and in QEMU's emulator.
///
/// The host may take this CPU between reading the one clock and the other, which would show as another frequency. So each
/// reading of the timer stands between two of the TSC, and the pair of the narrowest of several counts.
fn measure_tsc_khz() -> u64 {
    const TEN_MS: u32 = 10_000_000;
    const READINGS: usize = 16;
    /// TSC in the middle of a reading of the timer, and what the timer said.
    fn bracketed() -> (u64, u32) {
        let reading = |_| {
            let (before, count, after) = (now(), apic::timer_count(), now());
            (after - before, before.midpoint(after), count)
        };
        let narrowest = (0..READINGS).map(reading).min().expect("there are several");
        (narrowest.1, narrowest.2)
    }
    apic::start_timer(WAKE_VECTOR, u32::MAX);
    let (start, from) = bracketed();
    while from - apic::timer_count() < TEN_MS {
        core::hint::spin_loop();
    }
    let (end, to) = bracketed();
    (end - start) * 1_000_000 / u64::from(from - to)
}

/// Starts all other CPUs and waits until those that there is work for are there.
fn start_others(boot: &BootBlock) {
    const ALL_OTHERS: u32 = 0b11 << 18;
    const INIT: u32 = ALL_OTHERS | 0x4500;
    const START_UP: u32 = ALL_OTHERS | 0x4600 | (ground::TRAMPOLINE >> 12) as u32;
    ground::place_trampoline();
    apic::send(0, INIT);
    spin(boot, 10_000);
    // Twice, as Intel says (SDM vol. 3, 9.4.4); a CPU that runs already ignores the second.
    apic::send(0, START_UP);
    spin(boot, 200);
    apic::send(0, START_UP);
    let patience = now() + boot.tsc_khz * 20_000;
    // Acquire pairs with the release in `other`.
    while PRESENT.load(Ordering::Acquire) < boot.vcpus {
        if now() > patience {
            let (there, asked) = (PRESENT.load(Ordering::Relaxed), boot.vcpus);
            fail(format_args!("{there} of {asked} vCPUs came up: the machine needs one CPU more than vCPUs"));
        }
        core::hint::spin_loop();
    }
}

/// Stops all other CPUs where they are: they wait for a start-up interrupt again.
fn stop_others() {
    const INIT_ALL_OTHERS: u32 = 0b11 << 18 | 0x4500;
    apic::send(0, INIT_ALL_OTHERS);
    // A CPU that its host has taken off stops before its next instruction. One that runs needs a moment.
    spin(percpu::boot(), 2_000);
}

fn spin(boot: &BootBlock, microseconds: u64) {
    let end = now() + boot.tsc_khz * microseconds / 1000;
    while now() < end {
        core::hint::spin_loop();
    }
}

fn keep_window(boot: &BootBlock, request: &Request) {
    /// A millisecond where the APIC counts nanoseconds; elsewhere whatever it is, since only the TSC counts.
    const TICK: u32 = 1_000_000;
    apic::start_timer(WAKE_VECTOR, TICK);
    let control = percpu::control();
    let rests = registry::workload_flags_of_run().has(WorkloadFlags::CHECKS_AT_REST);
    let all = |count: &AtomicU32| count.load(Ordering::Relaxed) >= boot.vcpus;
    while !(all(&control.started) && (!rests || all(&control.ready))) {
        tick(boot);
    }
    sleep_until(boot, now() + ticks(request.warmup_ns));
    let opened = now();
    // Relaxed: the vCPUs poll it.
    control.window.store(WINDOW_OPEN, Ordering::Relaxed);
    record::line(format_args!("open"));
    sleep_until(boot, opened + ticks(request.window_ns));
    control.window.store(WINDOW_CLOSED, Ordering::Relaxed);
    record::line(format_args!("close {}", now() - opened));
    // Acquire: pairs with the release in `arena::come_to_rest`. A vCPU that finds something wrong then ends the
    // machine. Endless waits are ended by the VMM's time limit.
    while rests && control.at_rest.load(Ordering::Acquire) == 0 {
        tick(boot);
    }
}

fn sleep_until(boot: &BootBlock, tsc: u64) {
    while now() < tsc {
        tick(boot);
    }
}

/// Sleeps until the next interrupt of the timer, and looks around.
fn tick(boot: &BootBlock) {
    halt::wait_for_interrupt();
    if (0..boot.vcpus as usize).any(|cpu| percpu::area(cpu).steal.preempted.load(Ordering::Relaxed) != 0) {
        record::PREEMPTED_SEEN.store(true, Ordering::Relaxed);
    }
}
