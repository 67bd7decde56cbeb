//! A guest that is ready to start: memory, vCPUs in their start state, one clock. KVM's, or this process's own.

use haltkick_hypercalls::{BootBlock, GuestAddress};
use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VmFd;

use crate::guest::memory::Memory;
use crate::guest::placement::Placement;
use crate::host::clock::{self, read_tsc};
use crate::host::error::{Known, RunError, Unknown, system};
use crate::host::threads;
use crate::image::file::Image;
use crate::machine::vcpu::{KvmVcpu, NativeVcpu, Vcpu};
use crate::machine::vm::{Vm, open_kvm, tsc_khz};
use crate::machine::{self, Decided, PvBackend, Ring, Wanted, boot, in_kernel, ring_probe};

/// MSR_KVM_STEAL_TIME: where KVM keeps the steal-time record, and the bit that enables it.
const MSR_KVM_STEAL_TIME: u32 = 0x4b56_4d03;
const STEAL_TIME_ENABLE: u64 = 1;

pub(crate) struct Machine {
    /// Taken out by the schedulers, in order of their index.
    pub(crate) vcpus: Vec<Vcpu>,
    _vm: Option<VmFd>,
    // After the VM, so that it outlives it while the struct is dropped.
    pub(crate) memory: Memory,
    pub(crate) decided: Decided,
    pub(crate) tsc_khz: u64,
    /// Guest TSC minus the host's according to KVM, wrapping.
    pub(crate) tsc_offset: u64,
    /// Why KVM does not keep the steal-time records of a guest under the host's scheduler, if it does not.
    pub(crate) steal_time_refused: Option<Unknown>,
    pub(crate) patched_sites: usize,
}

impl Machine {
    /// Builds a machine on `/dev/kvm`, in a VM on which ring and back end are tried first. `boot` returns the guest's
    /// boot values for a clock of the given ticks per millisecond. Nothing runs yet.
    pub(crate) fn on_kvm(
        wanted: &Wanted,
        placement: &Placement,
        image: &Image,
        boot: impl FnOnce(u64) -> BootBlock,
    ) -> Result<Self, RunError> {
        let kvm = open_kvm()?;
        let most = kvm.get_max_vcpus().min(haltkick_hypercalls::MAX_VCPUS);
        if wanted.vcpus as usize > most {
            return Err(RunError::usage(format!(
                "{} vCPUs are more than this KVM allows: at most {most}",
                wanted.vcpus
            )));
        }
        let draft = |has_irqchip: bool| {
            let memory = Memory::new(image.end, wanted.vcpus, wanted.pool_bytes, wanted.trace_sections)?;
            placement.apply(&memory).map_err(system("place guest memory on NUMA nodes (--numa)"))?;
            let vm = Vm::new(&kvm, image, memory, has_irqchip)?;
            machine::apply_halts(&vm.fd, wanted.halts)?;
            Ok(vm)
        };
        let (vm, decided) = decide(wanted, image, draft)?;
        if !vm.has_irqchip && (wanted.halts.poll.is_some() || !wanted.halts.hlt_exits) {
            return Err(RunError::usage(format!(
                "--halt-poll and --hlt-exits are about vCPUs that halt in the kernel; here the VMM puts them to sleep \
                 ({})",
                decided.pv_backend_reason
            )));
        }
        let patched_sites = patch_sites(wanted, image, &vm.memory)?;
        let tsc_khz = tsc_khz(&vm.vcpus[0].fd)?;
        let tsc_offset = tsc_offset(&vm.vcpus[0]);
        let mut boot = boot(tsc_khz);
        boot.flags = boot.flags.with(in_kernel::boot_flags(decided.pv_backend, &vm.cpuid));
        set_start_state(&vm, image, decided.ring, boot)?;
        let steal_time_refused = if wanted.vmm_schedules { None } else { enable_steal_time(&vm).err() };
        let Vm { vcpus, fd, memory, .. } = vm;
        let vcpus = vcpus.into_iter().map(|vcpu| Vcpu::new(vcpu.id, vcpu)).collect();
        Ok(Self {
            vcpus,
            _vm: Some(fd),
            memory,
            decided,
            tsc_khz,
            tsc_offset,
            steal_time_refused,
            patched_sites,
        })
    }

