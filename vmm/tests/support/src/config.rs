//! Runs that tests vary.

use std::sync::Arc;
use std::time::Duration;

use haltkick_vmm::machines::presets;
use haltkick_vmm::{
    Deschedule, Engine, HowOften, Mix, PreemptedBy, PvBackend, Ring, Run, Sched, Shape, Share, Target,
    allowed_cpus,
};

use crate::nested;

/// One lock for a tenth of a second on an engine, under four vCPUs for each of at most two pCPUs.
#[must_use]
pub fn on(engine: Engine) -> Run {
    let cpus: Vec<_> = allowed_cpus().into_iter().take(2).collect();
    Run::default()
        .engine(engine)
        .vcpus(4 * cpus.len() as u32)
        .cpus(cpus)
        .pv(true)
        .memory_bytes(0)
        .warmup(Duration::from_millis(10))
        .window(Duration::from_millis(100))
}

/// A run on KVM whose vCPUs sleep and wake by doorbells.
#[must_use]
pub fn config() -> Run {
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
pub fn simulated(name: &str, cpus: u32, ratio: u32) -> Run {
    let machine = presets().iter().find(|preset| preset.name == name).expect("it is built in").machine();
    let work_rate = machine.work_rate();
    on(Engine::Sim(Arc::new(machine)))
        .work_rate(work_rate)
        .cpus((0..cpus).collect())
        .vcpus(cpus * ratio)
        .slice(Duration::from_micros(200))
        .warmup(Duration::from_micros(50))
        .window(Duration::from_millis(1))
}

/// Long sections, so that a holder is found at the first look or the second.
#[must_use]
pub fn mostly_holding() -> Run {
    config().lock("tas").pv(false).hold(Duration::from_micros(50)).think(Duration::from_micros(1))
}

/// Descheduling on purpose for `length`, anywhere or `at` a point.
#[must_use]
pub fn deschedule(target: Target, how_often: HowOften, length: Duration, at: Option<&str>) -> Deschedule {
    Deschedule { target, how_often, length, at: at.map(String::from) }
}

/// Declares and implements [`Settings`]: where each is, and its type. The only guest has the settings of guests.
macro_rules! settings {
    ($($name:ident: $($type:ty)? $(| $into:ty)?, $($at:ident).+ $([$index:literal] $(.$inner:ident)+)?;)*) => {
        /// Settings of a run, one method for each: `config().lock("tas").pv(false)`.
        pub trait Settings: Sized {
            $(#[doc = concat!("Sets `", stringify!($name), "`.")]
            #[must_use]
            fn $name(self, $name: $($type)? $(impl Into<$into>)?) -> Self;)*

            /// Adds the guests of other runs.
            #[must_use]
            fn beside(self, others: impl IntoIterator<Item = Run>) -> Self;
        }

        impl Settings for Run {
            $(fn $name(mut self, $name: $($type)? $(impl Into<$into>)?) -> Self {
                self.$($at).+ $([$index] $(.$inner)+)? = $name.into();
                self
            })*

            fn beside(mut self, others: impl IntoIterator<Item = Run>) -> Self {
                self.guests.extend(others.into_iter().flat_map(|other| other.guests));
                self
            }
        }
    };
}

settings! {
    engine: Engine, engine;
    cpus: Vec<u32>, cpus;
    ring: Ring, ring;
    pv_backend: PvBackend, pv_backend;
    preempted_by: PreemptedBy, preempted_by;
    halt_poll: | Option<Duration>, halts.poll;
    pause_exits: bool, halts.pause_exits;
    hlt_exits: bool, halts.hlt_exits;
    sched: Sched, rules.sched;
    share: Share, rules.share;
    slice: Duration, rules.slice;
    grace: Duration, rules.grace;
    kick_yields: bool, rules.kick_yields;
    deschedule: | Option<Deschedule>, deschedule;
    attribution: bool, attribution;
    pmu: bool, pmu;
    warmup: Duration, warmup;
    window: Duration, window;
    min_sections: u64, min_sections;
    watchdog: | Option<Duration>, watchdog;
    work_rate: | Option<u64>, work_rate;
    name: | String, guests[0].name;
    vcpus: u32, guests[0].vcpus;
    pv: bool, guests[0].pv;
    seed: u64, guests[0].seed;
    lock: | String, guests[0].ours.lock;
    patch: bool, guests[0].ours.patch;
    spin_threshold: Duration, guests[0].ours.spin_threshold;
    slice_margin: Duration, guests[0].ours.slice_margin;
    workload: | String, guests[0].ours.workload;
    hold: Duration, guests[0].ours.hold;
    think: Duration, guests[0].ours.think;
    lock_count: u32, guests[0].ours.lock_count;
    mix: Mix, guests[0].ours.mix;
    shape: Shape, guests[0].ours.shape;
    oracle: bool, guests[0].ours.oracle;
    ordered_stamps: bool, guests[0].ours.ordered_stamps;
    memory_bytes: u64, guests[0].ours.memory_bytes;
}
