//! Back ends in which KVM itself puts vCPUs to sleep: which of them work on this host, and what they need of a VM.
//!
//! A guest in ring 0 halts (`pv_wait`) and wakes others by KVM_HC_KICK_CPU, or by an ordinary interrupt the way a
//! hypervisor without that hypercall has it done. Both need KVM's interrupt controller. Offered is not working: PVM offers the
//! hypercall and never returns from it; KVM answers 0 to a kick that wakes nobody while the target's local APIC is off.
//! So each is tried, on two vCPUs of a small VM, with a time limit.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use haltkick_hypercalls::{PORT_BOOTED, PORT_KICK, WAKE_VECTOR};
use kvm_bindings::{
    CpuId, KVM_CAP_HALT_POLL, KVM_CAP_SPLIT_IRQCHIP, KVM_CAP_X2APIC_API, KVM_CAP_X86_DISABLE_EXITS,
    KVM_MP_STATE_RUNNABLE, KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK, KVM_X2APIC_API_USE_32BIT_IDS,
    KVM_X86_DISABLE_EXITS_HLT, KVM_X86_DISABLE_EXITS_PAUSE, kvm_enable_cap, kvm_mp_state, kvm_regs,
    kvm_sregs,
};
use kvm_ioctls::VmFd;

use crate::boot;
use crate::clock::now_ns;
use crate::config::{PvBackend, Ring, RunConfig, Sched};
use crate::error::{RunError, system};
use crate::exits::Exit;
use crate::image::Image;
use crate::machine::ProbeMachine;
use crate::memory::{Memory, PROBE_CODE};
use crate::signal::{self, KickTimer};
use crate::vcpu::KvmVcpu;

/// KVM's first CPUID leaf: the signature. The next one holds the features.
const KVM_SIGNATURE_LEAF: u32 = 0x4000_0000;
const KVM_FEATURES_LEAF: u32 = 0x4000_0001;
/// KVM_FEATURE_PV_UNHALT: a kick ends a HLT even with interrupts off.
const PV_UNHALT: u32 = 1 << 7;
/// KVM_FEATURE_PV_SCHED_YIELD.
const PV_SCHED_YIELD: u32 = 1 << 13;

/// Why `backend`, [`PvBackend::Kvm`] or [`PvBackend::Ipi`], cannot be used here, if it cannot: tried once in a process.
pub(crate) fn probe(image: &Image, backend: PvBackend) -> Result<&'static Result<(), String>, RunError> {
    static KVM: OnceLock<Result<(), String>> = OnceLock::new();
    static IPI: OnceLock<Result<(), String>> = OnceLock::new();
    let probed = if backend == PvBackend::Kvm { &KVM } else { &IPI };
    if let Some(verdict) = probed.get() {
        return Ok(verdict);
    }
    let verdict = try_patiently(image, backend)?;
    Ok(probed.get_or_init(|| verdict))
}

