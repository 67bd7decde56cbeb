//! Back ends in which KVM itself puts vCPUs to sleep: which of them work on this host, and what they need of a VM.
//!
//! A guest in ring 0 halts (`pv_wait`) and wakes others by KVM_HC_KICK_CPU, or by an ordinary interrupt the way a
//! hypervisor without that hypercall has it done. Both need KVM's interrupt controller. Offered is not working: PVM
//! offers the hypercall and never returns from it; KVM answers 0 to a kick that has no effect because the target's
//! local APIC is off. So each is tried, on two vCPUs of the very VM that is to run the guest if it has them, with a
//! time limit.
//! In a trial vCPU 0 wakes vCPU 1, once before it halts and once after.

use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use haltkick_hypercalls::{BootFlags, PORT_BOOTED, PORT_KICK, WAKE_VECTOR};
use kvm_bindings::{CpuId, kvm_regs};

use crate::guest::memory::{Memory, PROBE_CODE};
use crate::host::error::{Known, RunError, Unknown};
use crate::machine::vcpu::{Exit, KvmVcpu};
use crate::machine::vm::{Vm, expect, set_start};
use crate::machine::{self, PvBackend, Ring, Wanted, ring_probe};

/// KVM's first CPUID leaf: the signature. The next one holds the features.
const KVM_SIGNATURE_LEAF: u32 = 0x4000_0000;
const KVM_FEATURES_LEAF: u32 = 0x4000_0001;
/// KVM_FEATURE_PV_UNHALT: a kick ends a HLT even with interrupts off.
const PV_UNHALT: u32 = 1 << 7;
/// KVM_FEATURE_PV_SCHED_YIELD.
const PV_SCHED_YIELD: u32 = 1 << 13;

/// Whether `wanted` leaves it open that vCPUs halt in the kernel.
fn may_halt(wanted: &Wanted) -> bool {
    !wanted.vmm_schedules && wanted.pv_backend != PvBackend::Vmm && wanted.ring != Ring::Ring3
}

/// Refuses settings of halts for vCPUs that do not halt.
pub(crate) fn check(wanted: &Wanted) -> Result<(), RunError> {
    if !may_halt(wanted) && (wanted.halts.poll.is_some() || !wanted.halts.hlt_exits) {
        return Err(RunError::usage(
            "--halt-poll and --hlt-exits are about vCPUs that halt in the kernel: use --sched host, without --pv-backend vmm \
             and --ring 3",
        ));
    }
    if wanted.pv_backend == PvBackend::Kvm && !wanted.halts.hlt_exits {
        return Err(RunError::usage(
            "--hlt-exits off: KVM withdraws its kick hypercall then; use --pv-backend ipi",
        ));
    }
    Ok(())
}

/// Whether such a run may come to a back end of this kind, as far as is known before anything was tried.
pub(crate) fn may_be_chosen(wanted: &Wanted) -> bool {
    may_halt(wanted)
        && !(wanted.ring == Ring::Auto
            && ring_probe::RING0_RATE.get().is_some_and(|rate| !machine::is_native(*rate)))
}

/// Why `backend`, [`PvBackend::Kvm`] or [`PvBackend::Ipi`], cannot be used here, with exits at HLT or without, if it cannot:
/// tried once in a process, on `vm` if it is fit for that, and with more patience on `another`.
pub(crate) fn probe(
    backend: PvBackend,
    hlt_exits: bool,
    vm: Option<&mut Vm>,
    another: impl Fn() -> Result<Vm, RunError>,
) -> Result<&'static Known<()>, RunError> {
    static VERDICTS: [[OnceLock<Known<()>>; 2]; 2] = [const { [const { OnceLock::new() }; 2] }; 2];
    let verdict = &VERDICTS[usize::from(backend == PvBackend::Kvm)][usize::from(hlt_exits)];
    if let Some(verdict) = verdict.get() {
        return Ok(verdict);
    }
    let tried = run_patiently(backend, vm, another)?;
    Ok(verdict.get_or_init(|| tried))
}

