//! Fuzz target: arbitrary guest writes, and the losses, reports, clocks and outcome that the VMM makes of them.

use haltkick_fuzzing::{Script, Target};

use crate::guest::memory::{LARGE_PAGE, Memory};
use crate::guest::reports;
use crate::guest::tsc::GuestTsc;
use crate::host::clock::{Moment, TscRate};
use crate::image::symbols::Symbols;
use crate::machine::{Decided, PvBackend, Ring};
use crate::run::asked::{Chosen, Guest, Ours, Run, System};
use crate::run::collect::{self, GuestFacts};
use crate::sched::loss::{GuestClock, Losses};
use crate::sched::tests::image;
use crate::sched::window::WindowTimes;

pub(crate) const TARGET: Target = Target { name: "shared", most_bytes: 512, seeds: Vec::new, execute };

const VCPUS: u32 = 4;
const LOCKS: u32 = 2;
const KHZ: u64 = 2_000_000;
const LONGEST_NS: u64 = 2_000_000;

thread_local! {
    static MEMORY: Memory = Memory::new(LARGE_PAGE * 3, VCPUS, 0, 0).expect("a small guest's memory");
}

/// Anything in all that is shared: no loss is longer than the time that passed, every report can be printed, and a run has an outcome
/// or says what is wrong.
fn execute(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    MEMORY.with(|memory| {
        memory.clear_shared(LOCKS);
        let [from_ns, to_ns] = [script.number() % LONGEST_NS, script.number() % LONGEST_NS];
        let now = Moment { ns: to_ns, tsc: script.number() };
        let workload = script.byte();
        write_anything(memory, &mut script);
        losses(memory, from_ns, now);
        printable_reports(memory);
        outcome(memory, usize::from(workload));
        clocks(memory, now);
    });
}

fn write_anything(memory: &Memory, script: &mut Script<'_>) {
    while !script.is_over() {
        let structure = ["control", "vcpu", "oracle", "entries"][usize::from(script.byte() % 4)];
        let (index, eighth) = (u32::from(script.byte()) % VCPUS, script.number());
        memory.deposit(structure, index, eighth.wrapping_mul(8), script.number());
    }
}

fn losses(memory: &Memory, from_ns: u64, now: Moment) {
    let losses = Losses::new(memory, LOCKS);
    let window = WindowTimes::between(1_000, 1_000_000);
    let clock = GuestClock { now, rate: TscRate::of_khz(KHZ), window: &window };
    for vcpu in 0..VCPUS {
        let lost_ns = losses.waited_by_others(vcpu, 0, from_ns, clock);
        // Each by a tick, which is rounded.
        assert!(lost_ns <= now.ns.saturating_sub(from_ns) * u64::from(VCPUS - 1) + u64::from(VCPUS));
        _ = losses.is_inside(vcpu);
        if let Some(lock) = losses.lock_of(vcpu) {
            assert!(losses.idle_since(lock, now.ns).is_none_or(|since_ns| since_ns <= LONGEST_NS));
        }
    }
}

fn printable_reports(memory: &Memory) {
    for vcpu in 0..VCPUS {
        let area = memory.area(vcpu);
        for report in [reports::panic(vcpu, area), reports::exception(vcpu, area, &Symbols::default())] {
            assert!(!report.to_string().chars().any(|c| c.is_control() && c != '\t'), "{report}");
        }
    }
}

fn outcome(memory: &Memory, workload: usize) {
    let image = image();
    let workload = workload % image.workloads.len();
    let lock = image.locks.iter().position(|lock| !lock.is_lock_free()).expect("there is a lock");
    let ours = Ours { lock_count: LOCKS, lock: image.locks[lock].name.clone(), ..Ours::default() };
    let guests = vec![Guest { vcpus: VCPUS, system: System::Ours(ours), ..Guest::default() }];
    let run = Run { guests, ..Run::default() };
    let chosen = Chosen { lock: lock as u32, workload: workload as u32, point: None };
    let seen = GuestFacts {
        asked: run.our(0),
        image,
        memory,
        chosen,
        patched_sites: 1,
        tsc_khz: KHZ,
        decided: Decided {
            ring: Ring::Ring0,
            ring_reason: String::new(),
            pv_backend: PvBackend::Vmm,
            pv_backend_reason: String::new(),
        },
    };
    _ = collect::check_exclusion(&seen);
    let outcome = collect::of_guest(&seen, "");
    for histogram in [&outcome.wait, &outcome.hold, &outcome.unlock] {
        assert!(histogram.spans().all(|span| span.low <= span.high), "a bucket ends before it begins");
    }
    for speed in outcome.work.into_iter().flatten() {
        assert!(speed.over_promised.is_finite(), "records hold numbers");
    }
}

fn clocks(memory: &Memory, now: Moment) {
    let tsc = GuestTsc::new(TscRate::of_khz(KHZ), now.ns);
    // Relaxed: one thread.
    let said = memory.control().booted_tsc.load(std::sync::atomic::Ordering::Relaxed);
    tsc.compare(said, now.tsc);
    _ = (tsc.of_host(now.tsc), tsc.in_ns(u64::MAX, now.tsc));
}
