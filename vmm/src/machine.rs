//! A guest that is ready to start: memory, vCPUs in their start state, one clock. KVM's, or this process's own.

use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;

use haltkick_hypercalls::{
    ABI_VERSION, BOOT_GO_ON, BOOT_GRACE, BOOT_PARAVIRT, BOOT_PREEMPTED_HINT, BootBlock, GuestAddress,
    USES_MEMORY,
};
use kvm_bindings::{
    CpuId, KVM_API_VERSION, KVM_MAX_CPUID_ENTRIES, Msrs, kvm_msr_entry, kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VmFd};

use crate::boot;
use crate::clock::{self, read_tsc};
use crate::config::{Engine, PvBackend, Ring, RunConfig, Sched};
use crate::error::{RunError, system};
use crate::hints::{Hints, Watcher};
use crate::image::Image;
use crate::in_kernel;
use crate::memory::Memory;
use crate::patch;
use crate::ring;
use crate::vcpu::{KvmVcpu, NativeVcpu, Vcpu};

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

/// A small guest whose registers are set by whoever probes it.
pub(crate) struct ProbeMachine {
    pub(crate) vcpus: Vec<KvmVcpu>,
    _vm: VmFd,
    // After the VM, so that it outlives it while the struct is dropped.
    pub(crate) memory: Memory,
    /// The CPUID that KVM offers.
    pub(crate) cpuid: CpuId,
    pub(crate) tsc_khz: u64,
}

/// Opens `/dev/kvm`.
pub(crate) fn open_kvm() -> Result<Kvm, RunError> {
    let kvm = Kvm::new().map_err(|error| {
        let advice = match io::Error::from(error).kind() {
            io::ErrorKind::NotFound => {
                "it does not exist: enable virtualization in the firmware, load kvm_intel or kvm_amd, pass the device through, or use --engine threads"
            }
            io::ErrorKind::PermissionDenied => "permission denied: add yourself to the group `kvm` and log in again",
            _ => "see `haltkick doctor`",
        };
        RunError::HostLacks(format!("/dev/kvm cannot be opened: {advice} ({error})"))
    })?;
    match kvm.get_api_version() {
        version if version == KVM_API_VERSION as i32 => Ok(kvm),
        version => Err(RunError::HostLacks(format!(
            "/dev/kvm speaks API version {version}, not {KVM_API_VERSION}: this kernel is too old"
        ))),
    }
}

impl ProbeMachine {
    /// One of `count` vCPUs, with KVM's interrupt controller or without. The image is there, for its interrupt handlers.
    pub(crate) fn new(image: &Image, count: u32, irqchip: bool) -> Result<Self, RunError> {
        let kvm = open_kvm()?;
        let vm = kvm.create_vm().map_err(system("create a virtual machine"))?;
        if irqchip {
            in_kernel::create_irqchip(&vm)?;
        }
        let memory = Memory::new(image.end, count, 0, 0)?;
        map_memory(&vm, &memory)?;
        load(&memory, image);
        boot::write_tables(&memory, image);
        let cpuid = offered_cpuid(&kvm)?;
        let vcpus = create_vcpus(&kvm, &vm, count, &cpuid, irqchip)?;
        vcpus.iter().for_each(|vcpu| boot::write_task_state(&memory, vcpu.id));
        let tsc_khz = tsc_khz(&vcpus[0])?;
        Ok(Self { vcpus, _vm: vm, memory, cpuid, tsc_khz })
    }

    /// Instructions a second in `ring`, by `measure`.
    pub(crate) fn rate(
        &mut self,
        ring: Ring,
        measure: fn(&Memory, &mut KvmVcpu) -> Result<f64, RunError>,
    ) -> Result<f64, RunError> {
        let vcpu = &mut self.vcpus[0];
        let mut sregs = vcpu.fd.get_sregs().map_err(system("read the reset state"))?;
        boot::set_system_registers(&mut sregs, ring, 0, self.memory.area_address(0));
        vcpu.fd.set_sregs(&sregs).map_err(system("set system registers"))?;
        measure(&self.memory, vcpu)
    }
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

