//! The same image under QEMU: `--engine qemu`.
//!
//! QEMU's `microvm` machine starts the image at its PVH entry, the image reads its settings from the kernel's command line
//! and runs by itself (`guest/src/bare`), and what it left in shared memory comes back through the debug console. It is put
//! where our own guests have it, so that one program judges both.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use haltkick_hypercalls::WorkloadFlags;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::guest::memory::Memory;
use crate::guest::tsc::GuestTsc;
use crate::host::affinity;
use crate::host::clock;
use crate::host::error::{RunError, system};
use crate::host::time::{Ticks, TscRate};
use crate::image::file::Image;
use crate::machine::in_kernel;
use crate::machine::in_kernel::PvBackend;
use crate::machine::ring::Ring;
use crate::machine::vm::Vm;
use crate::observe::instruments::Instruments;
use crate::observe::notes::Notes;
use crate::run::collect;
use crate::run::config::{Accelerator, Mix, RunConfig, Shape};
use crate::run::outcome::{Outcome, PreemptedSource, VcpuOutcome};
use crate::run::readings::Readings;
use crate::run::told::Chosen;
use crate::sched::Sched;
use crate::sched::guest_run::GuestRun;
use crate::sched::hints::PreemptedBy;
use crate::sched::hints::Watcher;

/// The program, unless `HALTKICK_QEMU` names another.
const PROGRAM: &str = "qemu-system-x86_64";
/// The first with everything that is used here: `microvm`, PVH, threads per emulated CPU.
const OLDEST: (u32, u32) = (5, 0);
/// Ports of the debug console and of the debug exit, here and on the guest's command line.
const CONSOLE_PORT: u16 = 0xe9;
const EXIT_PORT: u16 = 0xf4;
/// What QEMU makes of the guest's exit codes 0x10 and 0x11.
const DONE: i32 = 0x21;
const FAILED: i32 = 0x23;
/// APIC ids of the older kind, less one for everybody, and the boot CPU.
const MOST_VCPUS: u32 = 254;
/// Longest line of the guest's record, and how many may wait to be looked at.
const LONGEST_LINE: u64 = 4096;
const LINES_AT_ONCE: usize = 1024;
/// As much of the guest's own text is kept.
const CONSOLE_BYTES: usize = 64 << 10;
/// Time for everything but the window, however slow emulation is.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the guest said.
#[derive(Default)]
struct Said {
    window_ticks: u64,
    tsc_khz: u64,
    by_hypercall: bool,
    preempted_seen: bool,
    ended: bool,
    failed: Option<(bool, u32)>,
    console: String,
    start_up: Duration,
    cpu_at_open: Duration,
    cpu_at_close: Duration,
}

/// Runs the guest.
pub(crate) fn run(
    config: &RunConfig,
    image: &Image,
    chosen: Chosen,
    accelerator: Accelerator,
    stop: &AtomicBool,
    instruments: &Instruments,
) -> Result<(Outcome, Readings), RunError> {
    check(config, image, chosen, instruments)?;
    let program = find_qemu()?;
    let memory = Memory::new(image.end, config.vcpus, 0, 0)?;
    let tsc_khz = clock::tsc_khz();
    let kernel = kernel_file(image)?;
    let cpu = Cpu::choose(config, image, accelerator)?;
    let start = Instant::now();
    let mut qemu = Running(spawn(&program, config, &cpu, &kernel, tsc_khz)?);
    let said = listen(&mut qemu.0, &memory, config, start, stop)?;
    let notes = Notes::none();
    let watcher = Watcher::nothing(NOT_OURS.into());
    let guest = GuestRun::new(
        config.work(),
        (&memory, &watcher),
        image,
        GuestTsc::new(TscRate::of_khz(tsc_khz), 0),
        (0, 0),
        &notes,
    );
    if let Some((panic, vcpu)) = said.failed {
        return Err(if panic { guest.panic_report(vcpu) } else { guest.exception_report(vcpu) });
    }
    let outcome = outcome(config, image, chosen, &cpu, &guest, &said)?;
    Ok((outcome, Readings { console: said.console, ..Readings::default() }))
}

/// Why nothing is known of the vCPUs' threads.
const NOT_OURS: &str = "the vCPUs' threads are QEMU's";

