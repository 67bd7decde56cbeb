//! Makes, runs, schedules and observes Haltkick guests on `/dev/kvm`.
//!
//! [`run`] takes a [`RunConfig`] and an [`Image`] and gives an [`Outcome`]. One file per concept:
//! `image` (what a guest file offers), `memory` (who lies where), `boot` (how a vCPU starts), `ring` (which privilege
//! ring runs natively), `vm` (KVM's part of a guest), `machine` (all of that, ready to start), `vcpu/` (KVM_RUN and
//! what stands in for it where there is no KVM), `exits` (why it came back), `in_kernel/` (sleeping in KVM's hands),
//! `irqchip` and `capabilities` (what that takes), `round_trip` (what a wake-up costs), `kvm_stats` (what KVM counts),
//! `sched/` (who runs when), `deschedule` (whom to stop on purpose), `activity` and `account` (what each vCPU was
//! doing, what happened to it), `mark` (what the guest was told of that), `loss` (what that cost the others),
//! `invalidate` (who must drop cached translations), `supervise` (the window and the watchdog), `collect` (the
//! outcome); `symbols` and `disassemble` (what code lies at an address); `segment` and `sites` (an image's parts, and
//! the places that call a lock, read and checked), `patch` (those rewritten); `instruments`, `watch` and `observe`
//! (what a profile and a trace note). [`run_linux`] and
//! `linux/`: an unmodified Linux kernel in the guest's place.

mod engines;
mod explain;
mod guest;
mod host;
mod image;
mod machine;
mod observe;
mod probe;
mod round_trip;
mod run;
mod sched;

pub use engines::linux::{
    ConsoleSink, LinuxEnd, LinuxGuest, LinuxOutcome, LinuxVcpu, MAX_LINUX_MEMORY, MAX_LINUX_VCPUS, run_linux,
};
pub use engines::qemu::find_qemu;
pub use engines::vmm::{Ended, check_guests, run, run_guests, run_with_readings};
pub use explain::{
    Cause, Census, Explanation, Group, Location, LockState, Queue, Registered, State, VcpuState, Verdict,
    Word,
};
pub use guest::activity::ByActivity;
pub use haltkick_hypercalls::{MAX_LOCKS, MAX_VCPUS};
pub use host::affinity::allowed_cpus;
pub use host::error::RunError;
pub use image::disassemble::{Disassembler, Line, around};
pub use image::file::{Entry, Image};
pub use image::patch::{Edit, Form};
pub use image::sites::{Calls, Operation};
pub use image::symbols::{Frame, Lines, Symbol, Symbols};
pub use observe::instruments::Instruments;
pub use observe::profile::{PROFILE_PERIODS, Profile, ProfileRow};
pub use observe::trace::Trace;
pub use probe::{Probe, probe};
pub use round_trip::RoundTrip;
pub use run::config::{
    Accelerator, Engine, MAX_WINDOWS, MOST_LINES, Mix, PreemptedBy, PvBackend, Ring, RunConfig, Sched, Shape,
    Share,
};
pub use run::outcome::{
    CacheEvents, Costs, Graces, HintCheck, Ideal, Outcome, PairTicks, PreemptedSource, SwitchReports,
    TicksHistogram, VcpuOutcome, WorkSpeed,
};
pub use run::readings::Readings;
pub use sched::deschedule::{Deschedule, HowOften, Target};
pub use sched::hints::{bpf_can_report_switches, bpf_can_write_flags};
pub use sched::run_delay::RunDelay;
