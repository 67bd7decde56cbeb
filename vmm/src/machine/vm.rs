//! A VM of KVM with the image in its memory and nothing running yet: a run's own, or a small one that something is tried on.
//! With KVM's interrupt controllers its vCPUs can halt and be woken in the kernel.

use std::io;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use kvm_bindings::{
    CpuId, KVM_API_VERSION, KVM_CAP_SPLIT_IRQCHIP, KVM_CAP_X2APIC_API, KVM_MAX_CPUID_ENTRIES,
    KVM_MP_STATE_RUNNABLE, KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK, KVM_X2APIC_API_USE_32BIT_IDS,
    kvm_mp_state, kvm_regs, kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VmFd};
use vm_memory::{GuestMemoryBackend as _, GuestMemoryMmap};

use crate::guest::memory::Memory;
use crate::host::clock::now_ns;
use crate::host::error::{Known, RunError, system};
use crate::host::signal::{self, KickTimer};
use crate::host::threads;
use crate::image::file::Image;
use crate::machine::vcpu::{Body as _, Exit, KvmVcpu};
use crate::machine::{Ring, boot, enable};

/// A VM with its memory, the tables that all vCPUs share, and the vCPUs it has so far.
pub(crate) struct Vm {
    /// In order of their index.
    pub(crate) vcpus: Vec<KvmVcpu>,
    pub(crate) fd: VmFd,
    // After the VM, so that it outlives it while the struct is dropped.
    pub(crate) memory: Memory,
    pub(crate) cpuid: CpuId,
    pub(crate) has_irqchip: bool,
    /// Whether a trial failed on it: the state of its vCPUs is unknown then.
    pub(crate) is_spoilt: bool,
    /// Bytes of `kvm_run`.
    run_bytes: usize,
}

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
    check_api_version(kvm.get_api_version(), io::Error::last_os_error)?;
    Ok(kvm)
}

/// Checks the result of KVM_GET_API_VERSION, a version or a negative number; `why` returns the kernel's error then.
fn check_api_version(answer: i32, why: impl FnOnce() -> io::Error) -> Result<(), RunError> {
    match answer {
        ..0 => Err(system("ask /dev/kvm for its API version")(why())),
        version if version == KVM_API_VERSION as i32 => Ok(()),
        version => Err(RunError::HostLacks(format!(
            "/dev/kvm speaks API version {version}, not {KVM_API_VERSION}: this kernel is too old"
        ))),
    }
}

impl Vm {
    /// One without vCPUs, with KVM's interrupt controller or without.
    pub(crate) fn new(kvm: &Kvm, image: &Image, memory: Memory, has_irqchip: bool) -> Result<Self, RunError> {
        let fd = kvm.create_vm().map_err(system("create a virtual machine"))?;
        if has_irqchip {
            create_local_apics(&fd)?;
        }
        map_memory(&fd, &memory.map)?;
        image.segments.iter().for_each(|segment| memory.write(segment.address, &segment.bytes));
        boot::write_tables(&memory, image);
        let cpuid = offered_cpuid(kvm)?;
        let run_bytes = kvm.get_vcpu_mmap_size().map_err(system("ask for the size of kvm_run"))?;
        Ok(Self { vcpus: Vec::new(), fd, memory, cpuid, has_irqchip, is_spoilt: false, run_bytes })
    }

    /// One of `vcpus` vCPUs for a trial, with no more memory than those need.
    pub(crate) fn small(image: &Image, vcpus: u32, has_irqchip: bool) -> Result<Self, RunError> {
        let memory = Memory::new(image.end, vcpus, 0, 0)?;
        let mut vm = Self::new(&open_kvm()?, image, memory, has_irqchip)?;
        vm.create_vcpus(vcpus)?;
        Ok(vm)
    }

    /// Creates what is missing of the first `count` vCPUs.
    pub(crate) fn create_vcpus(&mut self, count: u32) -> Result<(), RunError> {
        let there = self.vcpus.len() as u32;
        allow_open_files(count.saturating_sub(there))?;
        let created = threads::each(there..count, |id| self.create_vcpu(id))?;
        self.vcpus.extend(created);
        Ok(())
    }

    fn create_vcpu(&self, id: u32) -> Result<KvmVcpu, RunError> {
        let fd = self.fd.create_vcpu(u64::from(id)).map_err(system("create a vCPU"))?;
        share_the_hosts_clock(&fd);
        let vcpu = KvmVcpu::new(id, fd, self.run_bytes, self.has_irqchip)?;
        if self.has_irqchip {
            prepare_local_apic(&vcpu, &self.cpuid)?;
        } else {
            vcpu.fd.set_cpuid2(&self.cpuid).map_err(system("set CPUID"))?;
        }
        boot::write_task_state(&self.memory, id);
        Ok(vcpu)
    }

    /// Puts a vCPU into the start state of `ring`, but for its general registers.
    pub(crate) fn set_system_registers(&self, vcpu: &KvmVcpu, ring: Ring) -> Result<(), RunError> {
        // Each vCPU's own: the APIC base says which one is the first.
        let mut sregs = vcpu.fd.get_sregs().map_err(system("read the reset state"))?;
        boot::set_system_registers(&mut sregs, ring, vcpu.id, self.memory.area_address(vcpu.id));
        if self.has_irqchip {
            // Before the local APIC is in x2APIC mode, KVM delivers no kick to it.
            const ENABLED_X2APIC: u64 = 0xc00;
            sregs.apic_base |= ENABLED_X2APIC;
        }
        vcpu.fd.set_sregs(&sregs).map_err(system("set system registers"))
    }
}