/// Picks the back end for `wanted`, and says why.
pub(crate) fn choose(
    wanted: &Wanted,
    (ring, ring_reason): (Ring, &str),
    mut probe: impl FnMut(PvBackend) -> Result<&'static Known<()>, RunError>,
) -> Result<(PvBackend, String), RunError> {
    let asked = wanted.pv_backend;
    let obstacle = if wanted.vmm_schedules {
        Some(
            "the VMM's scheduler must see every sleep: a vCPU that halts in the kernel would keep its pCPU"
                .to_owned(),
        )
    } else if ring == Ring::Ring3 {
        Some(format!("HLT is for ring 0, and this guest runs in ring 3: {ring_reason}"))
    } else {
        None
    };
    let advice = if wanted.vmm_schedules { "use --sched host" } else { "use --pv-backend vmm" };
    let refused = |why: &str| format!("--pv-backend {}: {why}; {advice}", asked.name());
    match (asked, obstacle) {
        (PvBackend::Vmm, _) => return Ok((asked, "asked for".into())),
        (PvBackend::Auto, Some(obstacle)) => return Ok((PvBackend::Vmm, obstacle)),
        // A ring that the user did not choose is the host's doing.
        (_, Some(obstacle)) if !wanted.vmm_schedules && wanted.ring == Ring::Auto => {
            return Err(RunError::HostLacks(refused(&obstacle)));
        }
        (_, Some(obstacle)) => return Err(RunError::usage(refused(&obstacle))),
        (PvBackend::Auto, None) => {}
        (PvBackend::Kvm | PvBackend::Ipi, None) => {
            let works = probe(asked)?.as_ref();
            works.map_err(|reason| RunError::HostLacks(refused(&reason.0)))?;
            return Ok((asked, "asked for".into()));
        }
    }
    // A trial takes time: one that would decide nothing is left out.
    let obstacle = if wanted.halts.hlt_exits {
        match probe(PvBackend::Kvm)? {
            Ok(()) => return Ok((PvBackend::Kvm, "a kick by hypercall woke a halted vCPU".into())),
            Err(reason) => &*reason.0,
        }
    } else {
        "kicks by hypercall need exits at HLT"
    };
    Ok(match probe(PvBackend::Ipi)? {
        Ok(()) => (PvBackend::Ipi, format!("{obstacle}; an interrupt woke a halted vCPU")),
        Err(reason) => (PvBackend::Vmm, format!("{obstacle}; {reason}")),
    })
}

