//! A vCPU of KVM: the only place that issues KVM_RUN.
//!
//! Ending a run from outside works by a signal (see `signal`), in one of two ways:
//!
//! - By `kvm_run.immediate_exit`, which the signal's handler sets in the thread that owns the vCPU. KVM_RUN takes no lock of the
//!   process then. The field is written through a raw pointer, since kvm-ioctls' `&mut` interface cannot do that soundly
//!   (rust-vmm/kvm issue 373).
//! - By a signal that the thread keeps blocked and that KVM_SET_SIGNAL_MASK opens inside KVM_RUN, for vCPUs that halt in KVM: with a
//!   signal pending KVM_RUN looks whether something has woken such a vCPU; with `immediate_exit` it does not.
//!
//! Either way a signal that comes before the ioctl ends it at once, so none is lost.
//!
//! `kvm_run` is a page that the kernel writes during the ioctl. It is held as a raw pointer and read by volatile
//! loads after the ioctl has returned.
#![expect(
    unsafe_code,
    reason = "KVM_RUN and the page it shares with the kernel; kvm-ioctls does not have KVM_GET_STATS_FD"
)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use kvm_bindings::{
    KVM_EXIT_FAIL_ENTRY, KVM_EXIT_HLT, KVM_EXIT_INTERNAL_ERROR, KVM_EXIT_INTR, KVM_EXIT_IO, KVM_EXIT_IO_OUT,
    KVM_EXIT_MMIO, KVM_EXIT_SHUTDOWN, KVM_MP_STATE_RUNNABLE, kvm_run,
};
use kvm_ioctls::VcpuFd;

use crate::host::error::{RunError, system};
use crate::host::memory::Mapping;
use crate::host::signal;
use crate::machine::vcpu::{Body, Exit};

vmm_sys_util::ioctl_io_nr!(KVM_RUN, kvm_bindings::KVMIO, 0x80);
vmm_sys_util::ioctl_iow_nr!(KVM_SET_SIGNAL_MASK, kvm_bindings::KVMIO, 0x8b, kvm_bindings::kvm_signal_mask);

/// Server of a guest's port accesses, from any of its vCPUs' threads.
pub(crate) trait Ports: Send + Sync {
    fn write(&self, port: u16, bytes: &[u8]);

    fn read(&self, port: u16, bytes: &mut [u8]);

    /// Whether the guest has switched itself off, or asked for a reset.
    fn are_off(&self) -> bool;
}

pub(crate) struct KvmVcpu {
    pub(crate) id: u32,
    /// Everything but running: registers, CPUID, MSRs.
    pub(crate) fd: VcpuFd,
    /// Server of its port and memory accesses, in a Linux guest. Others have no such devices.
    pub(crate) devices: Option<Arc<dyn Ports>>,
    /// Holds a `kvm_run`, and behind it what ports take and give.
    page: Mapping,
    /// Halts are KVM's business, and kicks are held.
    halts_in_kernel: bool,
    /// KVM's counts before the guest's own first instruction.
    stats_before: Vec<(String, u64)>,
}

