//! A Linux guest: an unmodified kernel under the same schedulers and the same random descheduling as our own guest, so
//! that its locks can be put under the same stress.
//!
//! The guest's inside is unknown. The schedulers' books are kept all the same; to them every vCPU is at work, neither in a section
//! nor waiting for one.

mod acpi;
pub(crate) mod archive;
pub(crate) mod console;
mod cpu;
pub(crate) mod devices;
pub(crate) mod kernel;
pub(crate) mod load;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvm_bindings::KVM_CAP_HALT_POLL;
use kvm_ioctls::VmFd;

use crate::guest::tsc::GuestTsc;
use crate::host::clock::{Clock, TscRate, now_ns, process_cpu_time};
use crate::host::error::{Refused, RunError, system};
use crate::host::memory::available;
use crate::image::file::Image;
use crate::machine::vcpu::{KvmVcpu, Vcpu};
use crate::machine::vm::{self, Vm, allow_open_files, offered_cpuid, open_kvm, share_the_hosts_clock};
use crate::machine::{self, ring_probe};
use crate::observe::notes::Notes;
use crate::observe::{Instruments, LinuxConsole};
use crate::run::asked::{Guest, Linux, Run};
use crate::run::outcome::{AnyOutcome, Ended, Found, LinuxEnd, LinuxOutcome, VcpuOutcome};
use crate::run::{check, collect};
use crate::sched::deschedule::Plan;
use crate::sched::guest_run::GuestRun;
use crate::sched::hints::Watcher;
use crate::sched::run_delay::SchedStat;
use crate::sched::{Finished, Sched, on_threads};

use devices::Devices;
use load::LinuxMemory;

/// Most vCPUs: one APIC id of eight bits each, less those for everybody and for the I/O APIC.
pub const MAX_LINUX_VCPUS: u32 = 254;
/// Upper limit of the guest's memory, which begins at address 0; the interrupt controllers lie above.
pub const MAX_LINUX_MEMORY: u64 = 3 << 30;
/// How often the run's own thread looks.
pub(super) const POLL: Duration = Duration::from_millis(5);
/// How long a kernel that panics may go on talking.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Boots the Linux guest of `run`. Ends when the guest does.
///
/// # Errors
/// What keeps the guest from being started, and requests to stop. What becomes of it afterwards is an outcome.
#[allow(
    clippy::too_many_lines,
    reason = "these are its steps in order, and what each makes lives until the last one"
)]
pub(super) fn run(
    run: &Run,
    (asked, linux): (&Guest, &Linux),
    stop: &AtomicBool,
    instruments: &Instruments,
) -> Result<Found, RunError> {
    refuse(run, asked, linux)?;
    let console = instruments.linux.clone().unwrap_or_default();
    let warns = Arc::clone(&console.warns);
    let mut machine = LinuxMachine::new(run, asked, linux, console)?;
    let obstacle = obstacle()?;
    if let Some(obstacle) = &obstacle {
        warns(obstacle);
    }
    let vcpus = std::mem::take(&mut machine.vcpus);
    let watcher = Watcher::nothing("it is not known what a vCPU of a Linux guest is doing");
    let notes = Notes::default();
    let tsc = GuestTsc::new(TscRate::of_khz(machine.tsc_khz), 0);
    let mut guest = GuestRun::new(asked.vcpus, tsc, &Clock::Host, &watcher, &notes);
    guest.halts_in_kernel = true;
    let guests = [guest];
    let plan = run
        .deschedule
        .as_ref()
        .map(|deschedule| Plan::new(deschedule, None, run.cpus.len(), run.rules.slice, asked.seed));
    let scheduler = on_threads(run.rules, &run.cpus, &guests, vec![vcpus], plan);

    let cpu_time = process_cpu_time();
    let start = Instant::now();
    guests[0].window.open(now_ns());
    let (ended, length, threads) = std::thread::scope(|scope| {
        scheduler.start(scope, &run.cpus);
        let devices = &machine.devices;
        let panicked_before = |length| devices.console(|console| console.panicked_before(length));
        let looks = || {
            let end = devices.end();
            // With `panic=-1` a kernel that panics asks for a reset at once.
            let panicked = matches!(end, Some(LinuxEnd::Reset)) && panicked_before(Duration::ZERO);
            // The failure is told instead of this end.
            let failed = guests[0].failed().then_some(LinuxEnd::TimeLimit);
            Ok(if panicked { Some(LinuxEnd::Panic) } else { end.or(failed) })
        };
        let ended = wait_for_end(looks, panicked_before, (start, linux.limit), stop);
        let length = start.elapsed();
        let threads = scheduler.sched_stats(0);
        guests[0].window.close(now_ns());
        guests[0].stop();
        scheduler.interrupt();
        (ended, length, threads)
    });
    let cpu_time = process_cpu_time().saturating_sub(cpu_time);
    let is_broken = scheduler.is_broken();
    let finished = scheduler.finish();
    let (user_space, complaints) = machine.devices.console(|console| console.finish(start));
    let end = match (guests[0].take_failure(), ended) {
        (Some(failure @ RunError::System { .. }), _) => return Err(failure),
        (Some(failure), _) if is_broken => return Err(failure),
        (_, Err(interrupted)) => return Err(interrupted),
        (Some(failure), _) => LinuxEnd::Failed(failure),
        (None, Ok(end)) => end,
    };
    let outcome = LinuxOutcome {
        end,
        run: length,
        user_space,
        complaints,
        obstacle,
        command_line: machine.command_line,
        pv_features: machine.pv_features,
        tsc_khz: machine.tsc_khz,
        vm_exits: collect::vm_exits(&finished),
        kvm_stats: collect::kvm_stats(&finished),
        vcpus: finished.iter().map(|vcpu| vcpu_outcome(run.rules.sched, vcpu, &threads)).collect(),
        pinning_lost: guests[0].pinning_lost.get().cloned(),
    };
    Ok(found(asked, outcome, cpu_time))
}

