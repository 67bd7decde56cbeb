//! A guest that is ready to start: memory, vCPUs in their start state, one clock. KVM's, or this process's own.

use haltkick_hypercalls::{ABI_FINGERPRINT, ABI_VERSION, BootBlock, BootFlags, GuestAddress, WorkloadFlags};
use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VmFd;

use crate::guest::memory::Memory;
use crate::host::clock::{self, read_tsc};
use crate::host::error::{RunError, system};
use crate::image::file::Image;
use crate::image::patch;
use crate::machine::boot;
use crate::machine::capabilities;
use crate::machine::in_kernel;
use crate::machine::ring;
use crate::machine::vcpu::{KvmVcpu, NativeVcpu, Vcpu};
use crate::machine::vm::{Vm, open_kvm};
use crate::run::config::{Engine, PvBackend, Ring, RunConfig, Sched};
use crate::sched::hints::{Hints, Watcher};

/// MSR_KVM_STEAL_TIME: where KVM keeps the steal-time record, and the bit that enables it.
const MSR_KVM_STEAL_TIME: u32 = 0x4b56_4d03;
const STEAL_TIME_ENABLE: u64 = 1;

/// What a run takes from the image's tables, by number, and what it wants to be told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    pub(crate) lock: u32,
    pub(crate) workload: u32,
    /// Where instrumented locks are to ring; below 64.
    pub(crate) point: Option<u32>,
    /// Length of each vCPU's ring of trace records; 0: none.
    pub(crate) trace_sections: u64,
}

/// A guest that is ready to start.
pub(crate) struct Machine {
    /// Taken out by the schedulers, in order of their index.
    pub(crate) vcpus: Vec<Vcpu>,
    _vm: Option<VmFd>,
    // After the VM, so that it outlives it while the struct is dropped.
    pub(crate) memory: Memory,
    pub(crate) ring: Ring,
    pub(crate) ring_reason: String,
    pub(crate) pv_backend: PvBackend,
    pub(crate) pv_backend_reason: String,
    pub(crate) tsc_khz: u64,
    /// Guest TSC minus the host's according to KVM, wrapping.
    pub(crate) tsc_offset: u64,
    /// What watches the host's scheduler.
    pub(crate) watcher: Watcher,
    /// Who writes the `preempted` flag under the host's scheduler.
    pub(crate) hints: Hints,
    /// Call sites that were rewritten.
    pub(crate) patched_sites: usize,
}

impl Machine {
    /// Builds the guest that `config` asks for, with lock and workload by their indices. Nothing runs yet.
    pub(crate) fn new(config: &RunConfig, image: &Image, chosen: Chosen) -> Result<Self, RunError> {
        match config.engine {
            Engine::Kvm => Self::on_kvm(config, image, chosen),
            Engine::Threads => Self::on_threads(config, image, chosen),
            Engine::Qemu(_) => unreachable!("QEMU makes its own machine"),
        }
    }