    /// In this process. `boot` as above.
    pub(crate) fn on_threads(
        wanted: &Wanted,
        placement: &Placement,
        image: &Image,
        boot: impl FnOnce(u64) -> BootBlock,
    ) -> Result<Self, RunError> {
        let memory = Memory::at_its_own_addresses(image.end, wanted.vcpus, wanted.trace_sections)?;
        placement.apply(&memory).map_err(system("place guest memory on NUMA nodes (--numa)"))?;
        let vcpu = |memory: &Memory, id, boot_block| {
            Vcpu::new(id, NativeVcpu::new(id, memory, image.entry, boot_block))
        };
        let decided = Decided {
            ring: Ring::Ring3,
            ring_reason: "threads run in user mode".into(),
            pv_backend: PvBackend::Vmm,
            pv_backend_reason: "threads are put to sleep by the VMM".into(),
        };
        let machine = Self::without_kvm(wanted, image, memory, (decided, clock::tsc_khz()), boot, vcpu)?;
        for code in image.segments.iter().filter(|segment| segment.executable) {
            machine.memory.make_executable(code.address..code.address + code.bytes.len() as u64)?;
        }
        Ok(machine)
    }

    /// Builds a simulated machine whose counter has the given ticks per millisecond. `boot` as above.
    pub(crate) fn simulated(
        wanted: &Wanted,
        image: &Image,
        tsc_khz: u64,
        boot: impl FnOnce(u64) -> BootBlock,
    ) -> Result<Self, RunError> {
        let memory = Memory::new(image.end, wanted.vcpus, wanted.pool_bytes, wanted.trace_sections)?;
        boot::write_tables(&memory, image);
        let ring = if wanted.ring == Ring::Ring0 { Ring::Ring0 } else { Ring::Ring3 };
        let vcpu = |memory: &Memory, id, boot_block| {
            boot::write_task_state(memory, id);
            let registers = boot::simulated_registers(memory, image, (id, ring), boot_block);
            Vcpu::simulated(id, haltkick_sim::Cpu::new(id, &registers))
        };
        let decided = Decided {
            ring,
            ring_reason: "a simulated CPU runs either ring".into(),
            pv_backend: PvBackend::Vmm,
            pv_backend_reason: "vCPUs of a simulated machine are put to sleep by the VMM".into(),
        };
        Self::without_kvm(wanted, image, memory, (decided, tsc_khz), boot, vcpu)
    }

    /// Loads the image, and makes each vCPU by `vcpu`, which gets its index and the address of the boot block.
    fn without_kvm(
        wanted: &Wanted,
        image: &Image,
        memory: Memory,
        (decided, tsc_khz): (Decided, u64),
        boot: impl FnOnce(u64) -> BootBlock,
        vcpu: impl Fn(&Memory, u32, GuestAddress) -> Vcpu,
    ) -> Result<Self, RunError> {
        image.segments.iter().for_each(|segment| memory.write(segment.address, &segment.bytes));
        let patched_sites = patch_sites(wanted, image, &memory)?;
        let boot_block = memory.write_boot_block(boot(tsc_khz));
        Ok(Self {
            vcpus: (0..wanted.vcpus).map(|id| vcpu(&memory, id, boot_block)).collect(),
            _vm: None,
            memory,
            decided,
            tsc_khz,
            tsc_offset: 0,
            steal_time_refused: None,
            patched_sites,
        })
    }
}

