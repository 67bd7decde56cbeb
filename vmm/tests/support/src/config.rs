//! Runs that tests vary.

use std::borrow::BorrowMut;
use std::sync::Arc;
use std::time::Duration;

use haltkick_vmm::machines::presets;
use haltkick_vmm::{
    Deschedule, Engine, Fold, HowOften, Ours, PreemptedBy, Presence, PvBackend, Quota, Ring, Run, Sched,
    Shape, Share, Target, allowed_cpus,
};

use crate::nested;

/// A time in microseconds.
pub const fn us(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
}

/// A time in milliseconds.
pub const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// One lock for a tenth of a second on an engine, under four vCPUs for each of at most two pCPUs.
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
pub fn config() -> Run {
    on(Engine::Kvm)
        // Not what works best here: the tests look at doorbells, and at vCPUs that the VMM put to sleep.
        .pv_backend(PvBackend::Vmm)
        .memory_bytes(64 << 20)
        // An emulator needs five times as long as others.
        .window(Duration::from_millis(if nested() { 500 } else { 100 }))
}

/// A millisecond on a simulated machine, under `ratio` vCPUs for each of `cpus` pCPUs.
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
pub fn mostly_holding() -> Run {
    config().lock("tas").pv(false).hold(Duration::from_micros(50)).think(Duration::from_micros(1))
}

/// Descheduling on purpose for `length`, anywhere or `at` a point.
pub fn deschedule(target: Target, how_often: HowOften, length: Duration, at: Option<&str>) -> Deschedule {
    Deschedule { target, how_often, length, at: at.map(String::from) }
}

/// Declares [`Settings`]: where each is, and its type. The only guest has the settings of guests.
macro_rules! settings {
    ($($name:ident: $($type:ty)? $(| $into:ty)?, $at:expr;)*) => {
        /// Settings of a run, one method for each: `config().lock("tas").pv(false)`.
        pub trait Settings: Sized + BorrowMut<Run> {
            $(#[doc = concat!("Sets `", stringify!($name), "`.")]
            fn $name(mut self, $name: $($type)? $(impl Into<$into>)?) -> Self {
                let at: fn(&mut Run) -> &mut _ = $at;
                *at(self.borrow_mut()) = $name.into();
                self
            })*

            /// Sets `lock` and `pv`.
            fn form(self, lock: impl Into<String>, pv: bool) -> Self {
                self.lock(lock).pv(pv)
            }

            /// Adds the guests of other runs.
            fn beside(mut self, others: impl IntoIterator<Item = Run>) -> Self {
                let run: &mut Run = self.borrow_mut();
                run.guests.extend(others.into_iter().flat_map(|other| other.guests));
                self
            }
        }
    };
}

impl Settings for Run {}

/// The work of the only guest, which is our own.
fn ours(run: &mut Run) -> &mut Ours {
    run.guests[0].ours_mut().expect("our own guest")
}

settings! {
    engine: Engine, |run| &mut run.engine;
    cpus: Vec<u32>, |run| &mut run.cpus;
    ring: Ring, |run| &mut run.ring;
    pv_backend: PvBackend, |run| &mut run.pv_backend;
    preempted_by: PreemptedBy, |run| &mut run.preempted_by;
    halt_poll: | Option<Duration>, |run| &mut run.halts.poll;
    pause_exits: bool, |run| &mut run.halts.pause_exits;
    hlt_exits: bool, |run| &mut run.halts.hlt_exits;
    sched: Sched, |run| &mut run.rules.sched;
    share: Share, |run| &mut run.rules.share;
    slice: Duration, |run| &mut run.rules.slice;
    grace: Duration, |run| &mut run.rules.grace;
    kick_yields: bool, |run| &mut run.rules.kick_yields;
    deschedule: | Option<Deschedule>, |run| &mut run.deschedule;
    attribution: bool, |run| &mut run.attribution;
    pmu: bool, |run| &mut run.pmu;
    warmup: Duration, |run| &mut run.warmup;
    window: Duration, |run| &mut run.window;
    min_sections: u64, |run| &mut run.min_sections;
    watchdog: | Option<Duration>, |run| &mut run.watchdog;
    work_rate: | Option<u64>, |run| &mut run.work_rate;
    name: | String, |run| &mut run.guests[0].name;
    vcpus: u32, |run| &mut run.guests[0].vcpus;
    pv: bool, |run| &mut run.guests[0].pv;
    seed: u64, |run| &mut run.guests[0].seed;
    quota: | Option<Quota>, |run| &mut run.guests[0].quota;
    presence: | Option<Presence>, |run| &mut run.guests[0].presence;
    lock: | String, |run| &mut ours(run).lock;
    patch: bool, |run| &mut ours(run).patch;
    preempted_hint: bool, |run| &mut ours(run).preempted_hint;
    spin_threshold: Duration, |run| &mut ours(run).spin_threshold;
    slice_margin: Duration, |run| &mut ours(run).slice_margin;
    workload: | String, |run| &mut ours(run).workload;
    hold: Duration, |run| &mut ours(run).hold;
    think: Duration, |run| &mut ours(run).think;
    tasks: | Option<u32>, |run| &mut ours(run).tasks;
    fold: Fold, |run| &mut ours(run).fold;
    drain: bool, |run| &mut run.drain;
    lock_count: u32, |run| &mut ours(run).lock_count;
    shape: Shape, |run| &mut ours(run).shape;
    oracle: bool, |run| &mut ours(run).oracle;
    ordered_stamps: bool, |run| &mut ours(run).ordered_stamps;
    memory_bytes: u64, |run| &mut ours(run).memory_bytes;
}
