//! Makes, runs, schedules and observes Haltkick guests on `/dev/kvm`.
//!
//! [`run`] takes a [`Run`] and an [`Image`] and gives what it [`Found`]; a guest is our own or an unmodified Linux
//! kernel. docs/architecture.md has its rooms, from the ground up.

mod engines;
mod explain;
mod guest;
mod host;
mod image;
mod machine;
mod observe;
mod probes;
mod run;
mod sched;
pub mod worst;

pub use engines::linux::archive::INIT;
pub use engines::linux::{MAX_LINUX_MEMORY, MAX_LINUX_VCPUS};
pub use engines::qemu::find_qemu;
pub use engines::{check_guests, run};
pub use explain::{
    Cause, Census, Explanation, Group, Location, LockState, Meeting, Passage, Queue, Registered, VcpuState,
    Verdict, Word,
};
pub use guest::placement::Numa;
pub use guest::{Activity, ByActivity};
pub use haltkick_hypercalls::{
    ABI_FINGERPRINT, ABI_VERSION, LockFlags, MAX_LOCKS, MAX_VCPUS, Shape, ShapeFlags, WorkloadFlags,
};
/// Models of hosts' schedulers for [`Engine::Sim`].
pub use haltkick_sim::hosts;
/// The machines of [`Engine::Sim`].
pub use haltkick_sim::machine as machines;
/// Recorded schedules for [`Engine::Sim`].
pub use haltkick_sim::schedule::Schedule;
pub use host::allocator::OrGivesUp;
pub use host::cgroup::{Bandwidth, KernelThrottled, inherited_quota};
pub use host::clock::VirtualTime;
pub use host::cpus::{allowed_cpus, keep_off, node_of_cpu, nodes_with_memory};
pub use host::error::{Known, MEMORY_LIMITS, Refused, RunError, Unknown};
pub use host::input;
pub use host::memory::Residence;
pub use host::pmu::CacheEvents;
pub use host::sandbox::{
    Needed, Needs, SandboxRule, Walls, confine_process, disable_sandbox, is_sandboxed, landlock_abi,
    process_rules, runner_rules, sandbox_filters, walls,
};
pub use host::text::{Span, nearest, printable};
pub use image::author::{Author, LOCK_SOURCES};
pub use image::disassemble::{Disassembler, Line};
pub use image::file::{Entry, Image};
pub use image::object::{ARMS, Arm, FILE_PREFIX, HEADER};
pub use image::patch::{Edit, Form};
pub use image::sites::{Calls, Operation};
pub use image::symbols::{Frame, Lines, Symbol, Symbols};
pub use machine::{KernelHalts, PvBackend, Ring};
pub use observe::live::{LIVE_SCHEMA, LIVE_SCHEMA_VERSION, Live, read_live};
pub use observe::profile::{PROFILE_PERIODS, Profile, ProfileRow};
pub use observe::trace::Trace;
pub use observe::{ConsoleSink, Instruments, LinuxConsole, TicksHistogram, TicksSpan, Where};
pub use probes::costs::{CpuCosts, Gap, gaps, pause_ticks, transfer_ns};
pub use probes::round_trip::RoundTrip;
pub use probes::{Probe, probe};
pub use run::asked::{
    Accelerator, Engine, Fold, Governor, Guest, Linux, MAX_WINDOWS, MOST_LINES, OurGuest, Ours, Program,
    RamDisk, Run, System,
};
pub use run::check::most_at_a_time;
pub use run::outcome::{
    AnyOutcome, Complaint, Complaints, Costs, Ended, Found, HintCheck, Ideal, LinuxEnd, LinuxOutcome,
    NOTHING_ELSE_RUNS, Outcome, PairTicks, VcpuOutcome, WorkSpeed,
};
pub use sched::books::{ClosedByHeads, Graces, Timeline};
pub use sched::deschedule::{Deschedule, HowOften, Target};
pub use sched::hints::{PreemptedBy, PreemptedSource, bpf_can_report_switches};
pub use sched::quota::{Quota, Throttled};
pub use sched::run_delay::{RunDelay, SchedStat, of_this_thread as sched_stat_of_this_thread};
pub use sched::switch_books::SwitchReports;
pub use sched::window::Presence;
pub use sched::{Repeated, Rules, Sched, Share};

/// Fuzz targets that `fuzz/` executes on bytes that coverage has chosen, and each one's test on random bytes.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz {
    macro_rules! targets {
        ($($test:ident: $target:path,)*) => {
            #[cfg(fuzzing)]
            pub const TARGETS: [haltkick_fuzzing::Target; 14] = [
                haltkick_sim::board::fuzzed::TARGET,
                haltkick_sim::machine::fuzzed::TARGET,
                haltkick_sim::schedule::fuzzed::TARGET,
                $($target,)*
            ];
            $(#[test]
            fn $test() {
                $target.run();
            })*
        };
    }

    targets! {
        fuzz_devices_answer_any_access: crate::engines::linux::devices::fuzzed::TARGET,
        fuzz_explain_whatever_a_guest_says_of_its_locks_all_queues_end: crate::explain::queues::fuzzed::TARGET,
        fuzz_image_any_file_is_refused_or_can_be_asked_anything: crate::image::fuzzed::IMAGE,
        fuzz_kernel_any_file_is_refused_or_loaded: crate::engines::linux::load::fuzzed::TARGET,
        fuzz_lines_any_debug_information_gives_none_or_printable_frames: crate::image::fuzzed::LINES,
        fuzz_object_any_file_is_refused_or_linked_within_its_bounds: crate::image::fuzzed::OBJECT,
        fuzz_qemu_any_line_of_the_record_is_taken_down_or_dropped: crate::engines::qemu::record::fuzzed::TARGET,
        fuzz_scheduler_an_honest_guest_gets_its_share_whatever_others_do: crate::sched::tests::fairness::TARGET,
        fuzz_sections_of_any_ring_those_count_that_can_be: crate::observe::trace::sections::fuzzed::TARGET,
        fuzz_shared_memory_never_costs_more_than_the_time_that_passed: crate::run::fuzzed::TARGET,
        fuzz_switches_in_any_order_cost_no_more_than_the_window: crate::sched::switch_books::fuzzed::TARGET,
    }
}