/// Rewrites the lock's call sites in the memory of a guest that has not started, if that is asked for; how
/// many.
///
/// # Errors
/// [`RunError::Image`] when a site cannot be rewritten, or memory does not hold the code that it was checked in:
/// segments may overlap.
fn patch_sites(wanted: &Wanted, image: &Image, memory: &Memory) -> Result<usize, RunError> {
    let Some((lock, pv)) = wanted.patch else { return Ok(0) };
    let edits = image.edits(lock, pv)?;
    for edit in &edits {
        if memory.read(edit.address, edit.before.len() as u64).as_ref() != Some(&edit.before) {
            let reason =
                format!("has other code at {:#x} when it is loaded: its segments overlap", edit.address);
            return Err(RunError::Image { path: image.path.clone(), reason });
        }
        memory.write(edit.address, &edit.after);
    }
    Ok(edits.len())
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

/// Picks the ring and the back end by trying them on the VM that the guest will have: to make another one, and to get rid
/// of it, takes longer than all else. `draft` makes it, without vCPUs, with KVM's interrupt controller or without; again if
/// the first one turns out to be of the wrong kind.
fn decide(
    wanted: &Wanted,
    image: &Image,
    draft: impl Fn(bool) -> Result<Vm, RunError>,
) -> Result<(Vm, Decided), RunError> {
    let prepared = |has_irqchip| {
        let mut vm = draft(has_irqchip)?;
        vm.create_vcpus(wanted.vcpus.min(in_kernel::TRIAL_VCPUS))?;
        let rate = if wanted.ring == Ring::Auto { Some(ring_probe::ring0_rate(&mut vm)?) } else { None };
        Ok((vm, rate))
    };
    let (mut vm, rate) = match prepared(in_kernel::may_be_chosen(wanted)) {
        // A KVM that fails with its interrupt controller may do without.
        Err(error) => prepared(false).map_err(|_: RunError| error)?,
        Ok(prepared) => prepared,
    };
    let (ring, ring_reason) = machine::choose_ring(wanted.ring, rate);
    let another = || {
        if wanted.vcpus < in_kernel::TRIAL_VCPUS {
            return Vm::small(image, in_kernel::TRIAL_VCPUS, true);
        }
        let mut vm = draft(true)?;
        vm.create_vcpus(in_kernel::TRIAL_VCPUS)?;
        Ok(vm)
    };
    let (pv_backend, pv_backend_reason) = in_kernel::choose(wanted, (ring, &ring_reason), |backend| {
        in_kernel::probe(backend, wanted.halts.hlt_exits, Some(&mut vm), another)
    })?;
    let has_irqchip = matches!(pv_backend, PvBackend::Kvm | PvBackend::Ipi);
    if vm.is_spoilt || vm.has_irqchip != has_irqchip {
        vm = draft(has_irqchip)?;
    }
    vm.vcpus.iter_mut().for_each(KvmVcpu::count_from_here);
    vm.create_vcpus(wanted.vcpus)?;
    Ok((vm, Decided { ring, ring_reason, pv_backend, pv_backend_reason }))
}

/// Puts all vCPUs where the guest begins, with `boot` to read.
fn set_start_state(vm: &Vm, image: &Image, ring: Ring, boot: BootBlock) -> Result<(), RunError> {
    let boot_block = vm.memory.write_boot_block(boot);
    threads::each(0..vm.vcpus.len() as u32, |id| {
        let vcpu = &vm.vcpus[id as usize];
        vm.set_system_registers(vcpu, ring)?;
        let registers = boot::registers(&vm.memory, image, id, boot_block);
        vcpu.fd.set_regs(&registers).map_err(system("set registers"))
    })
    .map(drop)
}

/// Asks KVM to keep the steal-time records of all vCPUs in their shared areas.
fn enable_steal_time(vm: &Vm) -> Known<()> {
    vm.vcpus.iter().try_for_each(|vcpu| {
        let data = vm.memory.area_address(vcpu.id).0 | STEAL_TIME_ENABLE;
        let entry = kvm_msr_entry { index: MSR_KVM_STEAL_TIME, data, ..Default::default() };
        match vcpu.fd.set_msrs(&Msrs::from_entries(&[entry]).expect("one entry fits")) {
            Ok(1) => Ok(()),
            Ok(_) => Err("KVM refuses the steal-time MSR".into()),
            Err(error) => Err(format!("KVM refuses the steal-time MSR: {error}").into()),
        }
    })
}