/// Picks the back end for `config`, and says why.
pub(crate) fn choose(
    config: &RunConfig,
    (ring, ring_reason): (Ring, &str),
    probe: impl Fn(PvBackend) -> Result<&'static Result<(), String>, RunError>,
) -> Result<(PvBackend, String), RunError> {
    let asked = config.pv_backend;
    let obstacle = if config.sched == Sched::Vmm {
        Some(
            "the VMM's scheduler must see every sleep: a vCPU that halts in the kernel would keep its pCPU"
                .to_owned(),
        )
    } else if ring == Ring::Ring3 {
        Some(format!("HLT is for ring 0, and this guest runs in ring 3: {ring_reason}"))
    } else {
        None
    };
    match (asked, obstacle) {
        (PvBackend::Vmm, _) => return Ok((asked, "asked for".into())),
        (PvBackend::Auto, Some(obstacle)) => return Ok((PvBackend::Vmm, obstacle)),
        (PvBackend::Kvm | PvBackend::Ipi, Some(obstacle)) => {
            let text = format!("--pv-backend {}: {obstacle}", asked.name());
            let advice = if config.sched == Sched::Vmm { "use --sched host" } else { "use --pv-backend vmm" };
            let text = format!("{text}; {advice}");
            // A ring that the user did not choose is the host's doing.
            return Err(if config.sched == Sched::Host && config.ring == Ring::Auto {
                RunError::HostLacks(text)
            } else {
                RunError::Usage(text)
            });
        }
        (PvBackend::Auto | PvBackend::Kvm | PvBackend::Ipi, None) => {}
    }
    if asked == PvBackend::Kvm && !config.hlt_exits {
        return Err(RunError::Usage(
            "--hlt-exits off: KVM withdraws its kick hypercall then; use --pv-backend ipi".into(),
        ));
    }
    if asked != PvBackend::Auto {
        return match probe(asked)? {
            Ok(()) => Ok((asked, "asked for".into())),
            Err(reason) => Err(RunError::HostLacks(format!(
                "--pv-backend {}: {reason}; use --pv-backend vmm",
                asked.name()
            ))),
        };
    }
    // A trial takes two vCPUs of another VM: one that would decide nothing is left out.
    let obstacle = if config.hlt_exits {
        match probe(PvBackend::Kvm)? {
            Ok(()) => return Ok((PvBackend::Kvm, "a kick by hypercall woke a halted vCPU".into())),
            Err(reason) => reason.as_str(),
        }
    } else {
        "kicks by hypercall need exits at HLT"
    };
    Ok(match probe(PvBackend::Ipi)? {
        Ok(()) => (PvBackend::Ipi, format!("{obstacle}; an interrupt woke a halted vCPU")),
        Err(reason) => (PvBackend::Vmm, format!("{obstacle}; {reason}")),
    })
}

/// Gives a VM without vCPUs an interrupt controller in the kernel: local APICs only, with 32-bit ids.
pub(crate) fn create_irqchip(vm: &VmFd) -> Result<(), RunError> {
    enable(vm, KVM_CAP_SPLIT_IRQCHIP, 24).map_err(system("create an interrupt controller in the kernel"))?;
    let x2apic = KVM_X2APIC_API_USE_32BIT_IDS | KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK;
    enable(vm, KVM_CAP_X2APIC_API, u64::from(x2apic)).map_err(system("let APIC ids have 32 bits"))
}

/// Gives a VM without vCPUs all interrupt controllers that KVM has: local APICs and an I/O APIC.
pub(crate) fn create_full_irqchip(vm: &VmFd) -> Result<(), RunError> {
    /// Pages that VMX may need for itself, below what the firmware would have; in nobody's memory.
    const TSS_PAGES: usize = 0xfffb_d000;
    vm.set_tss_address(TSS_PAGES).map_err(system("say where KVM may keep pages of its own"))?;
    vm.create_irq_chip().map_err(system("create the interrupt controllers in the kernel"))?;
    // What a vCPU's id is, is its APIC's id; interrupts to APIC 255 are for that one alone.
    let x2apic = KVM_X2APIC_API_USE_32BIT_IDS | KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK;
    enable(vm, KVM_CAP_X2APIC_API, u64::from(x2apic)).map_err(system("let APIC ids have 32 bits"))
}

/// How long KVM polls for a wake-up before it lets a halted vCPU of this VM sleep. Where it cannot be set, it stays as it is.
pub(crate) fn set_halt_poll(vm: &VmFd, length: std::time::Duration) {
    let nanoseconds = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    _ = enable(vm, KVM_CAP_HALT_POLL, nanoseconds);
}

/// What `config` asks of the VM as a whole, before it has vCPUs.
pub(crate) fn configure(vm: &VmFd, config: &RunConfig) -> Result<(), RunError> {
    if let Some(halt_poll) = config.halt_poll {
        let nanoseconds = u64::try_from(halt_poll.as_nanos()).unwrap_or(u64::MAX);
        enable(vm, KVM_CAP_HALT_POLL, nanoseconds).map_err(|error| {
            RunError::HostLacks(format!(
                "--halt-poll: this KVM cannot set it for one VM ({error}), see doctor"
            ))
        })?;
    }
    let disabled = [
        ("--pause-exits", config.pause_exits, KVM_X86_DISABLE_EXITS_PAUSE),
        ("--hlt-exits", config.hlt_exits, KVM_X86_DISABLE_EXITS_HLT),
    ];
    let possible = vm.check_extension_raw(u64::from(KVM_CAP_X86_DISABLE_EXITS));
    let mut mask = 0;
    for (option, _, bit) in disabled.into_iter().filter(|(_, exits, _)| !exits) {
        if possible & bit as i32 == 0 {
            return Err(RunError::HostLacks(format!("{option} off: this KVM cannot do without these exits")));
        }
        mask |= u64::from(bit);
    }
    if mask != 0 {
        enable(vm, KVM_CAP_X86_DISABLE_EXITS, mask).map_err(system("switch exits off"))?;
    }
    Ok(())
}