    /// On `/dev/kvm`, in a VM on which ring and back end are tried first.
    fn on_kvm(config: &RunConfig, image: &Image, chosen: Chosen) -> Result<Self, RunError> {
        let kvm = open_kvm()?;
        let most = kvm.get_max_vcpus().min(haltkick_hypercalls::MAX_VCPUS);
        if config.vcpus as usize > most {
            return Err(RunError::Usage(format!(
                "{} vCPUs are more than this KVM allows: at most {most}",
                config.vcpus
            )));
        }
        in_kernel::check(config)?;
        let pool_bytes = pool_bytes(config, image, chosen);
        let draft = |has_irqchip: bool| {
            let memory = Memory::new(image.end, config.vcpus, pool_bytes, chosen.trace_sections)?;
            let vm = Vm::new(&kvm, image, memory, has_irqchip)?;
            capabilities::configure(&vm.fd, config)?;
            Ok(vm)
        };
        let Decided { vm, ring, ring_reason, pv_backend, pv_backend_reason } = decide(config, image, draft)?;
        if !vm.has_irqchip && (config.halt_poll.is_some() || !config.hlt_exits) {
            return Err(RunError::Usage(format!(
                "--halt-poll and --hlt-exits are about vCPUs that halt in the kernel; here the VMM puts them to sleep \
                 ({pv_backend_reason})"
            )));
        }
        let patched_sites = patch_sites(config, image, chosen, &vm.memory)?;
        let tsc_khz = vm.tsc_khz()?;
        let tsc_offset = tsc_offset(&vm.vcpus[0]);
        let mut boot = boot_block(config, chosen, tsc_khz);
        boot.flags = boot.flags.with(in_kernel::boot_flags(pv_backend, &vm.cpuid));
        set_start_state(&vm, image, ring, boot)?;
        let steal_time_refused = match config.sched {
            Sched::Host => enable_steal_time(&vm).err(),
            Sched::Vmm => None,
        };
        let Vm { vcpus, fd, memory, .. } = vm;
        let mut watcher = Watcher::new(config, &memory);
        let hints = match config.sched {
            Sched::Vmm => Hints::Nobody("the VMM's own scheduler writes the flag".into()),
            Sched::Host => {
                Hints::choose(config.preempted_by, steal_time_refused, &memory, || watcher.for_flags())
            }
        };
        let vcpus = vcpus.into_iter().map(Vcpu::from).collect();
        Ok(Self {
            vcpus,
            _vm: Some(fd),
            memory,
            ring,
            ring_reason,
            pv_backend,
            pv_backend_reason,
            tsc_khz,
            tsc_offset,
            watcher,
            hints,
            patched_sites,
        })
    }

    /// In this process.
    fn on_threads(config: &RunConfig, image: &Image, chosen: Chosen) -> Result<Self, RunError> {
        let most = haltkick_hypercalls::MAX_VCPUS as u32;
        if config.vcpus > most {
            return Err(RunError::Usage(format!(
                "{} vCPUs are more than an image has room for: at most {most}",
                config.vcpus
            )));
        }
        if config.ring == Ring::Ring0 {
            return Err(RunError::Usage("threads run in ring 3: use --ring auto, or --engine kvm".into()));
        }
        if matches!(config.pv_backend, PvBackend::Kvm | PvBackend::Ipi) {
            let asked = config.pv_backend.name();
            return Err(RunError::Usage(format!("--pv-backend {asked} is KVM's: use --engine kvm")));
        }
        let workload_entry = &image.workloads[chosen.workload as usize];
        if workload_entry.workload_flags().has(WorkloadFlags::USES_MEMORY) {
            return Err(RunError::Usage(format!(
                "workload `{}` has page tables of its own, which threads have not: use --engine kvm",
                workload_entry.name
            )));
        }
        let memory = Memory::at_its_own_addresses(image.end, config.vcpus, chosen.trace_sections)?;
        image.segments.iter().for_each(|segment| memory.write(segment.address, &segment.bytes));
        let patched_sites = patch_sites(config, image, chosen, &memory)?;
        for code in image.segments.iter().filter(|segment| segment.executable) {
            memory.make_executable(code.address..code.address + code.bytes.len() as u64)?;
        }
        let tsc_khz = clock::tsc_khz();
        let boot_block = memory.write_boot_block(boot_block(config, chosen, tsc_khz));
        let watcher = Watcher::new(config, &memory);
        let vcpus = (0..config.vcpus).map(|id| {
            let stack = memory.stack_top(id) - 8;
            NativeVcpu::new(id, memory.mapped(), image.entry, boot_block, stack, memory.area_address(id))
                .into()
        });
        Ok(Self {
            vcpus: vcpus.collect(),
            _vm: None,
            memory,
            ring: Ring::Ring3,
            ring_reason: "threads run in user mode".into(),
            pv_backend: PvBackend::Vmm,
            pv_backend_reason: "threads are put to sleep by the VMM".into(),
            tsc_khz,
            tsc_offset: 0,
            watcher,
            hints: Hints::Nobody("threads have no hypervisor that could write the flag".into()),
            patched_sites,
        })
    }
}

