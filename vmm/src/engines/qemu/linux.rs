//! A Linux kernel under QEMU, on KVM or its emulator. Such a guest is known by its console only: QEMU does not say whether the
//! guest switched its machine off or reset it. So it must be one whose first process tells its own end (`RamDisk::Program`).

use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::process::{Child, ChildStdout, Command};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::launch::{self, file_for_qemu, find_qemu};
use super::record::{cpu_time_of, died, words_of};
use super::{DESCHEDULES_NONE, HOST_SCHEDULES, Running, refuse};
use crate::engines::linux::console::Console;
use crate::engines::linux::kernel::ELF_COMMAND_LINE;
use crate::engines::linux::load::command_line;
use crate::engines::linux::{POLL, archive, found, wait_for_end};
use crate::host::clock;
use crate::host::error::{RunError, system};
use crate::host::threads::lock;
use crate::observe::Instruments;
use crate::run::asked::{Accelerator, Guest, Linux, Run};
use crate::run::outcome::{Found, LinuxEnd, LinuxOutcome};
use crate::sched::Sched;

/// How long the rest of the console may take to come after QEMU's end.
const REST: Duration = Duration::from_secs(1);

/// Boots the kernel of `run`. Ends when QEMU does.
///
/// # Errors
/// What keeps the guest from being started, and requests to stop. What becomes of it afterwards is an outcome.
pub(crate) fn run(
    run: &Run,
    (asked, linux): (&Guest, &Linux),
    accelerator: Accelerator,
    stop: &AtomicBool,
    instruments: &Instruments,
) -> Result<Found, RunError> {
    refuse(&[
        (run.rules.sched == Sched::Vmm, HOST_SCHEDULES),
        (run.deschedule.is_some(), DESCHEDULES_NONE),
        (
            run.halts.poll.is_some() || !run.halts.pause_exits,
            "--halt-poll and --pause-exits are settings of our own VMM",
        ),
    ])?;
    let Some(program) = linux.program() else {
        return Err(RunError::usage(
            "--engine qemu boots a kernel only for a workload inside, which says how it ended: add --workload-inside 'run --lock ticket', \
             which needs no --initrd, or take --engine kvm, where yours boots",
        ));
    };
    let qemu = find_qemu()?;
    let disk = file_for_qemu("initial RAM disk", &archive::of_program(program)?)?;
    let command_line = command_line(&linux.append, ELF_COMMAND_LINE)?;
    let mut command = Command::new(&qemu);
    let cpu = match (accelerator, asked.pv) {
        (Accelerator::Tcg, _) => "max",
        (Accelerator::Kvm, true) => launch::OFFERED,
        (Accelerator::Kvm, false) => launch::WITHHELD,
    };
    command
        .args(["-accel", launch::words_for(accelerator), "-cpu", cpu])
        .args(["-smp", &asked.vcpus.to_string()])
        .args(["-m", &format!("{}M", linux.memory_bytes >> 20)])
        .args(launch::NOTHING_ELSE)
        .arg("-kernel")
        .arg(&linux.kernel)
        .args(["-initrd", &format!("/proc/{}/fd/{}", std::process::id(), disk.as_raw_fd())])
        .args(["-append", &command_line])
        .args(["-serial", "stdio"]);
    let console = instruments.linux.clone().unwrap_or_default();
    let console = Arc::new(Mutex::new(Console::new(console, linux.marker.clone())?));
    let start = Instant::now();
    let mut qemu = Running(launch::start(command, &run.cpus)?);
    let (end, cpu_time) = watch(&mut qemu.0, &console, linux.limit, start, stop)?;
    let length = start.elapsed();
    let (user_space, complaints) = lock(&console).finish(start);
    let outcome = LinuxOutcome {
        end,
        run: length,
        user_space,
        complaints,
        obstacle: (accelerator == Accelerator::Tcg).then(|| "QEMU's emulator ran the kernel".to_owned()),
        command_line,
        pv_features: vec![],
        tsc_khz: clock::tsc_khz(),
        vm_exits: vec![],
        kvm_stats: Err(super::NOT_OURS.into()),
        vcpus: vec![],
        pinning_lost: None,
    };
    Ok(found(asked, outcome, cpu_time))
}

/// Waits for QEMU's end, which it hastens where the guest panics or its time is over. Returns the guest's end and the CPU time.
fn watch(
    qemu: &mut Child,
    console: &Arc<Mutex<Console>>,
    limit: Option<Duration>,
    start: Instant,
    stop: &AtomicBool,
) -> Result<(LinuxEnd, Duration), RunError> {
    let output = qemu.stdout.take().expect("QEMU's output is a pipe");
    let words = words_of(qemu);
    let passes_on = {
        let console = Arc::clone(console);
        std::thread::spawn(move || pass_on(output, &console))
    };
    let panicked_before = |length| lock(console).panicked_before(length);
    let mut cpu_time = Duration::ZERO;
    let looks = || {
        // Read while it is there: a process that was waited for has none.
        cpu_time = cpu_time.max(cpu_time_of(qemu.id()));
        let Some(status) = qemu.try_wait().map_err(system("wait for QEMU"))? else { return Ok(None) };
        // A child of its own may keep the pipe open.
        let ended = Instant::now();
        while !passes_on.is_finished() && ended.elapsed() < REST {
            std::thread::sleep(POLL);
        }
        match (status.success(), panicked_before(Duration::ZERO)) {
            (_, true) => Ok(Some(LinuxEnd::Panic)),
            (true, false) => Ok(Some(LinuxEnd::PowerOff)),
            (false, false) => Err(died(&words, &status.to_string())),
        }
    };
    let end = wait_for_end(looks, panicked_before, (start, limit), stop)?;
    Ok((end, cpu_time))
}

/// Reads to the end, whatever the guest writes: QEMU would stand still at a full pipe.
fn pass_on(mut output: ChildStdout, console: &Mutex<Console>) {
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = output.read(&mut bytes) {
        _ = lock(console).write_all(&bytes[..length]);
    }
}
