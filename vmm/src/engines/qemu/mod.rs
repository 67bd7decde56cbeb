//! The QEMU engine, `--engine qemu`: runs our own guest's image under QEMU, or a Linux kernel (`linux`).
//!
//! QEMU's `microvm` machine starts the image at its PVH entry, the image finds what is asked of it in a section that was
//! written for it, and runs by itself (`guest/src/boot/bare`); what it left in shared memory comes back through the debug console. It is put
//! where our own guests have it, so that one program judges both.

mod launch;
pub(crate) mod linux;
pub(crate) mod record;

use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use haltkick_hypercalls::WorkloadFlags;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::guest::memory::Memory;
use crate::guest::reports;
use crate::host::clock::{Ticks, TscRate};
use crate::host::error::RunError;
use crate::image::file::Image;
use crate::machine::{Decided, KernelHalts, PvBackend, Ring};
use crate::observe::Instruments;
use crate::run::asked::{Accelerator, Chosen, OurGuest};
use crate::run::collect;
use crate::run::outcome::{AnyOutcome, Ended, Found, Outcome, VcpuOutcome};
use crate::sched::Sched;
use crate::sched::hints::{PreemptedBy, PreemptedSource};
use crate::sched::run_delay::ONE_THREAD_PER_VCPU;

pub use launch::find_qemu;
use launch::{Cpu, asking, file_for_qemu, spawn};
use record::{Said, listen};

/// APIC ids of the older kind, less one for everybody, and the boot CPU.
const MOST_VCPUS: u32 = 254;

pub(crate) fn run(
    asked: OurGuest<'_>,
    image: &Image,
    chosen: Chosen,
    accelerator: Accelerator,
    stop: &AtomicBool,
    instruments: &Instruments,
) -> Result<Found, RunError> {
    check(asked, image, chosen, instruments)?;
    let program = find_qemu()?;
    let memory = Memory::new(image.end, asked.guest.vcpus, 0, 0)?;
    let kernel = file_for_qemu("guest image", &asking(asked, image, chosen, accelerator)?)?;
    let cpu = Cpu::choose(asked, image, accelerator)?;
    let start = Instant::now();
    let mut qemu = Running(spawn(&program, asked, &cpu, &kernel)?);
    let mut said = listen(&mut qemu.0, &memory, asked, start, stop)?;
    let result = match (said.broke.take(), said.failed) {
        (Some(error), _) => Err(error),
        (None, Some((true, vcpu))) => Err(reports::panic(vcpu, memory.area(vcpu))),
        (None, Some((false, vcpu))) => Err(reports::exception(vcpu, memory.area(vcpu), image.symbols())),
        (None, None) => outcome(asked, image, chosen, &cpu, &memory, &said),
    };
    let result = result.map(|outcome| AnyOutcome::Ours(Box::new(outcome)));
    let guest = Ended { name: asked.guest.name.clone(), result, explanation: None, console: said.console };
    Ok(Found {
        started: Err("QEMU's guest does not say when its vCPUs have started".into()),
        cpu_before: Ok(said.cpu_at_open),
        cpu_time: said.cpu_at_close.saturating_sub(said.cpu_at_open),
        windows: 1,
        run_delay: Err(ONE_THREAD_PER_VCPU.into()),
        pmu: Err("QEMU's threads are not this program's to count in: use --engine kvm".into()),
        schedule: None,
        profile: None,
        trace: None,
        guests: vec![guest],
    })
}

/// Why nothing is known of the vCPUs' threads.
const NOT_OURS: &str = "the vCPUs' threads are QEMU's";

