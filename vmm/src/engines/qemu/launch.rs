//! QEMU as a program: finding it, its command line, its CPUs, and the image as its kernel.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use haltkick_hypercalls::{NANOSECOND_TICKS_KHZ, QEMU_EXIT_PORT, REQUEST_SECTION, Request, WAKES};
use object::{Object as _, ObjectSection as _};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::guest::memory::Plain as _;
use crate::host::clock::{self, Nanoseconds};
use crate::host::cpus;
use crate::host::error::{RunError, system};
use crate::image::file::Image;
use crate::machine::vm::Vm;
use crate::machine::{PvBackend, in_kernel};
use crate::run::asked::{Accelerator, Chosen, OurGuest, boot_block};

/// The program, unless `HALTKICK_QEMU` names another.
const PROGRAM: &str = "qemu-system-x86_64";
/// The first with everything that is used here: `microvm`, PVH, threads per emulated CPU.
const OLDEST: (u32, u32) = (5, 0);

/// CPUs for KVM that offer a kick by hypercall, or not.
///
/// Both lack IA32_ARCH_CAPABILITIES, which says what mitigations an operating system may leave out: PVM refuses to set it, and QEMU gives
/// up then.
pub(super) const OFFERED: &str = "host,-arch-capabilities,+kvm-pv-unhalt";
pub(super) const WITHHELD: &str = "host,-arch-capabilities,-kvm-pv-unhalt";