/// What cannot be asked of QEMU.
fn check(
    config: &RunConfig,
    image: &Image,
    chosen: Chosen,
    instruments: &Instruments,
) -> Result<(), RunError> {
    let workload = &image.workloads[chosen.workload as usize];
    let wrong = if config.sched == Sched::Vmm {
        "its vCPUs are threads that the host schedules: use --sched host"
    } else if config.ring == Ring::Ring3 {
        "it starts the guest in ring 0: use --ring auto"
    } else if config.pv_backend == PvBackend::Vmm {
        "it has no doorbells: use --pv-backend auto, kvm or ipi"
    } else if config.preempted_by == PreemptedBy::Bpf {
        "the BPF program knows our own VMM's threads only"
    } else if config.halt_poll.is_some() || !config.pause_exits || !config.hlt_exits {
        "--halt-poll, --pause-exits and --hlt-exits are settings of our own VMM"
    } else if config.deschedule.is_some() {
        "only our own VMM deschedules on purpose"
    } else if !config.beside.is_empty() {
        "it runs one guest"
    } else if instruments.trace || instruments.profile.is_some() {
        "--trace and --profile look at vCPUs that our own VMM runs"
    } else if config.mix != (Mix { long_hold: config.mix.long_hold, ..Mix::default() }) {
        "--work and sections that are long or nested need our own VMM"
    } else if config.vcpus > MOST_VCPUS {
        "it runs 254 vCPUs at most"
    } else if workload.workload_flags().has(WorkloadFlags::USES_MEMORY) {
        "a workload that has page tables of its own needs our own VMM"
    } else {
        return Ok(());
    };
    Err(RunError::Usage(format!("--engine qemu: {wrong}")))
}

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