pub(crate) fn tsc_khz(vcpu: &kvm_ioctls::VcpuFd) -> Result<u64, RunError> {
    // For this request, kvm-ioctls takes the result, -1, for the number of the error.
    let why = |_| system("read the TSC frequency")(io::Error::last_os_error());
    vcpu.get_tsc_khz().map(u64::from).map_err(why)
}

/// Gives a guest its memory, which is one region. The caller keeps it mapped as long as `vm` is there.
pub(crate) fn map_memory(vm: &VmFd, memory: &GuestMemoryMmap) -> Result<(), RunError> {
    let whole = memory.iter().next().expect("one region was mapped");
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: whole.size() as u64,
        userspace_addr: whole.as_ptr() as u64,
    };
    #[expect(unsafe_code, reason = "KVM must be told of the memory by its address")]
    // SAFETY: the region is the mapping that `memory` owns or has from its owner, which lives as long as the VM: `Vm` holds both, `Machine`
    // after it, and `LinuxMachine`.
    unsafe { vm.set_user_memory_region(region) }.map_err(system("give the guest its memory"))
}

/// Makes room for a file descriptor per vCPU, besides those that are open.
pub(crate) fn allow_open_files(vcpus: u32) -> Result<(), RunError> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    let needed = open + u64::from(vcpus) + 128;
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
        libc::ioctl(vcpu.as_raw_fd(), KVM_SET_DEVICE_ATTR() as _, &raw const attribute)
    };
}

/// Gives a VM without vCPUs an interrupt controller in the kernel: local APICs only, with 32-bit ids.
fn create_local_apics(vm: &VmFd) -> Result<(), RunError> {
    enable(vm, KVM_CAP_SPLIT_IRQCHIP, 24).map_err(system("create an interrupt controller in the kernel"))?;
    let_apic_ids_have_32_bits(vm)
}

fn let_apic_ids_have_32_bits(vm: &VmFd) -> Result<(), RunError> {
    let x2apic = KVM_X2APIC_API_USE_32BIT_IDS | KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK;
    enable(vm, KVM_CAP_X2APIC_API, u64::from(x2apic)).map_err(system("let APIC ids have 32 bits"))
}

/// Gives a VM without vCPUs all interrupt controllers that KVM has: local APICs and an I/O APIC.
pub(crate) fn create_interrupt_controllers(vm: &VmFd) -> Result<(), RunError> {
    /// Pages that VMX may need for itself, below the usual place of the firmware; outside all memory.
    const TSS_PAGES: usize = 0xfffb_d000;
    vm.set_tss_address(TSS_PAGES).map_err(system("say where KVM may keep pages of its own"))?;
    vm.create_irq_chip().map_err(system("create the interrupt controllers in the kernel"))?;
    // A vCPU's id is its APIC's id; interrupts to APIC 255 are for that one alone.
    let_apic_ids_have_32_bits(vm)
}

/// Gives a new vCPU its APIC id, which is its index, and lets it start without being sent a start-up interrupt.
fn prepare_local_apic(vcpu: &KvmVcpu, cpuid: &CpuId) -> Result<(), RunError> {
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

/// Lets a vCPU that something is tried on begin with these registers, on its stack.
pub(crate) fn set_start(
    memory: &Memory,
    vcpu: &KvmVcpu,
    registers: kvm_regs,
) -> Result<(), kvm_ioctls::Error> {
    let (rsp, rflags) = (memory.stack_top(vcpu.id), boot::START_FLAGS);
    vcpu.fd.set_regs(&kvm_regs { rsp, rflags, ..registers })
}

/// Runs `vcpu` until `wanted`, and returns how long that took; anything else, or nothing in time, is the failure that `otherwise` names.
pub(crate) fn expect(
    vcpu: &mut KvmVcpu,
    wanted: Exit,
    limit: Duration,
    otherwise: impl Fn() -> String,
) -> Known<Duration> {
    signal::block_kick();
    let timer = KickTimer::new().map_err(|error| format!("no timer for the probe: {error}"))?;
    let limit_ns = limit.as_nanos() as u64;
    timer.set(now_ns() + limit_ns, limit_ns);
    let start = Instant::now();
    let verdict = loop {
        match vcpu.run() {
            Ok(exit) if exit == wanted => break Ok(start.elapsed()),
            Ok(Exit::Interrupted) if start.elapsed() < limit => signal::take_kick(),
            Ok(Exit::Interrupted) => break Err(otherwise().into()),
            Ok(exit) => break Err(format!("{} (the probe ended with {exit:?})", otherwise()).into()),
            Err(error) => break Err(format!("{} (KVM_RUN: {error})", otherwise()).into()),
        }
    };
    drop(timer);
    signal::take_kick();
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_a_version_is_not_called_too_old() {
        let said = |answer| {
            let why = || io::Error::from_raw_os_error(libc::EMFILE);
            check_api_version(answer, why).map_err(|error| error.to_string())
        };
        assert_eq!(said(KVM_API_VERSION as i32), Ok(()));
        assert_eq!(
            said(-1),
            Err("ask /dev/kvm for its API version: Too many open files (os error 24)".into())
        );
        assert_eq!(said(11), Err("/dev/kvm speaks API version 11, not 12: this kernel is too old".into()));
    }
}