    /// On `/dev/kvm`, where probes of the ring and of the back ends may run before.
    fn on_kvm(config: &RunConfig, image: &Image, chosen: Chosen) -> Result<Self, RunError> {
        let kvm = open_kvm()?;
        let most = kvm.get_max_vcpus().min(haltkick_hypercalls::MAX_VCPUS);
        if config.vcpus as usize > most {
            return Err(RunError::Usage(format!(
                "{} vCPUs are more than this KVM allows: at most {most}",
                config.vcpus
            )));
        }
        let pool_bytes = pool_bytes(config, image, chosen);
        let (ring, ring_reason) = choose_ring(config, image)?;
        let (pv_backend, pv_backend_reason) =
            in_kernel::choose(config, (ring, &ring_reason), |backend| in_kernel::probe(image, backend))?;
        let irqchip = matches!(pv_backend, PvBackend::Kvm | PvBackend::Ipi);
        if !irqchip && (config.halt_poll.is_some() || !config.hlt_exits) {
            return Err(RunError::Usage(format!(
                "--halt-poll and --hlt-exits are about vCPUs that halt in the kernel; here the VMM puts them to sleep \
                 ({pv_backend_reason})"
            )));
        }
        let vm = kvm.create_vm().map_err(system("create a virtual machine"))?;
        in_kernel::configure(&vm, config)?;
        if irqchip {
            in_kernel::create_irqchip(&vm)?;
        }
        let memory = Memory::new(image.end, config.vcpus, pool_bytes, chosen.trace_sections)?;
        map_memory(&vm, &memory)?;

        load(&memory, image);
        let patched_sites = patch_sites(config, image, chosen, &memory)?;
        boot::write_tables(&memory, image);
        let cpuid = offered_cpuid(&kvm)?;
        let vcpus = create_vcpus(&kvm, &vm, config.vcpus, &cpuid, irqchip)?;
        let tsc_khz = tsc_khz(&vcpus[0])?;
        let tsc_offset = tsc_offset(&vcpus[0]);
        let mut boot = boot_block(config, chosen, tsc_khz);
        boot.flags |= in_kernel::boot_flags(pv_backend, &cpuid);
        let boot_block = memory.write_boot_block(boot);

        let mut steal_time_refused = None;
        for vcpu in &vcpus {
            boot::write_task_state(&memory, vcpu.id);
            // Each vCPU's own: the APIC base says which one is the first.
            let mut sregs = vcpu.fd.get_sregs().map_err(system("read the reset state"))?;
            boot::set_system_registers(&mut sregs, ring, vcpu.id, memory.area_address(vcpu.id));
            if irqchip {
                in_kernel::set_x2apic(&mut sregs);
            }
            vcpu.fd.set_sregs(&sregs).map_err(system("set system registers"))?;
            let registers = boot::registers(&memory, image, vcpu.id, boot_block);
            vcpu.fd.set_regs(&registers).map_err(system("set registers"))?;
            if config.sched == Sched::Host && steal_time_refused.is_none() {
                steal_time_refused = enable_steal_time(vcpu, memory.area_address(vcpu.id)).err();
            }
        }
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
            _vm: Some(vm),
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
        if workload_entry.flags & USES_MEMORY != 0 {
            return Err(RunError::Usage(format!(
                "workload `{}` has page tables of its own, which threads have not: use --engine kvm",
                workload_entry.name
            )));
        }
        let memory = Memory::at_its_own_addresses(image.end, config.vcpus, chosen.trace_sections)?;
        load(&memory, image);
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

fn tsc_khz(vcpu: &KvmVcpu) -> Result<u64, RunError> {
    vcpu.fd.get_tsc_khz().map(u64::from).map_err(system("read the TSC frequency"))
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
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let ticks =
        |duration: std::time::Duration| (duration.as_nanos() * u128::from(tsc_khz) / 1_000_000) as u64;
    let nanoseconds = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    BootBlock {
        abi_version: ABI_VERSION,
        vcpus: config.vcpus,
        lock: chosen.lock,
        workload: chosen.workload,
        flags: flag(config.pv, BOOT_PARAVIRT)
            | flag(config.preempted_hint, BOOT_PREEMPTED_HINT)
            | flag(config.mix.go_on, BOOT_GO_ON)
            | flag(!config.grace.is_zero(), BOOT_GRACE),
        lock_count: config.lock_count,
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
    }
}

fn map_memory(vm: &VmFd, memory: &Memory) -> Result<(), RunError> {
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: memory.size(),
        userspace_addr: memory.host_base() as u64,
    };
    #[expect(unsafe_code, reason = "KVM must be told of the memory by its address")]
    // SAFETY: the region is the mapping that `memory` owns, which lives as long as the VM (`Machine` holds both).
    unsafe { vm.set_user_memory_region(region) }.map_err(system("give the guest its memory"))
}

/// Makes room for a file descriptor per vCPU.
pub(crate) fn allow_open_files(vcpus: u32) -> Result<(), RunError> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = u64::from(vcpus) + 128;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(needed));
    setrlimit(Resource::Nofile, Rlimit { current: maximum.or(Some(needed)), maximum }).map_err(|error| {
        RunError::HostLacks(format!(
            "{vcpus} vCPUs need {needed} open files, and the limit cannot be raised to that ({error}): see `ulimit -Hn`"
        ))
    })
}