/// The findings of a run whose only guest is `asked`.
pub(super) fn found(asked: &Guest, outcome: LinuxOutcome, cpu_time: Duration) -> Found {
    let guest = Ended {
        name: asked.name.clone(),
        result: Ok(AnyOutcome::Linux(Box::new(outcome))),
        explanation: None,
        console: String::new(),
    };
    Found {
        started: Err("a Linux kernel starts its vCPUs itself".into()),
        cpu_before: Err("all of a Linux guest's life is its window".into()),
        cpu_time,
        windows: 1,
        run_delay: Err("runs of Linux do not look".into()),
        pmu: Err("runs of Linux do not look".into()),
        schedule: None,
        profile: None,
        trace: None,
        guests: vec![guest],
    }
}

/// Why this host is no place for a Linux guest, if it is none.
fn obstacle() -> Result<Option<String>, RunError> {
    let rate = match ring_probe::RING0_RATE.get() {
        Some(rate) => *rate,
        None => ring_probe::ring0_rate(&mut Vm::small(&Image::embedded(), 1, false)?)?,
    };
    Ok(machine::interpreted(rate))
}

/// Makes the checks that are possible before anything is created.
pub(super) fn refuse(run: &Run, asked: &Guest, linux: &Linux) -> Result<(), RunError> {
    let message = format!(
        "{} vCPUs are too many for a Linux guest, whose APIC ids have eight bits: {MAX_LINUX_VCPUS} at most",
        asked.vcpus
    );
    Refused::when(asked.vcpus > MAX_LINUX_VCPUS, "", message)?;
    let [most, given] = [MAX_LINUX_MEMORY, linux.memory_bytes].map(|bytes| bytes >> 20);
    let message = format!("a Linux guest has {most} MiB of memory at most, not {given}");
    Refused::when(linux.memory_bytes > MAX_LINUX_MEMORY, "", message)?;
    if let Some(deschedule) = &run.deschedule {
        deschedule.check_for_linux()?;
    }
    run.check()?;
    load::check(linux)?;
    let own_bytes = check::own_bytes(&run.engine, run.guests[0].vcpus);
    check::check_memory(std::iter::once(linux.memory_bytes + own_bytes), available())
}