/// The image as a file of this process, which QEMU opens by its number here.
fn kernel_file(image: &Image) -> Result<std::fs::File, RunError> {
    use std::io::Write as _;
    #[expect(unsafe_code, reason = "rustix' file systems are not among its features here")]
    // SAFETY: a live name; on success the descriptor is new and nobody else's.
    let fd = unsafe {
        match libc::memfd_create(c"haltkick-guest".as_ptr(), libc::MFD_CLOEXEC) {
            -1 => Err(std::io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    };
    let mut file = std::fs::File::from(fd.map_err(system("make a file for the guest image"))?);
    file.write_all(image.elf()).map_err(system("write the guest image for QEMU"))?;
    Ok(file)
}

/// Starts QEMU, pinned to the run's pCPUs.
fn spawn(
    program: &str,
    config: &RunConfig,
    cpu: &Cpu,
    kernel: &std::fs::File,
    tsc_khz: u64,
) -> Result<Child, RunError> {
    let accel = match cpu.accelerator {
        Accelerator::Tcg => "tcg,thread=multi",
        Accelerator::Kvm => "kvm",
    };
    let mut command = Command::new(program);
    command
        .args([
            "-machine",
            "microvm,rtc=off,pit=off,pic=off,isa-serial=off",
            "-accel",
            accel,
            "-cpu",
            cpu.model,
        ])
        // The boot CPU is none of the vCPUs.
        .args(["-smp", &(config.vcpus + 1).to_string()])
        .args(["-m", &memory_mib(config).to_string()])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-kernel", &format!("/proc/{}/fd/{}", std::process::id(), kernel.as_raw_fd())])
        .args(["-append", &command_line(config, cpu.accelerator, tsc_khz)])
        .args(["-debugcon", "stdio"])
        .args(["-device", &format!("isa-debug-exit,iobase={EXIT_PORT:#x},iosize=4")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // Ctrl-C is for this process, which ends the other itself.
    command.process_group(0);
    let cpus = affinity::set_of(&config.cpus);
    let prepare = move || {
        // If this process dies; QEMU's parent is the thread that waits for it.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        affinity::pin_to_set(&cpus)
    };
    #[expect(unsafe_code, reason = "something is to be done between fork and exec")]
    // SAFETY: the closure makes system calls on memory of its own, and nothing else: no allocation, no locks.
    unsafe {
        command.pre_exec(prepare)
    };
    command.spawn().map_err(|source| RunError::System { what: format!("start {program}"), source })
}

/// The CPUs that QEMU is asked for.
struct Cpu {
    accelerator: Accelerator,
    model: &'static str,
    /// Why vCPUs there are woken as they are.
    kick_reason: String,
}

impl Cpu {
    /// The guest believes CPUID: a kick by hypercall is offered only where one was seen to wake a vCPU.
    ///
    /// None of KVM's has IA32_ARCH_CAPABILITIES, which says what mitigations an operating system may leave out: PVM refuses
    /// to set it, and QEMU gives up then.
    fn choose(config: &RunConfig, image: &Image, accelerator: Accelerator) -> Result<Self, RunError> {
        const OFFERED: &str = "host,-arch-capabilities,+kvm-pv-unhalt";
        const WITHHELD: &str = "host,-arch-capabilities,-kvm-pv-unhalt";
        let cpu = |model, kick_reason| Ok(Self { accelerator, model, kick_reason });
        let asked = config.pv_backend != PvBackend::Auto;
        let because = |reason: &str| if asked { "asked for".to_owned() } else { reason.to_owned() };
        if accelerator == Accelerator::Tcg {
            return cpu("max", because("QEMU's emulator offers no hypercalls"));
        }
        if config.pv_backend == PvBackend::Ipi {
            return cpu(WITHHELD, "asked for".into());
        }
        let small = || Vm::small(image, in_kernel::TRIAL_VCPUS, true);
        match in_kernel::probe(PvBackend::Kvm, true, None, small)? {
            Ok(()) => cpu(OFFERED, because("a kick by hypercall woke a halted vCPU")),
            Err(reason) if asked => {
                Err(RunError::HostLacks(format!("--pv-backend kvm: {reason}; use --pv-backend ipi")))
            }
            Err(reason) => cpu(WITHHELD, format!("{reason}; the guest sends interrupts")),
        }
    }
}

/// The image, 48 KiB for each vCPU, and what a PC has besides.
fn memory_mib(config: &RunConfig) -> u64 {
    64 + (u64::from(config.vcpus) * 48).div_ceil(1024)
}

fn command_line(config: &RunConfig, accelerator: Accelerator, tsc_khz: u64) -> String {
    let switch = |on: bool| if on { "on" } else { "off" };
    let mut line = format!(
        "console_port={CONSOLE_PORT:#x} exit_port={EXIT_PORT:#x} vcpus={} lock={} pv={} preempted_hint={} pv_backend={} \
         workload={} locks={} hold_ns={} think_ns={} spin_threshold_ns={} warmup_ns={} window_ns={} seed={} work_rate={} \
         oracle={} ordered_stamps={}",
        config.vcpus,
        config.lock,
        switch(config.pv),
        switch(config.preempted_hint),
        config.pv_backend.name(),
        config.workload,
        config.lock_count,
        config.hold.as_nanos(),
        config.think.as_nanos(),
        config.spin_threshold.as_nanos(),
        config.warmup.as_nanos(),
        config.window.as_nanos(),
        config.seed,
        config.work_rate.unwrap_or(0),
        switch(config.oracle),
        switch(config.ordered_stamps),
    );
    let shape = config.shape;
    if shape != Shape::default() {
        line += &format!(
            " exponential_think={} hold_jitter={} zipf={} arrival_ns={} footprint={} dirty={} read_percent={} read_hold_ns={}",
            switch(shape.exponential_think),
            shape.hold_jitter_percent,
            shape.zipf_hundredths,
            shape.arrivals.unwrap_or_default().as_nanos(),
            shape.footprint_lines,
            shape.dirty_lines,
            shape.read_percent,
            shape.read_hold.as_nanos(),
        );
    }
    // The emulated counter is the host's. KVM's may be scaled: there the guest measures it.
    if accelerator == Accelerator::Tcg {
        line += &format!(" tsc_khz={tsc_khz}");
    }
    line
}

/// A QEMU that does not outlive the run.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Ended or not: both calls are harmless then.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes down what the guest says, until QEMU ends.
fn listen(
    qemu: &mut Child,
    memory: &Memory,
    config: &RunConfig,
    start: Instant,
    stop: &AtomicBool,
) -> Result<Said, RunError> {
    let lines = lines_of(qemu);
    let mut said = Said::default();
    let mut refusal = None;
    let limit = config.watchdog.unwrap_or(PATIENCE) + config.warmup + config.window;
    loop {
        match lines.recv_timeout(Duration::from_millis(20)) {
            Ok(line) => match line.strip_prefix("haltkick: ") {
                Some(line) => {
                    if let Some(reason) = take_down(line, &mut said, memory, qemu.id(), start) {
                        refusal = Some(reason);
                    }
                }
                None if said.console.len() < CONSOLE_BYTES => said.console.extend([&line, "\n"]),
                None => {}
            },
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        // Relaxed: polled; nothing else is read on the strength of it.
        if stop.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        if start.elapsed() > limit {
            let seconds = start.elapsed().as_secs_f64();
            return Err(RunError::NoProgress(format!("QEMU's guest has not ended after {seconds:.1} s")));
        }
    }
    let status = qemu.wait().map_err(system("wait for QEMU"))?;
    if let Some(reason) = refusal {
        return Err(RunError::HostLacks(format!("--engine qemu: the guest says: {reason}")));
    }
    match status.code() {
        // The machine resets itself when it has no handler for a fault, and QEMU was told to end then.
        Some(0) => {
            let reason = "it reset its machine (a fault without a handler) under QEMU".into();
            Err(RunError::GuestFailed { vcpu: 0, reason })
        }
        Some(DONE) if said.ended && said.tsc_khz > 0 && said.window_ticks > 0 => Ok(said),
        Some(FAILED) if said.failed.is_some_and(|(_, vcpu)| vcpu < config.vcpus) => Ok(said),
        _ => Err(died(qemu, &status.to_string())),
    }
}

/// The guest's lines, as they come.
fn lines_of(qemu: &mut Child) -> Receiver<String> {
    let output = qemu.stdout.take().expect("QEMU's output is a pipe");
    let (sender, receiver) = sync_channel(LINES_AT_ONCE);
    std::thread::spawn(move || {
        let mut reader = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            match reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
                Ok(1..) if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_ok() => {}
                _ => return,
            }
        }
    });
    receiver
}

/// QEMU ended without a record: what it had to say about that.
fn died(qemu: &mut Child, status: &str) -> RunError {
    let mut text = String::new();
    if let Some(errors) = qemu.stderr.take() {
        let _ = errors.take(LONGEST_LINE).read_to_string(&mut text);
    }
    let reason = text.lines().find(|line| !line.contains("warning")).unwrap_or("it says nothing");
    RunError::HostLacks(format!("--engine qemu: QEMU ended with {status} before the guest did: {reason}"))
}

/// One line of the record; the reason, if it says that there was no run. See `guest/src/bare/record.rs`.
fn take_down(line: &str, said: &mut Said, memory: &Memory, qemu: u32, start: Instant) -> Option<String> {
    let mut words = line.split(' ');
    let number = |word: Option<&str>| word.and_then(|word| word.parse().ok()).unwrap_or(0);
    let hexadecimal = |word: Option<&str>| u64::from_str_radix(word.unwrap_or(""), 16).ok();
    match words.next()? {
        "booted" => said.start_up = start.elapsed(),
        "open" => said.cpu_at_open = cpu_time_of(qemu),
        "close" => {
            said.window_ticks = number(words.next());
            said.cpu_at_close = cpu_time_of(qemu);
        }
        "tsc_khz" => said.tsc_khz = number(words.next()),
        "kick" => said.by_hypercall = words.next() == Some("kvm"),
        "preempted_seen" => said.preempted_seen = true,
        "word" => {
            let (structure, index) = (words.next()?, number(words.next()) as u32);
            let (offset, value) = (hexadecimal(words.next())?, hexadecimal(words.next())?);
            memory.deposit(structure, index, offset, value);
        }
        "failed" => said.failed = Some((words.next() == Some("panic"), number(words.next()) as u32)),
        "end" => said.ended = true,
        "error" => return line.split_once(' ').map(|(_, reason)| reason.to_owned()),
        _ => {}
    }
    None
}

/// CPU time of another process, all its threads.
fn cpu_time_of(process: u32) -> Duration {
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // After the name, which may hold anything: state is field 3, user and system time are 14 and 15.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
        Some(fields.next()?.ok()? + fields.next()?.ok()?)
    };
    let per_second = rustix::param::clock_ticks_per_second();
    Duration::from_secs_f64(ticks().unwrap_or(0) as f64 / per_second as f64)
}

fn outcome(
    config: &RunConfig,
    image: &Image,
    chosen: Chosen,
    cpu: &Cpu,
    guest: &GuestRun<'_>,
    said: &Said,
) -> Result<Outcome, RunError> {
    let control = guest.memory.control();
    let window: Duration = TscRate::of_khz(said.tsc_khz).nanoseconds(Ticks(said.window_ticks)).into();
    let vcpu = |id| VcpuOutcome {
        // Relaxed, here and below: deposited by this thread.
        acquisitions: guest.area(id).results.acquisitions.load(Ordering::Relaxed),
        steal_ns: said.preempted_seen.then(|| guest.area(id).steal.steal_ns.load(Ordering::Relaxed)),
        run_ns: None,
        preemptions: 0,
        switched_out_ready: None,
        waits: None,
        kicks: None,
    };
    let seen = collect::Seen {
        config,
        image,
        guest,
        lock: chosen.lock,
        workload: chosen.workload,
        patched_sites: 0,
    };
    Ok(Outcome {
        ring: Ring::Ring0,
        ring_reason: "QEMU starts the guest in ring 0".into(),
        pv_backend: if said.by_hypercall { PvBackend::Kvm } else { PvBackend::Ipi },
        pv_backend_reason: cpu.kick_reason.clone(),
        tsc_khz: said.tsc_khz,
        work_rate: control.work_rate.load(Ordering::Relaxed),
        memory_bytes: 0,
        start_up: said.start_up,
        patched_sites: 0,
        pair_ticks: collect::pair_ticks(&seen),
        calls: image.calls(chosen.lock as usize, config.pv),
        window,
        completion: None,
        lock_cpu: None,
        cpu_time: said.cpu_at_close.saturating_sub(said.cpu_at_open),
        lost_updates: collect::check_exclusion(&seen)?,
        costs: collect::costs(&seen),
        ideal: collect::ideal(&seen),
        wait: collect::time(&seen, "wait"),
        pending_waits: Err("QEMU's guest goes on between the end of the window and the look at it".into()),
        hold: collect::time(&seen, "hold"),
        unlock: collect::time(&seen, "unlock"),
        times: collect::other_times(&seen),
        reads: collect::sum_results(&seen, |results| &results.reads),
        tsc_steps_back: collect::sum_results(&seen, |results| &results.tsc_steps_back),
        work: collect::work_speeds(&seen, said.tsc_khz),
        entered: collect::entered(&seen),
        lock_events: collect::lock_events(&seen, said.tsc_khz),
        vm_exits: Vec::new(),
        kvm_stats: Err("QEMU keeps KVM to itself".into()),
        pmu: Err("QEMU's threads are not this program's to count in: use --engine kvm".into()),
        preemptions: None,
        preempted_ns: None,
        lost_ns: None,
        hint: Some(collect::hint_samples(&seen)).filter(|hint| hint.samples > 0),
        graces: None,
        handed: None,
        injected: None,
        switches: Err(NOT_OURS.into()),
        preempted_source: match (cpu.accelerator, said.preempted_seen) {
            (_, true) => PreemptedSource::Kvm,
            (Accelerator::Tcg, false) => {
                PreemptedSource::Unavailable("QEMU's emulator has no such flag".into())
            }
            (Accelerator::Kvm, false) => {
                PreemptedSource::Unavailable("the flag was never seen set in this run".into())
            }
        },
        windows: 1,
        pinning_lost: None,
        run_delay: None,
        beside: Vec::new(),
        vcpus: (0..config.vcpus).map(vcpu).collect(),
        console: said.console.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use haltkick_hypercalls::{Control, VcpuArea};

    use super::*;

    #[test]
    fn versions_are_read_whatever_the_distribution_adds() {
        assert_eq!(version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\n"), Some((7, 2)));
        assert_eq!(version("QEMU emulator version 10.0.2\n"), Some((10, 0)));
        assert_eq!(version("bochs 2.7"), None);
    }

    #[test]
    fn words_of_the_record_that_lie_outside_are_dropped() {
        let memory = Memory::new(5 << 20, 2, 0, 0).unwrap();
        let mut said = Said::default();
        let (control, vcpu) = (size_of::<Control>(), size_of::<VcpuArea>());
        for line in [
            "word vcpu 2 0 1",
            &format!("word vcpu 0 {vcpu:x} 1"),
            "word vcpu 0 1 1",
            &format!("word control 0 {control:x} 1"),
            "word oracle 4000000000 0 1",
            "word nothing 0 0 1",
            "word vcpu",
        ] {
            assert_eq!(take_down(line, &mut said, &memory, 0, Instant::now()), None);
        }
        let work_rate = format!("word control 0 {:x} 2a", offset_of!(Control, work_rate));
        take_down(&work_rate, &mut said, &memory, 0, Instant::now());
        assert_eq!(memory.control().work_rate.load(Ordering::Relaxed), 42);
        assert_eq!(
            take_down("error so it goes", &mut said, &memory, 0, Instant::now()),
            Some("so it goes".into())
        );
    }
}