pub(crate) fn offered_cpuid(kvm: &Kvm) -> Result<CpuId, RunError> {
    kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(system("ask for the CPUID that KVM offers"))
}

/// Memory for the guest's memory manager, if the workload has one.
pub(crate) fn pool_bytes(config: &RunConfig, image: &Image, chosen: Chosen) -> u64 {
    let uses_memory = image.workloads[chosen.workload as usize].flags & USES_MEMORY != 0;
    if uses_memory { config.memory_bytes } else { 0 }
}

/// Loads the image.
fn load(memory: &Memory, image: &Image) {
    image.segments.iter().for_each(|segment| memory.write(segment.address, &segment.bytes));
}

/// The ring to run in, and why.
fn choose_ring(config: &RunConfig, image: &Image) -> Result<(Ring, String), RunError> {
    let rate = if config.ring == Ring::Auto { Some(ring0_rate(image)?) } else { None };
    Ok(ring::choose(config.ring, rate))
}

/// Instructions a second in ring 0, measured once in a process.
pub(crate) fn ring0_rate(image: &Image) -> Result<f64, RunError> {
    static RING0_RATE: OnceLock<f64> = OnceLock::new();
    if let Some(rate) = RING0_RATE.get() {
        return Ok(*rate);
    }
    let rate = ProbeMachine::new(image, 1, false)?.rate(Ring::Ring0, ring::instructions_per_second)?;
    Ok(*RING0_RATE.get_or_init(|| rate))
}

fn create_vcpus(
    kvm: &Kvm,
    vm: &VmFd,
    count: u32,
    cpuid: &CpuId,
    irqchip: bool,
) -> Result<Vec<KvmVcpu>, RunError> {
    allow_open_files(count)?;
    let run_bytes = kvm.get_vcpu_mmap_size().map_err(system("ask for the size of kvm_run"))?;
    (0..count)
        .map(|id| {
            let fd = vm.create_vcpu(u64::from(id)).map_err(system("create a vCPU"))?;
            share_the_hosts_clock(&fd);
            let vcpu = KvmVcpu::new(id, fd, run_bytes).map_err(system("map kvm_run"))?;
            if irqchip {
                in_kernel::prepare(&vcpu, cpuid)?;
            } else {
                vcpu.fd.set_cpuid2(cpuid).map_err(system("set CPUID"))?;
            }
            Ok(vcpu)
        })
        .collect()
}

/// Makes the guest's TSC the host's. KVM starts a vCPU's at 0; with an offset of 0 both sides read one clock. Where
/// KVM cannot do that, only the figures that compare the two clocks suffer (start-up time; traces check for it).
pub(crate) fn share_the_hosts_clock(vcpu: &kvm_ioctls::VcpuFd) {
    let offset = 0_u64;
    let attribute = kvm_bindings::kvm_device_attr {
        group: kvm_bindings::KVM_VCPU_TSC_CTRL,
        attr: u64::from(kvm_bindings::KVM_VCPU_TSC_OFFSET),
        addr: (&raw const offset) as u64,
        flags: 0,
    };
    vmm_sys_util::ioctl_iow_nr!(
        KVM_SET_DEVICE_ATTR,
        kvm_bindings::KVMIO,
        0xe1,
        kvm_bindings::kvm_device_attr
    );
    #[expect(unsafe_code, reason = "kvm-ioctls has this attribute for devices only, not for vCPUs")]
    // SAFETY: the ioctl reads `attribute` and the eight bytes at `addr`, both of which live until it returns.
    unsafe {
        libc::ioctl(vcpu.as_raw_fd(), KVM_SET_DEVICE_ATTR(), &raw const attribute)
    };
}

/// Asks KVM to keep vCPU's steal-time record in its shared area.
fn enable_steal_time(vcpu: &KvmVcpu, area: GuestAddress) -> Result<(), String> {
    let entry =
        kvm_msr_entry { index: MSR_KVM_STEAL_TIME, data: area.0 | STEAL_TIME_ENABLE, ..Default::default() };
    let msrs = Msrs::from_entries(&[entry]).expect("one entry fits");
    match vcpu.fd.set_msrs(&msrs) {
        Ok(1) => Ok(()),
        Ok(_) => Err("KVM refuses the steal-time MSR".into()),
        Err(error) => Err(format!("KVM refuses the steal-time MSR: {error}")),
    }
}