fn enable(vm: &VmFd, cap: u32, argument: u64) -> Result<(), kvm_ioctls::Error> {
    vm.enable_cap(&kvm_enable_cap { cap, args: [argument, 0, 0, 0], ..Default::default() })
}

/// Gives a new vCPU its APIC id, which is its index, and lets it start without being sent a start-up interrupt.
pub(crate) fn prepare(vcpu: &KvmVcpu, cpuid: &CpuId) -> Result<(), RunError> {
    const X2APIC: u32 = 1 << 21;
    /// KVM offers its leaves, but leaves it to the VMM to say that there are any.
    const HYPERVISOR: u32 = 1 << 31;
    let mut cpuid = cpuid.clone();
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            1 => {
                entry.ebx = entry.ebx & 0x00ff_ffff | vcpu.id << 24;
                entry.ecx |= X2APIC | HYPERVISOR;
            }
            0xb | 0x1f => entry.edx = vcpu.id,
            _ => {}
        }
    }
    vcpu.fd.set_cpuid2(&cpuid).map_err(system("set CPUID"))?;
    vcpu.fd
        .set_mp_state(kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE })
        .map_err(system("make a vCPU runnable"))
}

/// Switches the local APIC to x2APIC mode. Before that, KVM delivers no kick to it.
pub(crate) fn set_x2apic(sregs: &mut kvm_sregs) {
    const ENABLED_X2APIC: u64 = 0xc00;
    sregs.apic_base |= ENABLED_X2APIC;
}

/// The `BOOT_*` flags for a guest whose vCPUs halt.
pub(crate) fn boot_flags(backend: PvBackend, cpuid: &CpuId) -> u32 {
    use haltkick_hypercalls::{BOOT_HALT, BOOT_KICK_HYPERCALL, BOOT_VMMCALL, BOOT_YIELD_HYPERCALL};
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    match backend {
        PvBackend::Kvm | PvBackend::Ipi => {
            let kvm = backend == PvBackend::Kvm;
            BOOT_HALT
                | flag(kvm, BOOT_KICK_HYPERCALL)
                | flag(kvm && features(cpuid) & PV_SCHED_YIELD != 0, BOOT_YIELD_HYPERCALL)
                | flag(is_amd(cpuid), BOOT_VMMCALL)
        }
        PvBackend::Vmm | PvBackend::Auto => 0,
    }
}

fn leaf(cpuid: &CpuId, function: u32) -> Option<&kvm_bindings::kvm_cpuid_entry2> {
    cpuid.as_slice().iter().find(|entry| entry.function == function)
}

/// KVM's paravirtual features, by its own leaves.
fn features(cpuid: &CpuId) -> u32 {
    const SIGNATURE: [u32; 3] = [0x4b4d_564b, 0x564b_4d56, 0x4d];
    let signed =
        leaf(cpuid, KVM_SIGNATURE_LEAF).is_some_and(|leaf| [leaf.ebx, leaf.ecx, leaf.edx] == SIGNATURE);
    if signed { leaf(cpuid, KVM_FEATURES_LEAF).map_or(0, |leaf| leaf.eax) } else { 0 }
}