fn check(
    asked: OurGuest<'_>,
    image: &Image,
    chosen: Chosen,
    instruments: &Instruments,
) -> Result<(), RunError> {
    let (run, workload) = (asked.run, &image.workloads[chosen.workload as usize]);
    let has_page_tables = workload.workload_flags().has(WorkloadFlags::USES_MEMORY);
    refuse(&[
        (run.rules.sched == Sched::Vmm, HOST_SCHEDULES),
        (run.ring == Ring::Ring3, "it starts the guest in ring 0: use --ring auto"),
        (run.pv_backend == PvBackend::Vmm, "it has no doorbells: use --pv-backend auto, kvm or ipi"),
        (run.preempted_by == PreemptedBy::Bpf, "the BPF program knows our own VMM's threads only"),
        (
            run.halts != KernelHalts::default(),
            "--halt-poll, --pause-exits and --hlt-exits are settings of our own VMM",
        ),
        (run.deschedule.is_some(), DESCHEDULES_NONE),
        (run.guests.len() > 1, "it runs one guest"),
        (
            instruments.trace || instruments.profile.is_some(),
            "--trace and --profile look at vCPUs that our own VMM runs",
        ),
        (run.drain, "--drain on needs to know which vCPUs have left"),
        (run.live, "--live on shows vCPUs that our own VMM runs"),
        (asked.ours.shape.work().is_some(), "--work ends the window when it is done, which our own VMM does"),
        (asked.guest.vcpus > MOST_VCPUS, "it runs 254 vCPUs at most"),
        (has_page_tables, "a workload that has page tables of its own needs our own VMM"),
    ])
}

const HOST_SCHEDULES: &str = "its vCPUs are threads that the host schedules: use --sched host";
const DESCHEDULES_NONE: &str = "only our own VMM deschedules on purpose";

/// Refuses the first of these settings that is asked for, for this reason.
fn refuse(settings: &[(bool, &str)]) -> Result<(), RunError> {
    match settings.iter().find(|(is_asked, _)| *is_asked) {
        Some((_, wrong)) => Err(RunError::usage(format!("--engine qemu: {wrong}"))),
        None => Ok(()),
    }
}

/// A QEMU that does not outlive the run, nor does what it has started.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Ended or not: all calls are harmless then. It leads a process group of its own (`launch::start`).
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn outcome(
    asked: OurGuest<'_>,
    image: &Image,
    chosen: Chosen,
    cpu: &Cpu,
    memory: &Memory,
    said: &Said,
) -> Result<Outcome, RunError> {
    let window = TscRate::of_khz(said.tsc_khz).nanoseconds(Ticks(said.window_ticks));
    let vcpu = |id| VcpuOutcome {
        // Relaxed, here and below: deposited by this thread.
        acquisitions: memory.area(id).results.acquisitions.load(Ordering::Relaxed),
        steal_ns: said.preempted_seen.then(|| memory.area(id).steal.steal_ns.load(Ordering::Relaxed)),
        ..VcpuOutcome::default()
    };
    let seen = collect::GuestFacts {
        asked,
        image,
        memory,
        chosen,
        patched_sites: 0,
        tsc_khz: said.tsc_khz,
        decided: Decided {
            ring: Ring::Ring0,
            ring_reason: "QEMU starts the guest in ring 0".into(),
            pv_backend: if said.by_hypercall { PvBackend::Kvm } else { PvBackend::Ipi },
            pv_backend_reason: cpu.kick_reason.clone(),
        },
    };
    Ok(Outcome {
        residence: Err("QEMU has the guest's memory".into()),
        start_up: said.start_up,
        window: window.into(),
        lost_updates: collect::check_exclusion(&seen)?,
        pending_waits: Err("QEMU's guest goes on between the end of the window and the look at it".into()),
        kvm_stats: Err("QEMU keeps KVM to itself".into()),
        preempted_source: match (cpu.accelerator, said.preempted_seen) {
            (_, true) => Ok(PreemptedSource::Kvm),
            (Accelerator::Tcg, false) => Err("QEMU's emulator has no such flag".into()),
            (Accelerator::Kvm, false) => Err("the flag was never seen set in this run".into()),
        },
        vcpus: (0..asked.guest.vcpus).map(vcpu).collect(),
        ..collect::of_guest(&seen, NOT_OURS)
    })
}