/// Waits for the end that `looks` finds, for a panic's last words, or for the end of the time since `start`.
pub(super) fn wait_for_end(
    mut looks: impl FnMut() -> Result<Option<LinuxEnd>, RunError>,
    panicked_before: impl Fn(Duration) -> bool,
    (start, limit): (Instant, Option<Duration>),
    stop: &AtomicBool,
) -> Result<LinuxEnd, RunError> {
    loop {
        if let Some(end) = looks()? {
            return Ok(end);
        }
        if panicked_before(LAST_WORDS) {
            return Ok(LinuxEnd::Panic);
        }
        if limit.is_some_and(|limit| start.elapsed() >= limit) {
            return Ok(LinuxEnd::TimeLimit);
        }
        // Relaxed: polled.
        if stop.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        std::thread::sleep(POLL);
    }
}

fn vcpu_outcome(sched: Sched, vcpu: &Finished, threads: &[Option<SchedStat>]) -> VcpuOutcome {
    let books = &vcpu.account.books;
    let seen = VcpuOutcome {
        run_ns: Some(books.run_ns),
        steal_ns: Some(books.steal_ns),
        halted_ns: Some(books.preempted_ns_by.halted),
        preemptions: books.preemptions,
        injected: Some(books.injected_by.other),
        waits: Some(books.waits),
        ..VcpuOutcome::default()
    };
    if sched == Sched::Vmm {
        return seen;
    }
    let thread = threads.get(vcpu.vcpu.id as usize).copied().flatten();
    VcpuOutcome {
        run_ns: thread.map(|thread| thread.run_ns),
        steal_ns: thread.map(|thread| thread.delay_ns + books.preempted_ns_by.other),
        halted_ns: None,
        waits: collect::halts(vcpu),
        ..seen
    }
}

struct LinuxMachine {
    vcpus: Vec<Vcpu>,
    _vm: VmFd,
    // After the VM, so that it outlives it while the struct is dropped.
    _memory: LinuxMemory,
    devices: Arc<Devices>,
    command_line: String,
    pv_features: Vec<&'static str>,
    tsc_khz: u64,
}

impl LinuxMachine {
    fn new(run: &Run, asked: &Guest, linux: &Linux, console: LinuxConsole) -> Result<Self, RunError> {
        let memory = LinuxMemory::new(linux.memory_bytes)?;
        let loaded = memory.load(linux, &acpi::tables(asked.vcpus))?;
        let kvm = open_kvm()?;
        let vm = kvm.create_vm().map_err(system("create a virtual machine"))?;
        machine::apply_halts(&vm, run.halts)?;
        vm::create_interrupt_controllers(&vm)?;
        if run.rules.sched == Sched::Vmm && run.halts.poll.is_none() {
            // The runner must learn of a halt, not wait for its end. Where it cannot be set, it stays as it is.
            _ = machine::enable(&vm, KVM_CAP_HALT_POLL, 0);
        }
        vm::map_memory(&vm, &memory.0)?;
        let devices = Arc::new(Devices::new(&vm, console, linux.marker.clone())?);
        allow_open_files(asked.vcpus)?;
        let offered = cpu::offered(&vm, offered_cpuid(&kvm)?, run, asked);
        let run_bytes = kvm.get_vcpu_mmap_size().map_err(system("ask for the size of kvm_run"))?;
        let mut tsc_khz = 0;
        let vcpus = (0..asked.vcpus).map(|id| {
            let fd = vm.create_vcpu(u64::from(id)).map_err(system("create a vCPU"))?;
            share_the_hosts_clock(&fd);
            tsc_khz = vm::tsc_khz(&fd)?;
            fd.set_cpuid2(&cpu::of_vcpu(&offered, id, asked.vcpus)).map_err(system("set CPUID"))?;
            let mut vcpu = KvmVcpu::new(id, fd, run_bytes, true)?;
            cpu::set_memory_types(&vcpu.fd)?;
            if id == 0 {
                cpu::set_start_state(&vcpu.fd, loaded.entry)?;
            }
            vcpu.devices = Some(devices.clone());
            Ok(Vcpu::new(id, vcpu))
        });
        let vcpus = vcpus.collect::<Result<Vec<_>, RunError>>()?;
        Ok(Self {
            vcpus,
            _vm: vm,
            _memory: memory,
            devices,
            command_line: loaded.command_line,
            pv_features: cpu::feature_names(&offered),
            tsc_khz,
        })
    }
}