/// Whether hypercalls are VMMCALL. KVM rewrites the other vendor's, but a guest should not need that.
pub(crate) fn is_amd(cpuid: &CpuId) -> bool {
    let vendor = leaf(cpuid, 0).map(|leaf| [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat());
    vendor.is_some_and(|vendor| vendor == b"AuthenticAMD" || vendor == b"HygonGenuine")
}

// ---------------------------------------------------------------------------------------------------------
// The trial: vCPU 0 wakes vCPU 1, once before it halts and once after

/// Time for a step: a thousand times what a slow host takes. A host that was busy with other things meanwhile gets another
/// chance; what does not work ends at its first step, so that both chances are over within a second.
const STEP_LIMITS: [Duration; 2] = [Duration::from_millis(150), Duration::from_millis(500)];

/// `mov dx, PORT_BOOTED; out dx, eax`, at its start, after HLT, and again: three bytes of it in each.
const REPORT: [u8; 5] = [0x66, 0xba, PORT_BOOTED as u8, (PORT_BOOTED >> 8) as u8, 0xef];
/// `mov ecx, 0x80f; mov eax, 0x1ff; xor edx, edx; wrmsr`: the APIC accepts interrupts.
pub(crate) const ACCEPT_INTERRUPTS: [u8; 14] =
    [0xb9, 0x0f, 0x08, 0, 0, 0xb8, 0xff, 0x01, 0, 0, 0x31, 0xd2, 0x0f, 0x30];
/// `mov dx, PORT_KICK; out dx, eax`.
const ANSWER: [u8; 5] = [0x66, 0xba, PORT_KICK as u8, (PORT_KICK >> 8) as u8, 0xef];

/// VMCALL, and VMMCALL for AMD.
pub(crate) const HYPERCALL: [[u8; 3]; 2] = [[0x0f, 0x01, 0xc1], [0x0f, 0x01, 0xd9]];
/// Arguments: flags (0) and APIC id.
pub(crate) const KVM_HC_KICK_CPU: u32 = 5;
/// The x2APIC's interrupt command.
pub(crate) const X2APIC_ICR: u32 = 0x830;

/// Says that it is there, then halts and reports, for ever.
fn sleeper(backend: PvBackend) -> Vec<u8> {
    let mut code = if backend == PvBackend::Ipi { ACCEPT_INTERRUPTS.to_vec() } else { vec![] };
    code.extend(REPORT);
    let (sti, hlt, cli, jmp) = (0xfb, 0xf4, 0xfa, 0xeb);
    let round: Vec<u8> = match backend {
        PvBackend::Ipi => [sti, hlt, cli].into_iter().chain(REPORT).collect(),
        _ => [hlt].into_iter().chain(REPORT).collect(),
    };
    code.extend(&round);
    code.extend([jmp, (round.len() as u8 + 2).wrapping_neg()]);
    code
}

/// Wakes vCPU 1 and answers with what came of it, for ever. Registers are set from outside each time.
fn waker(backend: PvBackend, amd: bool) -> Vec<u8> {
    let mut code = match backend {
        PvBackend::Ipi => vec![0x0f, 0x30, 0x31, 0xc0], // wrmsr; xor eax, eax
        _ => HYPERCALL[usize::from(amd)].to_vec(),
    };
    code.extend(ANSWER);
    code
}

const SLEEPER_CODE: u64 = PROBE_CODE;
const WAKER_CODE: u64 = PROBE_CODE + 0x100;

/// Whether `backend` works here; the reason if not.
fn try_patiently(image: &Image, backend: PvBackend) -> Result<Result<(), String>, RunError> {
    let [first, last] = STEP_LIMITS;
    match try_out(image, backend, first)? {
        Ok(()) => Ok(Ok(())),
        Err(_) => try_out(image, backend, last),
    }
}

fn try_out(image: &Image, backend: PvBackend, limit: Duration) -> Result<Result<(), String>, RunError> {
    let mut machine = match ProbeMachine::new(image, 2, true) {
        Ok(machine) => machine,
        Err(error @ RunError::System { .. }) => return Ok(Err(error.to_string())),
        Err(error) => return Err(error),
    };
    if backend == PvBackend::Kvm && features(&machine.cpuid) & PV_UNHALT == 0 {
        return Ok(Err("this KVM does not offer to wake a halted vCPU (PV_UNHALT)".into()));
    }
    let memory = &machine.memory;
    memory.write(SLEEPER_CODE, &sleeper(backend));
    memory.write(WAKER_CODE, &waker(backend, is_amd(&machine.cpuid)));
    for vcpu in &machine.vcpus {
        let mut sregs = vcpu.fd.get_sregs().map_err(system("read the reset state"))?;
        boot::set_system_registers(&mut sregs, Ring::Ring0, vcpu.id, memory.area_address(vcpu.id));
        set_x2apic(&mut sregs);
        vcpu.fd.set_sregs(&sregs).map_err(system("set system registers"))?;
    }
    let [waker, sleeper] = machine.vcpus.as_mut_slice() else { unreachable!("two vCPUs were made") };
    Ok(wake_twice(memory, sleeper, waker, backend, limit))
}

fn wake_twice(
    memory: &Memory,
    sleeper: &mut KvmVcpu,
    waker: &mut KvmVcpu,
    backend: PvBackend,
    limit: Duration,
) -> Result<(), String> {
    let kick = match backend {
        PvBackend::Ipi => "an interrupt",
        _ => "KVM_HC_KICK_CPU",
    };
    set_start(memory, sleeper, SLEEPER_CODE)?;
    expect(sleeper, Exit::Booted, limit, || {
        "a vCPU does not run in ring 0 with KVM's interrupt controller".into()
    })?;
    let wake = |waker: &mut KvmVcpu| {
        set_wake(memory, waker, backend)?;
        expect(waker, Exit::Kick(0), limit, || format!("{kick} does not return"))
    };
    // The wake-up comes first: it must be latched.
    wake(waker)?;
    expect(sleeper, Exit::Booted, limit, || format!("{kick} before a HLT does not end it"))?;
    // The HLT comes first, if a quiet moment is enough for it; if not, this is the first case again.
    std::thread::scope(|scope| {
        let asleep = scope
            .spawn(|| expect(sleeper, Exit::Booted, limit, || format!("{kick} does not wake a halted vCPU")));
        std::thread::sleep(Duration::from_millis(2));
        let sent = wake(waker);
        let woken = asleep.join().unwrap_or_else(|_| Err("the probe's thread panicked".into()));
        sent.and(woken)
    })
}

fn set_start(memory: &Memory, vcpu: &KvmVcpu, code: u64) -> Result<(), String> {
    let registers = kvm_regs {
        rip: code,
        rsp: memory.stack_top(vcpu.id),
        rflags: boot::START_FLAGS,
        ..Default::default()
    };
    vcpu.fd.set_regs(&registers).map_err(|error| format!("registers cannot be set: {error}"))
}

/// The arguments of a kick of vCPU 1: KVM_HC_KICK_CPU(flags 0, APIC id 1), or the x2APIC's interrupt command.
fn set_wake(memory: &Memory, vcpu: &KvmVcpu, backend: PvBackend) -> Result<(), String> {
    set_start(memory, vcpu, WAKER_CODE)?;
    let mut registers = vcpu.fd.get_regs().map_err(|error| format!("registers cannot be read: {error}"))?;
    match backend {
        PvBackend::Ipi => {
            (registers.rax, registers.rcx, registers.rdx) =
                (u64::from(WAKE_VECTOR), u64::from(X2APIC_ICR), 1);
        }
        _ => (registers.rax, registers.rbx, registers.rcx) = (u64::from(KVM_HC_KICK_CPU), 0, 1),
    }
    vcpu.fd.set_regs(&registers).map_err(|error| format!("registers cannot be set: {error}"))
}

/// Runs `vcpu` until `wanted`; anything else, or nothing in time, is the failure that `otherwise` names.
pub(crate) fn expect(
    vcpu: &mut KvmVcpu,
    wanted: Exit,
    limit: Duration,
    otherwise: impl Fn() -> String,
) -> Result<(), String> {
    signal::block_kick();
    let timer = KickTimer::new().map_err(|error| format!("no timer for the probe: {error}"))?;
    let start = Instant::now();
    let limit_ns = limit.as_nanos() as u64;
    timer.set(now_ns() + limit_ns, limit_ns);
    let verdict = loop {
        match vcpu.run() {
            Ok(exit) if exit == wanted => break Ok(()),
            Ok(Exit::Interrupted) if start.elapsed() < limit => signal::take_kick(),
            Ok(Exit::Interrupted) => break Err(otherwise()),
            Ok(exit) => break Err(format!("{} (the probe ended with {exit:?})", otherwise())),
            Err(error) => break Err(format!("{} (KVM_RUN: {error})", otherwise())),
        }
    };
    drop(timer);
    signal::take_kick();
    verdict
}