/// The program, if it is there and new enough.
///
/// # Errors
/// [`RunError::HostLacks`], which says how to get it.
pub fn find_qemu() -> Result<String, RunError> {
    let program = std::env::var("HALTKICK_QEMU").unwrap_or_else(|_| PROGRAM.into());
    let lacks = |reason: String| {
        RunError::HostLacks(format!(
            "--engine qemu: {reason}; get it with `apt install qemu-system-x86` or your distribution's like, or name it in \
             HALTKICK_QEMU"
        ))
    };
    let output = Command::new(&program)
        .arg("--version")
        .output()
        .map_err(|error| lacks(format!("{program} cannot be run ({error})")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match version(&text) {
        Some(version) if version >= OLDEST => Ok(program),
        Some((major, minor)) => {
            Err(lacks(format!("{program} is version {major}.{minor}, {}.{} is needed", OLDEST.0, OLDEST.1)))
        }
        None => Err(lacks(format!("{program} does not say which version of QEMU it is"))),
    }
}

/// `QEMU emulator version 7.2.22 (...)`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_once("version ")?.1.split(['.', ' ']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// `bytes`, the guest's `what`, as a file of this process, which QEMU opens by its number here.
pub(super) fn file_for_qemu(what: &str, bytes: &[u8]) -> Result<std::fs::File, RunError> {
    use std::io::Write as _;
    #[expect(unsafe_code, reason = "rustix' file systems are not among its features here")]
    // SAFETY: a live name; on success the descriptor is new and has no other owner.
    let fd = unsafe {
        match libc::memfd_create(c"haltkick-guest".as_ptr(), libc::MFD_CLOEXEC) {
            -1 => Err(std::io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    };
    let mut file = std::fs::File::from(fd.map_err(system(&format!("make a file for the {what}")))?);
    file.write_all(bytes).map_err(system(&format!("write the {what} for QEMU")))?;
    Ok(file)
}

pub(super) const NOTHING_ELSE: [&str; 5] =
    ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"];

pub(super) fn words_for(accelerator: Accelerator) -> &'static str {
    match accelerator {
        Accelerator::Tcg => "tcg,thread=multi",
        Accelerator::Kvm => "kvm",
    }
}

/// The image, 48 KiB for each vCPU, and what a PC has besides.
fn memory_mib(asked: OurGuest<'_>) -> u32 {
    64 + (asked.guest.vcpus * 48).div_ceil(1024)
}

pub(super) fn spawn(
    program: &str,
    asked: OurGuest<'_>,
    cpu: &Cpu,
    kernel: &std::fs::File,
) -> Result<Child, RunError> {
    let mut command = Command::new(program);
    command
        .args(["-machine", "microvm,rtc=off,pit=off,pic=off,isa-serial=off"])
        .args(["-accel", words_for(cpu.accelerator), "-cpu", cpu.model])
        // The boot CPU comes in addition to the vCPUs.
        .args(["-smp", &(asked.guest.vcpus + 1).to_string()])
        .args(["-m", &memory_mib(asked).to_string()])
        .args(NOTHING_ELSE)
        .args(["-kernel", &format!("/proc/{}/fd/{}", std::process::id(), kernel.as_raw_fd())])
        .args(["-debugcon", "stdio"])
        .args(["-device", &format!("isa-debug-exit,iobase={QEMU_EXIT_PORT:#x},iosize=4")]);
    start(command, &asked.run.cpus)
}

/// Starts QEMU by this command line, pinned to these pCPUs, with its outputs as pipes.
pub(super) fn start(mut command: Command, cpus: &[u32]) -> Result<Child, RunError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Ctrl-C is for this process, which ends the other itself.
    command.process_group(0);
    let cpus = cpus::set_of(cpus);
    let prepare = move || {
        // If this process dies; QEMU's parent is the thread that waits for it.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        cpus::pin_to_set(&cpus)
    };
    #[expect(unsafe_code, reason = "something is to be done between fork and exec")]
    // SAFETY: the closure makes system calls on memory of its own, and nothing else: no allocation, no locks.
    unsafe {
        command.pre_exec(prepare)
    };
    let program = command.get_program().display().to_string();
    command.spawn().map_err(system(&format!("start {program}")))
}

pub(super) struct Cpu {
    pub(super) accelerator: Accelerator,
    model: &'static str,
    /// Why vCPUs there are woken as they are.
    pub(super) kick_reason: String,
}

impl Cpu {
    /// The guest believes CPUID: a kick by hypercall is offered only where one was seen to wake a vCPU.
    pub(super) fn choose(
        asked: OurGuest<'_>,
        image: &Image,
        accelerator: Accelerator,
    ) -> Result<Self, RunError> {
        let cpu = |model, kick_reason| Ok(Self { accelerator, model, kick_reason });
        let chosen = asked.run.pv_backend != PvBackend::Auto;
        let because = |reason: &str| if chosen { "asked for".to_owned() } else { reason.to_owned() };
        if accelerator == Accelerator::Tcg {
            return cpu("max", because("QEMU's emulator offers no hypercalls"));
        }
        if asked.run.pv_backend == PvBackend::Ipi {
            return cpu(WITHHELD, "asked for".into());
        }
        let small = || Vm::small(image, in_kernel::TRIAL_VCPUS, true);
        match in_kernel::probe(PvBackend::Kvm, true, None, small)? {
            Ok(()) => cpu(OFFERED, because("a kick by hypercall woke a halted vCPU")),
            Err(reason) if chosen => {
                Err(RunError::HostLacks(format!("--pv-backend kvm: {reason}; use --pv-backend ipi")))
            }
            Err(reason) => cpu(WITHHELD, format!("{reason}; the guest sends interrupts")),
        }
    }
}

/// The image with what is asked of it written into its section for that.
pub(super) fn asking(
    asked: OurGuest<'_>,
    image: &Image,
    chosen: Chosen,
    accelerator: Accelerator,
) -> Result<Vec<u8>, RunError> {
    let wakes = WAKES.iter().position(|&name| name == asked.run.pv_backend.name());
    let request = Request {
        boot: boot_block(asked, chosen, NANOSECOND_TICKS_KHZ),
        warmup_ns: Nanoseconds::from(asked.run.warmup).0,
        window_ns: Nanoseconds::from(asked.run.window).0,
        // The emulated counter is the host's. KVM's may be scaled: there the guest measures it.
        tsc_khz: if accelerator == Accelerator::Tcg { clock::tsc_khz() } else { 0 },
        wakes: wakes.map_or(0, |number| number as u32),
        memory_mib: memory_mib(asked),
    };
    let mut elf = image.elf().to_vec();
    let file = object::File::parse(image.elf()).ok();
    let section = file.as_ref().and_then(|file| file.section_by_name(REQUEST_SECTION)?.file_range());
    let section = section.and_then(|(start, len)| elf.get_mut(start as usize..)?.get_mut(..len as usize));
    let place = section.and_then(|section| section.get_mut(..size_of::<Request>()));
    let reason = format!("has no section {REQUEST_SECTION} for what is asked of a guest under QEMU");
    place.ok_or(RunError::Image { path: image.path.clone(), reason })?.copy_from_slice(request.bytes());
    Ok(elf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::asked::Run;

    #[test]
    fn an_image_without_a_section_for_requests_is_refused() {
        let (run, chosen) = (Run::default(), Chosen { lock: 0, workload: 0, point: None });
        let asking = |image: &Image| asking(run.our(0), image, chosen, Accelerator::Tcg);
        let mut elf = Image::embedded_elf().to_vec();
        let name = elf.windows(REQUEST_SECTION.len()).rposition(|bytes| bytes == REQUEST_SECTION.as_bytes());
        elf[name.expect("it is named") + 1] = b'H';
        let file = vmm_sys_util::tempfile::TempFile::new().expect("a scratch file");
        std::fs::write(file.as_path(), elf).expect("it can be written");
        match asking(&Image::from_file(file.as_path()).expect("an image")) {
            Err(RunError::Image { reason, .. }) => assert!(reason.contains(REQUEST_SECTION), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
}