/// Rewrites the lock's call sites, if that is asked for; how many.
fn patch_sites(
    config: &RunConfig,
    image: &Image,
    chosen: Chosen,
    memory: &Memory,
) -> Result<usize, RunError> {
    if config.patch { patch::apply(image, chosen.lock as usize, config.pv, memory) } else { Ok(0) }
}

/// Guest TSC minus the host's; 0 where KVM does not tell, as if they were one.
fn tsc_offset(vcpu: &KvmVcpu) -> u64 {
    const MSR_TSC: u32 = 0x10;
    let before = read_tsc();
    let Ok(mut msrs) = Msrs::from_entries(&[kvm_msr_entry { index: MSR_TSC, ..Default::default() }]) else {
        return 0;
    };
    match vcpu.fd.get_msrs(&mut msrs) {
        Ok(1) => msrs.as_slice()[0].data.wrapping_sub(before.midpoint(read_tsc())),
        _ => 0,
    }
}

fn boot_block(config: &RunConfig, chosen: Chosen, tsc_khz: u64) -> BootBlock {
    let shape = config.shape;
    let ticks =
        |duration: std::time::Duration| (duration.as_nanos() * u128::from(tsc_khz) / 1_000_000) as u64;
    let nanoseconds = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    BootBlock {
        abi_version: ABI_VERSION,
        vcpus: config.vcpus,
        lock: chosen.lock,
        workload: chosen.workload,
        flags: BootFlags::NONE
            .with_if(config.pv, BootFlags::PARAVIRT)
            .with_if(config.preempted_hint, BootFlags::PREEMPTED_HINT)
            .with_if(config.mix.go_on, BootFlags::GO_ON)
            .with_if(!config.grace.is_zero(), BootFlags::GRACE)
            .with_if(config.oracle, BootFlags::ORACLE)
            .with_if(config.ordered_stamps, BootFlags::ORDERED_STAMPS)
            .with_if(shape.exponential_think, BootFlags::EXPONENTIAL_THINK),
        lock_count: config.lock_count,
        fingerprint: ABI_FINGERPRINT,
        vcpu_areas: GuestAddress(0),
        control: GuestAddress(0),
        oracles: GuestAddress(0),
        trace_rings: GuestAddress(0),
        trace_sections: 0,
        tsc_khz,
        hold_ns: nanoseconds(config.hold),
        think_ns: nanoseconds(config.think),
        work_rate: config.work_rate.unwrap_or(0),
        spin_threshold_ticks: ticks(config.spin_threshold),
        seed: config.seed,
        page_table: GuestAddress(0),
        pool: GuestAddress(0),
        pool_bytes: 0,
        slice_margin_ticks: ticks(config.slice_margin),
        preempted_flags: GuestAddress(0),
        points: chosen.point.map_or(0, |point| 1 << point),
        work_sections: config.mix.work_sections.unwrap_or(0),
        long_hold_ns: nanoseconds(config.mix.long_hold),
        long_one_in: config.mix.long_one_in,
        nested_one_in: config.mix.nested_one_in,
        entries: GuestAddress(0),
        read_hold_ns: nanoseconds(shape.read_hold),
        arrival_ticks: shape.arrivals.map_or(0, ticks),
        read_percent: shape.read_percent,
        hold_jitter_percent: shape.hold_jitter_percent,
        zipf_hundredths: shape.zipf_hundredths,
        footprint_lines: shape.footprint_lines,
        dirty_lines: shape.dirty_lines,
        reserved: 0,
    }
}

