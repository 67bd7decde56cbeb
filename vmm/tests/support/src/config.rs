//! Runs that tests vary.

use std::sync::Arc;
use std::time::Duration;

use haltkick_vmm::machines::{Machine, presets};
use haltkick_vmm::{
    Deschedule, Engine, HowOften, Mix, PreemptedBy, PvBackend, Ring, RunConfig, Sched, Shape, Share, Target,
    allowed_cpus,
};

use crate::nested;

/// One lock for a tenth of a second on an engine, under four vCPUs for each of at most two pCPUs.
#[must_use]
pub fn on(engine: Engine) -> RunConfig {
    let cpus: Vec<_> = allowed_cpus().into_iter().take(2).collect();
    RunConfig {
        engine,
        vcpus: 4 * cpus.len() as u32,
        cpus,
        pv: true,
        memory_bytes: 0,
        warmup: Duration::from_millis(10),
        window: Duration::from_millis(100),
        ..RunConfig::default()
    }
}

/// A run on KVM whose vCPUs sleep and wake by doorbells.
#[must_use]
pub fn config() -> RunConfig {
    on(Engine::Kvm)
        // Not what works best here: the tests look at doorbells, and at vCPUs that the VMM put to sleep.
        .pv_backend(PvBackend::Vmm)
        .memory_bytes(64 << 20)
        // An emulator does in so long what others do in a fifth of it.
        .window(Duration::from_millis(if nested() { 500 } else { 100 }))
}

/// A millisecond on a simulated machine, under `ratio` vCPUs for each of `cpus` pCPUs.
///
/// # Panics
/// If no machine of that name is built in.
#[must_use]
pub fn simulated(name: &str, cpus: u32, ratio: u32) -> RunConfig {
    let machine = presets().iter().find(|preset| preset.name == name).expect("it is built in").machine();
    on(Engine::Sim)
        .work_rate(machine.work_rate())
        .simulated(Arc::new(machine))
        .cpus((0..cpus).collect())
        .vcpus(cpus * ratio)
        .slice(Duration::from_micros(200))
        .warmup(Duration::from_micros(50))
        .window(Duration::from_millis(1))
}

/// Long sections, so that a holder is found at the first look or the second.
#[must_use]
pub fn mostly_holding() -> RunConfig {
    config().lock("tas").pv(false).hold(Duration::from_micros(50)).think(Duration::from_micros(1))
}

/// Descheduling on purpose for `length`, anywhere or `at` a point.
#[must_use]
pub fn deschedule(target: Target, how_often: HowOften, length: Duration, at: Option<&str>) -> Deschedule {
    Deschedule { target, how_often, length, at: at.map(String::from) }
}

/// Declares and implements [`Settings`]: arguments of the first group are taken as they are, the others are converted.
macro_rules! settings {
    ($($exact:ident: $exact_type:ty,)* ; $($converted:ident: $type:ty,)*) => {
        /// Settings of a run, one method for each: `config().lock("tas").pv(false)`.
        pub trait Settings: Sized {
            $(#[doc = concat!("Sets `", stringify!($exact), "`.")]
            #[must_use]
            fn $exact(self, $exact: $exact_type) -> Self;)*
            $(#[doc = concat!("Sets `", stringify!($converted), "`.")]
            #[must_use]
            fn $converted(self, $converted: impl Into<$type>) -> Self;)*
        }

        impl Settings for RunConfig {
            $(fn $exact(self, $exact: $exact_type) -> Self {
                Self { $exact, ..self }
            })*
            $(fn $converted(self, $converted: impl Into<$type>) -> Self {
                Self { $converted: $converted.into(), ..self }
            })*
        }
    };
}

settings! {
    engine: Engine,
    cpus: Vec<u32>,
    ring: Ring,
    pv_backend: PvBackend,
    preempted_by: PreemptedBy,
    pause_exits: bool,
    hlt_exits: bool,
    sched: Sched,
    share: Share,
    slice: Duration,
    grace: Duration,
    kick_yields: bool,
    attribution: bool,
    pmu: bool,
    warmup: Duration,
    window: Duration,
    min_sections: u64,
    vcpus: u32,
    pv: bool,
    patch: bool,
    spin_threshold: Duration,
    slice_margin: Duration,
    hold: Duration,
    think: Duration,
    lock_count: u32,
    mix: Mix,
    shape: Shape,
    oracle: bool,
    ordered_stamps: bool,
    memory_bytes: u64,
    seed: u64,
    ;
    simulated: Option<Arc<Machine>>,
    halt_poll: Option<Duration>,
    deschedule: Option<Deschedule>,
    work_rate: Option<u64>,
    watchdog: Option<Duration>,
    beside: Vec<RunConfig>,
    name: String,
    lock: String,
    workload: String,
}