/// The flags for a guest whose vCPUs halt.
pub(crate) fn boot_flags(backend: PvBackend, cpuid: &CpuId) -> BootFlags {
    match backend {
        PvBackend::Kvm | PvBackend::Ipi => {
            let kvm = backend == PvBackend::Kvm;
            BootFlags::HALT
                .with_if(kvm, BootFlags::KICK_HYPERCALL)
                .with_if(kvm && features(cpuid) & PV_SCHED_YIELD != 0, BootFlags::YIELD_HYPERCALL)
                .with_if(is_amd(cpuid), BootFlags::VMMCALL)
        }
        PvBackend::Vmm | PvBackend::Auto => BootFlags::NONE,
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

pub(crate) const TRIAL_VCPUS: u32 = 2;

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

/// Opcodes of `mov` to a register.
pub(crate) const EAX: u8 = 0xb8;
const ECX: u8 = 0xb9;
pub(crate) const EDX: u8 = 0xba;

pub(crate) fn mov(register: u8, value: u32) -> Vec<u8> {
    [&[register][..], &value.to_le_bytes()].concat()
}

/// Code that wakes vCPU `other`, which halts, and leaves the result in EAX: KVM_HC_KICK_CPU(flags 0, APIC id), or the x2APIC's interrupt
/// command.
pub(crate) fn wake(backend: PvBackend, amd: bool, other: u32) -> Vec<u8> {
    const KVM_HC_KICK_CPU: u32 = 5;
    const X2APIC_ICR: u32 = 0x830;
    const WRMSR: &[u8] = &[0x0f, 0x30];
    const XOR_EAX_EAX: &[u8] = &[0x31, 0xc0];
    const XOR_EBX_EBX: &[u8] = &[0x31, 0xdb];
    /// VMCALL, and VMMCALL for AMD.
    const HYPERCALL: [[u8; 3]; 2] = [[0x0f, 0x01, 0xc1], [0x0f, 0x01, 0xd9]];
    match backend {
        PvBackend::Ipi => {
            let command = [mov(EAX, WAKE_VECTOR.into()), mov(ECX, X2APIC_ICR), mov(EDX, other)].concat();
            [&command, WRMSR, XOR_EAX_EAX].concat()
        }
        _ => {
            [&mov(EAX, KVM_HC_KICK_CPU), XOR_EBX_EBX, &mov(ECX, other), &HYPERCALL[usize::from(amd)]].concat()
        }
    }
}

/// Code that halts until the vCPU is woken.
pub(crate) fn sleep(backend: PvBackend) -> &'static [u8] {
    const STI_HLT_CLI: &[u8] = &[0xfb, 0xf4, 0xfa];
    const HLT: &[u8] = &[0xf4];
    if backend == PvBackend::Ipi { STI_HLT_CLI } else { HLT }
}

/// Says that it is there, then halts and reports, forever.
fn sleeper(backend: PvBackend) -> Vec<u8> {
    const JMP: u8 = 0xeb;
    let accept: &[u8] = if backend == PvBackend::Ipi { &ACCEPT_INTERRUPTS } else { &[] };
    let round = [sleep(backend), &REPORT].concat();
    [accept, &REPORT, &round, &[JMP, (round.len() as u8 + 2).wrapping_neg()]].concat()
}

const SLEEPER_CODE: u64 = PROBE_CODE;
const WAKER_CODE: u64 = PROBE_CODE + 0x100;

/// Whether `backend` works here; the reason if not. On `vm` if it has what that takes, else on `another`, where a second try is
/// too.
fn run_patiently(
    backend: PvBackend,
    vm: Option<&mut Vm>,
    another: impl Fn() -> Result<Vm, RunError>,
) -> Result<Known<()>, RunError> {
    let [first, last] = STEP_LIMITS;
    let on_another = |limit| match another() {
        Ok(mut vm) => run(&mut vm, backend, limit),
        Err(error @ RunError::System { .. }) => Ok(Err(error.to_string().into())),
        Err(error) => Err(error),
    };
    let fit = |vm: &&mut Vm| vm.has_irqchip && !vm.is_spoilt && vm.vcpus.len() >= TRIAL_VCPUS as usize;
    let verdict = match vm.filter(fit) {
        Some(vm) => run(vm, backend, first),
        None => on_another(first),
    };
    match verdict? {
        Ok(()) => Ok(Ok(())),
        Err(_) => on_another(last),
    }
}

fn run(vm: &mut Vm, backend: PvBackend, limit: Duration) -> Result<Known<()>, RunError> {
    if backend == PvBackend::Kvm && features(&vm.cpuid) & PV_UNHALT == 0 {
        return Ok(Err("this KVM does not offer to wake a halted vCPU (PV_UNHALT)".into()));
    }
    vm.memory.write(SLEEPER_CODE, &sleeper(backend));
    // It wakes vCPU 1 and answers with the result, each time that it is set here.
    vm.memory.write(WAKER_CODE, &[&wake(backend, is_amd(&vm.cpuid), 1)[..], &ANSWER].concat());
    for vcpu in &vm.vcpus {
        vm.set_system_registers(vcpu, Ring::Ring0)?;
    }
    let [waker, sleeper, ..] = vm.vcpus.as_mut_slice() else { unreachable!("a trial has two vCPUs") };
    let verdict = wake_twice(&vm.memory, sleeper, waker, backend, limit);
    vm.is_spoilt = verdict.is_err();
    Ok(verdict)
}

/// The sleeper stays in one thread: before Linux 6.13 a vCPU that changes threads waits for an RCU grace period.
fn wake_twice(
    memory: &Memory,
    sleeper: &mut KvmVcpu,
    waker: &mut KvmVcpu,
    backend: PvBackend,
    limit: Duration,
) -> Known<()> {
    let kick = match backend {
        PvBackend::Ipi => "an interrupt",
        _ => "KVM_HC_KICK_CPU",
    };
    let start = |vcpu: &KvmVcpu, rip| {
        set_start(memory, vcpu, kvm_regs { rip, ..Default::default() })
            .map_err(|error| Unknown::from(format!("registers cannot be set: {error}")))
    };
    // A thread that finds the other one gone leaves the reason to that one.
    let (ready, is_ready) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    let sleep = move || {
        start(sleeper, SLEEPER_CODE)?;
        expect(sleeper, Exit::Booted, limit, || {
            "a vCPU does not run in ring 0 with KVM's interrupt controller".into()
        })?;
        if ready.send(()).is_err() || may_go.recv().is_err() {
            return Ok(());
        }
        expect(sleeper, Exit::Booted, limit, || format!("{kick} before a HLT does not end it"))?;
        if ready.send(()).is_err() {
            return Ok(());
        }
        expect(sleeper, Exit::Booted, limit, || format!("{kick} does not wake a halted vCPU")).map(drop)
    };
    let mut wake = move || {
        let mut wake = || {
            start(waker, WAKER_CODE)?;
            expect(waker, Exit::Kick(0), limit, || format!("{kick} does not return")).map(drop)
        };
        if is_ready.recv().is_err() {
            return Ok(());
        }
        // The wake-up comes first: it must be latched.
        wake()?;
        if go.send(()).is_err() || is_ready.recv().is_err() {
            return Ok(());
        }
        // The HLT comes first, if a quiet moment is enough for it; if not, this is the first case again.
        thread::sleep(Duration::from_millis(2));
        wake()
    };
    thread::scope(|scope| {
        let asleep = thread::Builder::new()
            .spawn_scoped(scope, sleep)
            .map_err(|error| format!("the probe's thread cannot be started: {error}"))?;
        let sent = wake();
        // With its ends of the channels, so that the sleeper does not wait for what will not come.
        drop(wake);
        let woken = asleep.join().expect("a panic has ended the process");
        sent.and(woken)
    })
}