/// Memory for the guest's memory manager, if the workload has one.
pub(crate) fn pool_bytes(config: &RunConfig, image: &Image, chosen: Chosen) -> u64 {
    let uses_memory =
        image.workloads[chosen.workload as usize].workload_flags().has(WorkloadFlags::USES_MEMORY);
    if uses_memory { config.memory_bytes } else { 0 }
}

/// A run's VM, and what was found out on it before its guest starts.
struct Decided {
    vm: Vm,
    ring: Ring,
    ring_reason: String,
    pv_backend: PvBackend,
    pv_backend_reason: String,
}

/// Picks the ring and the back end by trying them on the VM that the guest will have: to make another one, and to get rid
/// of it, takes longer than all else. `draft` makes it, without vCPUs, with KVM's interrupt controller or without; again if
/// the first one turns out to be of the wrong kind.
fn decide(
    config: &RunConfig,
    image: &Image,
    draft: impl Fn(bool) -> Result<Vm, RunError>,
) -> Result<Decided, RunError> {
    let prepared = |has_irqchip| {
        let mut vm = draft(has_irqchip)?;
        vm.create_vcpus(config.vcpus.min(in_kernel::TRIAL_VCPUS))?;
        let rate = if config.ring == Ring::Auto { Some(ring::ring0_rate(&mut vm)?) } else { None };
        Ok((vm, rate))
    };
    let (mut vm, rate) = match prepared(in_kernel::may_be_chosen(config)) {
        // A KVM that fails with its interrupt controller may do without.
        Err(error) => prepared(false).map_err(|_: RunError| error)?,
        Ok(prepared) => prepared,
    };
    let (ring, ring_reason) = ring::choose(config.ring, rate);
    let another = || {
        if config.vcpus < in_kernel::TRIAL_VCPUS {
            return Vm::small(image, in_kernel::TRIAL_VCPUS, true);
        }
        let mut vm = draft(true)?;
        vm.create_vcpus(in_kernel::TRIAL_VCPUS)?;
        Ok(vm)
    };
    let (pv_backend, pv_backend_reason) = in_kernel::choose(config, (ring, &ring_reason), |backend| {
        in_kernel::probe(backend, config.hlt_exits, Some(&mut vm), another)
    })?;
    let has_irqchip = matches!(pv_backend, PvBackend::Kvm | PvBackend::Ipi);
    if vm.is_spoilt || vm.has_irqchip != has_irqchip {
        vm = draft(has_irqchip)?;
    }
    vm.vcpus.iter_mut().for_each(KvmVcpu::count_from_here);
    vm.create_vcpus(config.vcpus)?;
    Ok(Decided { vm, ring, ring_reason, pv_backend, pv_backend_reason })
}

/// Puts all vCPUs where the guest begins, with `boot` to read.
fn set_start_state(vm: &Vm, image: &Image, ring: Ring, boot: BootBlock) -> Result<(), RunError> {
    let boot_block = vm.memory.write_boot_block(boot);
    vm.vcpus.iter().try_for_each(|vcpu| {
        vm.set_system_registers(vcpu, ring)?;
        let registers = boot::registers(&vm.memory, image, vcpu.id, boot_block);
        vcpu.fd.set_regs(&registers).map_err(system("set registers"))
    })
}

/// Asks KVM to keep the steal-time records of all vCPUs in their shared areas.
fn enable_steal_time(vm: &Vm) -> Result<(), String> {
    vm.vcpus.iter().try_for_each(|vcpu| {
        let data = vm.memory.area_address(vcpu.id).0 | STEAL_TIME_ENABLE;
        let entry = kvm_msr_entry { index: MSR_KVM_STEAL_TIME, data, ..Default::default() };
        match vcpu.fd.set_msrs(&Msrs::from_entries(&[entry]).expect("one entry fits")) {
            Ok(1) => Ok(()),
            Ok(_) => Err("KVM refuses the steal-time MSR".into()),
            Err(error) => Err(format!("KVM refuses the steal-time MSR: {error}")),
        }
    })
}
