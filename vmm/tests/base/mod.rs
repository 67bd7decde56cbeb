//! The run that the tests of all engines vary.

use std::time::Duration;

use haltkick_vmm::{Engine, Mix, PreemptedBy, PvBackend, Ring, RunConfig, Sched, Shape, Share, allowed_cpus};

/// One lock for a tenth of a second, under four vCPUs for each of at most two pCPUs: what tests vary.
pub(crate) fn config(engine: Engine) -> RunConfig {
    let cpus: Vec<_> = allowed_cpus().into_iter().take(2).collect();
    RunConfig {
        simulated: None,
        live: false,
        engine,
        vcpus: 4 * cpus.len() as u32,
        cpus,
        ring: Ring::Auto,
        sched: Sched::Vmm,
        slice: Duration::from_millis(1),
        grace: Duration::ZERO,
        slice_margin: Duration::from_micros(10),
        kick_yields: false,
        attribution: true,
        pmu: false,
        deschedule: None,
        lock: "qspinlock".into(),
        pv: true,
        patch: true,
        preempted_hint: true,
        pv_backend: PvBackend::Auto,
        halt_poll: None,
        pause_exits: true,
        hlt_exits: true,
        preempted_by: PreemptedBy::Auto,
        spin_threshold: Duration::from_micros(20),
        spin_rounds: 0,
        workload: "critical-section".into(),
        hold: Duration::from_micros(1),
        think: Duration::from_micros(2),
        lock_count: 1,
        mix: Mix::default(),
        shape: Shape::default(),
        oracle: true,
        ordered_stamps: true,
        memory_bytes: 0,
        work_rate: None,
        min_sections: 0,
        warmup: Duration::from_millis(10),
        window: Duration::from_millis(100),
        watchdog: None,
        seed: 1,
        name: "guest".into(),
        beside: vec![],
        share: Share::Vcpu,
    }
}
