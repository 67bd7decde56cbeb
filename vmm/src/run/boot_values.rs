//! Boot values: the settings of a run that the guest is told, and the image's entries that the run uses for them.

use std::time::Duration;

use haltkick_hypercalls::{ABI_FINGERPRINT, ABI_VERSION, BootBlock, BootFlags, GuestAddress, WorkloadFlags};

use crate::host::clock::{Nanoseconds, TscRate};
use crate::image::file::Image;
use crate::run::asked::{Engine, Fold, OurGuest};

/// The image's table entries that a run uses, by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    pub(crate) lock: u32,
    pub(crate) workload: u32,
    /// Slow-path point at which instrumented locks ring; below 64.
    pub(crate) point: Option<u32>,
}

/// Returns the guest's boot block, for a clock of `tsc_khz` ticks a millisecond. Addresses are filled in when the block is written.
pub(crate) fn boot_block(asked: OurGuest<'_>, chosen: Chosen, tsc_khz: u64) -> BootBlock {
    let governor = asked.ours.fold.governor();
    let rate = TscRate::of_khz(tsc_khz);
    let ticks = |duration: Duration| rate.ticks(duration.into()).0;
    let nanoseconds = |duration: Duration| Nanoseconds::from(duration).0;
    BootBlock {
        abi_version: ABI_VERSION,
        vcpus: asked.guest.vcpus,
        lock: chosen.lock,
        workload: chosen.workload,
        flags: BootFlags::NONE
            .with_if(asked.guest.pv, BootFlags::PARAVIRT)
            .with_if(asked.ours.preempted_hint, BootFlags::PREEMPTED_HINT)
            .with_if(!asked.run.rules.grace.is_zero(), BootFlags::GRACE)
            .with_if(asked.ours.oracle, BootFlags::ORACLE)
            .with_if(asked.ours.ordered_stamps, BootFlags::ORDERED_STAMPS)
            .with_if(says_started(&asked.run.engine), BootFlags::EACH_SAYS_STARTED),
        lock_count: asked.ours.lock_count,
        fingerprint: ABI_FINGERPRINT,
        tsc_khz,
        hold_ns: nanoseconds(asked.ours.hold),
        think_ns: nanoseconds(asked.ours.think),
        work_rate: asked.run.work_rate.unwrap_or(0),
        spin_threshold_ticks: ticks(asked.ours.spin_threshold),
        seed: asked.guest.seed,
        slice_margin_ticks: ticks(asked.ours.slice_margin),
        points: chosen.point.map_or(0, |point| 1 << point),
        shape: asked.ours.shape,
        spin_rounds: asked.ours.spin_rounds,
        tasks: asked.ours.tasks.unwrap_or(asked.guest.vcpus),
        // These vCPUs run the guest's tasks at first.
        preferred_vcpus: match asked.ours.fold {
            Fold::Off | Fold::Governor(_) => asked.guest.vcpus,
            Fold::Oracle => asked.share_in_pcpus(),
        },
        fold_interval_ticks: governor.map_or(0, |governor| ticks(governor.interval)),
        fold_low: governor.map_or(0, |governor| governor.low),
        fold_high: governor.map_or(0, |governor| governor.high),
        lock_parameter: asked.ours.lock_parameter,
        // Each by its name, so that a setting which is added cannot be forgotten here.
        vcpu_areas: GuestAddress(0),
        control: GuestAddress(0),
        oracles: GuestAddress(0),
        page_table: GuestAddress(0),
        pool: GuestAddress(0),
        pool_bytes: 0,
        preempted_flags: GuestAddress(0),
        trace_rings: GuestAddress(0),
        trace_sections: 0,
        entries: GuestAddress(0),
    }
}

/// Whether each vCPU of the guest says that it has started. On a simulated machine a start costs nothing that could be saved.
pub(crate) fn says_started(engine: &Engine) -> bool {
    matches!(engine, Engine::Kvm | Engine::Threads)
}

/// Memory for the guest's memory manager, if the workload has one.
pub(crate) fn pool_bytes(asked: OurGuest<'_>, image: &Image, workload: usize) -> u64 {
    let uses_memory = image.workloads[workload].workload_flags().has(WorkloadFlags::USES_MEMORY);
    if uses_memory { asked.ours.memory_bytes } else { 0 }
}