impl KvmVcpu {
    /// Wraps a new vCPU whose `kvm_run` area has `run_bytes` bytes (KVM_GET_VCPU_MMAP_SIZE). `halts_in_kernel`: there is a local APIC
    /// in KVM.
    pub(crate) fn new(
        id: u32,
        fd: VcpuFd,
        run_bytes: usize,
        halts_in_kernel: bool,
    ) -> Result<Self, RunError> {
        // SAFETY: the descriptor of `fd`, which lives for longer than this.
        let file = unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) };
        let page = Mapping::shared(file, 0, run_bytes, true).map_err(system("map kvm_run"))?;
        match halts_in_kernel {
            true => open_kick_signal(file)?,
            // Threads that run vCPUs may not install a handler, by their sandbox.
            false => signal::note_kicks(),
        }
        Ok(Self { id, fd, devices: None, page, halts_in_kernel, stats_before: Vec::new() })
    }

    /// Discards the counts so far, which are not the guest's. Without counters it does nothing.
    pub(crate) fn count_from_here(&mut self) {
        self.stats_before = read_stats(&self.fd).unwrap_or_default();
    }

    /// Issues KVM_RUN, with kicks held or noted.
    fn enter(&mut self) -> io::Result<()> {
        let vcpu = self.fd.as_raw_fd();
        let enter = || {
            // (Here and elsewhere: the type of a request is another one with another C library.)
            // SAFETY: KVM_RUN takes no argument; `&mut self` says that no other thread runs this vCPU or reads its page.
            match unsafe { libc::ioctl(vcpu, KVM_RUN() as _, 0) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        if self.halts_in_kernel {
            signal::hold_kicks();
            return enter();
        }
        let run = self.page.start::<kvm_run>().as_ptr();
        // SAFETY: a byte within the mapping, which lives as long as this; only this thread writes to it.
        unsafe { signal::enter_noting(&raw mut (*run).immediate_exit, enter) }
    }

    fn parse(&self) -> Exit {
        let run = self.page.start::<kvm_run>().as_ptr();
        // SAFETY: the mapping is at least one `kvm_run` long (KVM says so) and the kernel writes it only in KVM_RUN,
        // which `&self` after `&mut self` in `run` excludes. Each union field is the one of the exit reason.
        unsafe {
            match (&raw const (*run).exit_reason).read_volatile() {
                KVM_EXIT_IO => {
                    let io = (&raw const (*run).__bindgen_anon_1.io).read_volatile();
                    match &self.devices {
                        Some(devices) => self.serve_port_access(&**devices, io),
                        None => self.parse_port_access(io),
                    }
                }
                KVM_EXIT_INTR => Exit::Interrupted,
                KVM_EXIT_HLT => Exit::Halt,
                KVM_EXIT_SHUTDOWN => Exit::Shutdown,
                KVM_EXIT_MMIO if self.devices.is_some() => {
                    // No device is there: a read gives all ones. KVM takes them in the next KVM_RUN.
                    (&raw mut (*run).__bindgen_anon_1.mmio.data).write_volatile([0xff; 8]);
                    Exit::Device
                }
                reason @ KVM_EXIT_MMIO => {
                    let mmio = (&raw const (*run).__bindgen_anon_1.mmio).read_volatile();
                    Exit::Unexpected { reason, detail: mmio.phys_addr }
                }
                reason @ KVM_EXIT_FAIL_ENTRY => {
                    let entry = (&raw const (*run).__bindgen_anon_1.fail_entry).read_volatile();
                    Exit::Unexpected { reason, detail: entry.hardware_entry_failure_reason }
                }
                reason @ KVM_EXIT_INTERNAL_ERROR => {
                    let internal = (&raw const (*run).__bindgen_anon_1.internal).read_volatile();
                    Exit::Unexpected { reason, detail: u64::from(internal.suberror) }
                }
                reason => Exit::Unexpected { reason, detail: 0 },
            }
        }
    }

    /// One access, or as many as a string instruction makes at once.
    fn serve_port_access(
        &self,
        devices: &dyn Ports,
        io: kvm_bindings::kvm_run__bindgen_ty_1__bindgen_ty_4,
    ) -> Exit {
        let (size, start) = (usize::from(io.size), io.data_offset as usize);
        let bytes = size * io.count as usize;
        if !matches!(size, 1 | 2 | 4) || start > self.page.bytes() || bytes > self.page.bytes() - start {
            return Exit::Unexpected { reason: KVM_EXIT_IO, detail: u64::from(io.port) };
        }
        let is_out = u32::from(io.direction) == KVM_EXIT_IO_OUT;
        for at in (start..start + bytes).step_by(size) {
            // SAFETY: `size` bytes within the mapping, as just checked, which are not written outside of KVM_RUN.
            let data =
                unsafe { std::slice::from_raw_parts_mut(self.page.start::<u8>().as_ptr().add(at), size) };
            if is_out {
                devices.write(io.port, data);
            } else {
                devices.read(io.port, data);
            }
        }
        if devices.are_off() { Exit::Left } else { Exit::Device }
    }

    /// A hypercall is one four-byte write; anything else is no business of this guest.
    fn parse_port_access(&self, io: kvm_bindings::kvm_run__bindgen_ty_1__bindgen_ty_4) -> Exit {
        let unexpected = Exit::Unexpected { reason: KVM_EXIT_IO, detail: u64::from(io.port) };
        let data = io.data_offset as usize;
        if u32::from(io.direction) != KVM_EXIT_IO_OUT
            || io.size != 4
            || io.count != 1
            || data + 4 > self.page.bytes()
        {
            return unexpected;
        }
        // SAFETY: four bytes within the mapping, as just checked; the kernel aligns the data area to a page.
        let value = unsafe { self.page.start::<u8>().as_ptr().add(data).cast::<u32>().read_volatile() };
        Exit::from_hypercall(io.port, value).unwrap_or(unexpected)
    }
}

impl Body for KvmVcpu {
    fn run(&mut self) -> io::Result<Exit> {
        match self.enter() {
            Ok(()) => Ok(self.parse()),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(Exit::Interrupted),
            // A vCPU that waits to be started has got an interrupt, perhaps that one.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && self.devices.is_some() => {
                Ok(Exit::Interrupted)
            }
            Err(error) => Err(error),
        }
    }

    fn kvm_stats(&self) -> io::Result<Vec<(String, u64)>> {
        let mut stats = read_stats(&self.fd)?;
        for (name, value) in &mut stats {
            let before = self.stats_before.iter().find(|(known, _)| known == name);
            *value -= before.map_or(0, |&(_, before)| before.min(*value));
        }
        Ok(stats)
    }

    fn pointers(&self) -> io::Result<(u64, u64)> {
        let registers = self.fd.get_regs()?;
        Ok((registers.rip, registers.rsp))
    }

    fn nmi(&self) -> io::Result<()> {
        Ok(self.fd.nmi()?)
    }

    fn is_halted(&self) -> bool {
        self.fd.get_mp_state().is_ok_and(|state| state.mp_state != KVM_MP_STATE_RUNNABLE)
    }
}

/// Lets the kick signal, and no other that the thread blocks, end KVM_RUN.
fn open_kick_signal(vcpu: BorrowedFd<'_>) -> Result<(), RunError> {
    /// `kvm_signal_mask` with room for the kernel's eight-byte signal set.
    #[repr(C)]
    struct Mask {
        len: u32,
        blocked: [u8; 8],
    }
    let mask = Mask { len: 8, blocked: signal::all_but_kick().to_ne_bytes() };
    // SAFETY: the ioctl reads `len` and as many bytes after it, which `Mask` has.
    match unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_SET_SIGNAL_MASK() as _, &raw const mask) } {
        ..0 => Err(system("say which signals end KVM_RUN")(io::Error::last_os_error())),
        _ => Ok(()),
    }
}

/// KVM's name of an exit reason, for messages.
pub(crate) fn reason_name(reason: u32) -> String {
    match reason {
        KVM_EXIT_IO => "KVM_EXIT_IO: access to a port that is no hypercall".into(),
        KVM_EXIT_MMIO => "KVM_EXIT_MMIO: access to an address without memory".into(),
        KVM_EXIT_FAIL_ENTRY => "KVM_EXIT_FAIL_ENTRY: the CPU refuses the guest's state".into(),
        KVM_EXIT_INTERNAL_ERROR => "KVM_EXIT_INTERNAL_ERROR: KVM could not emulate an instruction".into(),
        other => format!("KVM exit reason {other}"),
    }
}

vmm_sys_util::ioctl_io_nr!(KVM_GET_STATS_FD, kvm_bindings::KVMIO, 0xce);

/// The largest file that is taken for one: a hundred statistics of a hundred bytes.
const MOST_BYTES: u32 = 64 << 10;
/// `flags` of a descriptor: the low four bits are the type, 0 for what only ever grows.
const TYPE_MASK: u32 = 0xf;
/// Bytes of a descriptor before its name: flags, exponent, size, offset, bucket size.
const DESCRIPTOR_BYTES: u32 = 16;

/// The cumulative statistics of the vCPU (or VM) behind `fd`, by KVM's names.
fn read_stats(fd: &impl AsRawFd) -> io::Result<Vec<(String, u64)>> {
    // SAFETY: the ioctl takes no argument and returns a new file descriptor.
    let stats = unsafe { libc::ioctl(fd.as_raw_fd(), KVM_GET_STATS_FD() as _, 0) };
    if stats < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just returned to us, and not owned elsewhere.
    let file = unsafe { File::from_raw_fd(stats) };
    parse_stats(&file).map_err(|error| io::Error::new(error.kind(), format!("KVM's statistics: {error}")))
}

fn parse_stats(file: &File) -> io::Result<Vec<(String, u64)>> {
    let word = |at: u32| {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, u64::from(at)).map(|()| u32::from_ne_bytes(bytes))
    };
    // The header: flags, length of a name, number of descriptors, and where id, descriptors and data are.
    let (name_bytes, count, descriptors, data) = (word(4)?, word(8)?, word(16)?, word(20)?);
    let each = DESCRIPTOR_BYTES.saturating_add(name_bytes);
    let total = each.saturating_mul(count);
    if total > MOST_BYTES {
        return Err(io::Error::other("a header that makes no sense"));
    }
    let mut bytes = vec![0; total as usize];
    file.read_exact_at(&mut bytes, u64::from(descriptors))?;
    let fields = |descriptor: &[u8]| {
        let field = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| descriptor[at + i]));
        (field(0), u16::from_ne_bytes([descriptor[6], descriptor[7]]), field(8))
    };
    let descriptors = bytes.chunks_exact(each as usize);
    let single = descriptors.filter(|descriptor| {
        let (flags, elements, offset) = fields(descriptor);
        flags & TYPE_MASK == 0 && elements == 1 && offset < MOST_BYTES
    });
    let end = single.clone().map(|descriptor| fields(descriptor).2 + 8).max().unwrap_or(0);
    let mut block = vec![0; end as usize];
    file.read_exact_at(&mut block, u64::from(data))?;
    let value = |descriptor: &[u8]| {
        let (_, _, offset) = fields(descriptor);
        let name = &descriptor[DESCRIPTOR_BYTES as usize..];
        let used = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        let value = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| block[offset as usize + i]);
        (String::from_utf8_lossy(&name[..used]).into_owned(), u64::from_ne_bytes(value))
    };
    Ok(single.map(value).collect())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_mask_of_signals_that_cannot_be_set_is_named() {
        let no_vcpu = std::fs::File::open("/dev/null").expect("every host has one");
        let error = open_kick_signal(no_vcpu.as_fd()).expect_err("it takes no mask");
        assert_eq!(
            error.to_string(),
            "say which signals end KVM_RUN: Inappropriate ioctl for device (os error 25)"
        );
    }
}
