//! The rows.

use std::time::Duration;

use haltkick_vmm::{ByActivity, Costs, Engine, Known, Sched, Unknown};

use super::Better::{Less, More};
use super::Center::{Median, Most};
use super::Shown::{Always, IfAny, InReport, OfAllGuests, OfWindows, OfWork};
use super::times::{Times, median};
use super::{Figure, Members, OfOurs, Source, Unit};

// Names that code goes by.
pub(crate) const ACQUISITIONS: &str = "acquisitions";
pub(crate) const THROUGHPUT: &str = "acquisitions_per_second";
pub(crate) const LOCK_FREE: &str = "lock_free_per_second";
pub(crate) const IDEAL: &str = "ideal_per_second";
pub(crate) const EFFICIENCY: &str = "efficiency";
pub(crate) const COMPLETION: &str = "completion_ns";
pub(crate) const WINDOW: &str = "window_ns";
pub(crate) const CPU: &str = "cpu_ns";
pub(crate) const LOCK_CPU: &str = "lock_cpu_ns";
pub(crate) const LOCK_CPU_SHARE: &str = "lock_cpu_share";
pub(crate) const JAIN: &str = "jain";
pub(crate) const STARVED: &str = "starved_vcpus";
pub(crate) const FEWEST: &str = "min_per_vcpu";
pub(crate) const WORK_RATE: &str = "work_rate";
pub(crate) const WORK_SPEED: &str = "work_over_promised";
pub(crate) const LONG_WAITS: &str = "wait_half_of_time_ns";
pub(crate) const WAIT_P99: &str = "wait_p99_ns";
pub(crate) const PAIRS: [&str; 3] =
    ["pair_patched_tsc_cycles", "pair_through_table_tsc_cycles", "pair_compiled_in_tsc_cycles"];
pub(crate) const LOCK_BYTES: &str = "lock_bytes";
pub(crate) const CPU_BYTES: &str = "cpu_bytes";
/// Figures of all guests that run at once, by the summary: the throughput of all, and of the slowest, and the longest waits.
pub(crate) const OF_ALL_GUESTS: [&str; 4] = [
    "all_guests_per_second",
    "slowest_guest_per_second",
    "slowest_vcpu_per_second",
    "worst_guest_wait_p99_ns",
];
/// Beginning of the names of a kernel's lock events.
pub(crate) const LOCK_EVENT: &str = "lock_event.";

type Value = fn(&OfOurs<'_>) -> Known<f64>;
type Values = fn(&OfOurs<'_>) -> Members;
type OfTimes = fn(&Times<'_>) -> Known<f64>;

const fn row(name: &'static str, unit: Unit, about: &'static str, value: Value) -> Figure {
    Figure::new(name, unit, about, Source::One(value))
}

const fn count(name: &'static str, about: &'static str, value: Value) -> Figure {
    row(name, Unit::Count, about, value)
}

const fn ns(name: &'static str, about: &'static str, value: Value) -> Figure {
    row(name, Unit::Nanoseconds, about, value)
}

const fn rate(name: &'static str, about: &'static str, value: Value) -> Figure {
    row(name, Unit::PerSecond, about, value)
}

/// A time that vCPUs wait for locks: less is better, and a run without a lock has none.
const fn wait(name: &'static str, about: &'static str, value: Value) -> Figure {
    ns(name, about, value).estimated(Less).needs_lock()
}

const fn share(name: &'static str, about: &'static str, value: Value) -> Figure {
    row(name, Unit::Share, about, value)
}

const fn cycles(name: &'static str, about: &'static str, value: Value) -> Figure {
    row(name, Unit::TscCycles, about, value)
}

/// A family, whose name has a `*` for the key of each member.
const fn family(name: &'static str, unit: Unit, about: &'static str, values: Values) -> Figure {
    Figure::new(name, unit, about, Source::Each(values))
}

/// A family with a member for each time that is measured: waits, sections, and further times of the workload.
const fn times(name: &'static str, unit: Unit, about: &'static str, value: OfTimes) -> Figure {
    Figure::new(name, unit, about, Source::Times(value))
}

const fn times_ns(name: &'static str, about: &'static str, value: OfTimes) -> Figure {
    times(name, Unit::Nanoseconds, about, value).better(Less)
}

/// A figure of Linux guests alone, or one that summaries make.
const fn other(name: &'static str, unit: Unit, about: &'static str) -> Figure {
    Figure::new(name, unit, about, Source::None)
}

/// All figures, in the order of records and of columns.
pub(crate) static FIGURES: &[Figure] = &[
    // How much was done.
    count(ACQUISITIONS, "Sections that all vCPUs completed inside the window.", |it| {
        Ok(it.outcome.acquisitions() as f64)
    }),
    count("reads", "Number of these that only read, in workloads that count them apart.", |it| {
        Ok(it.outcome.reads as f64)
    }),
    rate(THROUGHPUT, "Sections completed per second of window.", |it| Ok(it.per_second()))
        .estimated(More)
        .column("throughput", OfWindows, "")
        .gives_way(Some(0), None),
    ns(COMPLETION, "Time that the fixed amount of work took.", |it| {
        it.outcome.completion.map(nanoseconds).ok_or_else(|| match it.asked.ours.shape.work() {
            None => "no fixed amount of work was asked for".into(),
            Some(sections) => format!("the {sections} sections were not done within the window").into(),
        })
    })
    .estimated(Less)
    .column("completion", OfWork, "")
    .gives_way(Some(1), None)
    .or("not done"),
    rate(LOCK_FREE, "Sections per second of the same cell with no lock at all.", |it| it.lock_free.clone()),
    rate(
        IDEAL,
        "The cell with no lock at all, for sections of one length at most locks / hold: no cost of locking, and no vCPU preempted \
         while others wait.",
        |it| it.ideal(),
    ),
    share(EFFICIENCY, "Throughput over the ideal.", |it| Ok(it.per_second() / it.ideal()?))
        .estimated(More)
        .column("efficiency", Always, "")
        .with_interval(),
    // How evenly it fell on the vCPUs.
    share(JAIN, "Jain's index of fairness: 1 when all vCPUs did the same, 1/n when one did all.", |it| it.jain())
        .estimated(More)
        .column("fairness", Always, "")
        .gives_way(None, Some(2)),
    row(STARVED, Unit::Vcpus, "vCPUs that completed no section inside the window.", |it| {
        Ok(it.of_vcpus().filter(|count| *count == 0).count() as f64)
    })
    .better(Less)
    .center(Median)
    .column("starved", IfAny, "vCPUs that completed nothing in the window, median over the runs")
    .gives_way(None, Some(9)),
    count(FEWEST, "Fewest sections of a vCPU.", |it| Ok(it.of_vcpus().min().unwrap_or(0) as f64)),
    count("max_per_vcpu", "Most sections of a vCPU.", |it| Ok(it.of_vcpus().max().unwrap_or(0) as f64)),
    family("node_*_vcpus", Unit::Count, "vCPUs that began on a NUMA node.", |it| it.of_nodes(|_| Some(1))),
    family("node_*_acquisitions", Unit::Count, "Sections that they completed inside the window.", |it| {
        it.of_nodes(|vcpu| Some(it.outcome.vcpus[vcpu].acquisitions))
    }),
    family("node_*_run_ns", Unit::Nanoseconds, "Their time on pCPUs inside the window.", |it| {
        it.of_nodes(|vcpu| it.outcome.vcpus[vcpu].run_ns)
    }),
    // Waits, sections, and further times of the workload.
    times("*_count", Unit::Count, "Times that came to their end inside the window.", |times| times.count()),
    times("*_pending", Unit::Count, "Times that had not come to their end when the window closed.", |times| times.unended()),
    times_ns("*_mean_ns", "Arithmetic mean of those that came to their end.", |times| times.mean()),
    wait(LONG_WAITS, "Half of all time spent waiting went into waits at least this long.", |it| {
        it.times[0].half_of_time()
    })
    .column("long waits", OfWindows, "half of all time spent waiting went into waits at least this long")
    .gives_way(None, Some(8)),
    wait("wait_p50_ns", "Median time from asking for the lock to having it, waits that had not ended included.", |it| {
        it.times[0].quantile(0.5)
    })
    .column("wait p50", InReport, ""),
    wait(WAIT_P99, "99th percentile of that time.", |it| it.times[0].quantile(0.99))
        .column("wait p99", InReport, ""),
    wait("wait_p999_ns", "99.9th percentile of that time.", |it| it.times[0].quantile(0.999)),
    ns("wait_longest_ns", "Longest wait, ended or not.", |it| it.times[0].longest()).better(Less).center(Most),
    times_ns("*_p50_ns", "Median of a time, of those pending too; so the other quantiles.", |times| times.quantile(0.5)),
    times_ns("*_p90_ns", "90th percentile.", |times| times.quantile(0.9)),
    times_ns("*_p99_ns", "99th percentile.", |times| times.quantile(0.99)),
    times_ns("*_p999_ns", "99.9th percentile.", |times| times.quantile(0.999)),
    times_ns("*_max_ns", "Largest of those that came to their end.", |times| times.max()),
    times_ns("*_longest_ns", "Largest, the pending ones included.", |times| times.longest()),
    times_ns("*_half_of_time_ns", "Half of the sum is made of times at least as long.", |times| times.half_of_time()),
    count("overtaken_most", "Most sections that others began in one wait, in workloads that count them.", |it| {
        let counted = it.outcome.lock_events.iter().find(|(name, count)| name == "overtaken_most" && *count > 0);
        counted.map(|(_, most)| *most as f64).ok_or_else(|| "no overtaking was counted".into())
    })
    .better(Less)
    .center(Most)
    .column("overtaken", IfAny, "sections that others began in the worst wait of all runs"),
    // Preemptions, and what they cost.
    count("preemptions", "Times a running vCPU was taken off its pCPU, or went to sleep, inside the window.", |it| {
        it.attributed(it.outcome.preemptions).map(total)
    }),
    family("preemptions_*", Unit::Count, "These by what the vCPU was doing.", |it| {
        by_activity(it.attributed(it.outcome.preemptions))
    }),
    ns("preempted_ns", "Time that those vCPUs were off for.", |it| {
        it.attributed(it.outcome.preempted_ns).map(total)
    }),
    family("preempted_*_ns", Unit::Nanoseconds, "This by what they were doing.", |it| {
        by_activity(it.attributed(it.outcome.preempted_ns))
    }),
    wait(
        "lost_ns",
        "Time that all other vCPUs spun or waited for a lock because vCPUs were off. Exact for holders, a lower bound for heads and \
         waiters. Under the host's scheduler, without reports of its switches, only for vCPUs that were taken off on purpose.",
        |it| it.attributed(it.outcome.lost_ns).map(total),
    )
    .column("lost", IfAny, "time that others waited because a vCPU was off its pCPU")
    .gives_way(Some(5), None),
    wait("lost_per_holder_ns", "What others lost for each preemption of a lock's holder.", |it| {
        it.lost_per(|by| by.holder, "holder")
    })
    .column("lost/holder", IfAny, "what others lost for each preemption of a lock's holder")
    .gives_way(Some(4), Some(7)),
    wait("lost_per_head_ns", "What others lost for each preemption of the first in a strict queue.", |it| {
        it.lost_per(|by| by.head, "head of a queue")
    })
    .column("lost/head", IfAny, "the same for the first vCPU in a strict queue")
    .gives_way(Some(3), Some(6)),
    family("lost_*_ns", Unit::Nanoseconds, "The lost time by what the vCPU was doing that was off.", |it| {
        by_activity(it.attributed(it.outcome.lost_ns))
    }),
    count(
        "skipped_losses",
        "Returns of vCPUs at which the VMM did not look for lost time, since its looks had taken 1 % of the vCPU's time; if there are \
         any, lost times are lower bounds.",
        |it| Ok(it.outcome.skipped_losses as f64),
    ),
    count("injected", "Times that a vCPU was taken off on purpose.", |it| it.injected().map(total))
        .of_linux(|it| match it.is_injected {
            true => it.sum(|vcpu| vcpu.injected),
            false => Err("no vCPU was to be descheduled on purpose".into()),
        }),
    family("injected_*", Unit::Count, "These by what the vCPU was doing.", |it| by_activity(it.injected())),
    family(
        "closed_*",
        Unit::Count,
        "Heads of a paravirtual qspinlock that were taken off while their pending bit forbade stealing: absences, nanoseconds off, \
         and nanoseconds that others waited for the lock while it was free.",
        |it| {
            let closed = it.outcome.closed.as_ref().map_err(Clone::clone)?;
            keyed([("absences", closed.absences), ("off_ns", closed.off_ns), ("lost_ns", closed.lost_ns)])
        },
    ),
    share("hint_error_rate", "Share of wrong looks at the `preempted` flags of other vCPUs.", |it| {
        let check = it.outcome.hint.ok_or_else(unlooked)?;
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        // With books of the scheduler: looks that they contradict, or that moved while marked; else both kinds that vCPUs saw.
        Ok(match check.compared {
            0 => share(check.moved_while_marked.saturating_add(check.still_while_unmarked), check.samples),
            compared => share(check.contradicted, compared).max(share(check.moved_while_marked, check.samples)),
        })
    })
    .better(Less),
    family(
        "hint_*",
        Unit::Count,
        "Looks at these flags: all; with the flag set where the vCPU moved; with it clear where it did not; compared with the \
         scheduler's books; contradicted by them.",
        |it| {
            let looks = it.outcome.hint.ok_or_else(unlooked)?;
            keyed([
                ("samples", looks.samples),
                ("moved_while_marked", looks.moved_while_marked),
                ("still_while_unmarked", looks.still_while_unmarked),
                ("compared", looks.compared),
                ("contradicted", looks.contradicted),
            ])
        },
    ),
    family(
        "grace_*",
        Unit::Count,
        "Slices that were extended for a vCPU that said it held a lock: granted; expired, at whose end it was taken off all the same; \
         nanoseconds run beyond the ends of slices.",
        |it| {
            let by_host = it.asked.run.rules.sched == Sched::Host;
            let none = if by_host { "the host's scheduler decides" } else { "not asked for" };
            let graces = it.outcome.graces.ok_or(Unknown::from(none))?;
            keyed([("granted", graces.granted), ("expired", graces.expired), ("overrun_ns", graces.overrun_ns)])
        },
    ),
    family(
        "throttled_*",
        Unit::Count,
        "What a quota kept from running inside the window. The VMM's: times and nanoseconds that vCPUs were kept until the next \
         period, and times with a lock held. The kernel's: periods, those in which the quota was used up, and nanoseconds of pCPUs.",
        |it| match (it.outcome.throttled, it.outcome.throttled_by_kernel) {
            (Some(by_vmm), _) => {
                keyed([("times", by_vmm.times), ("holders", by_vmm.holders), ("ns", by_vmm.ns)])
            }
            (None, Some(by_kernel)) => keyed([
                ("of_periods", by_kernel.periods),
                ("periods", by_kernel.throttled_periods),
                ("pcpu_ns", by_kernel.pcpu_ns),
            ]),
            (None, None) => Err("the guest had no quota".into()),
        },
    ),
    count("handed_over", "Times that a vCPU was run because another one named it, in a yield or a kick, whole run.", |it| {
        let undirected = || "the host's scheduler takes no directions".into();
        it.outcome.handed.map(|times| times as f64).ok_or_else(undirected)
    }),
    family(
        "switches_*",
        Unit::Count,
        "Reports of a BPF program about the host's scheduler, whole run: read; dropped because they came too fast; of vCPUs' threads \
         that lost their CPU and could have gone on.",
        |it| {
            let out = it.outcome.vcpus.iter().filter_map(|vcpu| vcpu.switched_out_ready).sum();
            let reports = it.outcome.switches.clone()?;
            keyed([("read", reports.read), ("dropped", reports.dropped), ("out_ready", out)])
        },
    ),
    row("kicks_per_section", Unit::Number, "Kicks that vCPUs received in the whole run, over sections in the window.", |it| {
        let kicks = it.outcome.vcpus.iter().map(|vcpu| vcpu.kicks).sum::<Option<u64>>();
        let kicks = kicks.ok_or("kicks are not counted with this back end")?;
        Ok(kicks as f64 / (it.outcome.acquisitions() as f64).max(1.0))
    })
    .estimated(Less),
    // Time.
    ns(CPU, "CPU time of the whole process.", |it| Ok(nanoseconds(it.found.cpu_time)))
        .of_linux(|it| Ok(nanoseconds(it.found.cpu_time))),
    ns("run_ns", "Time of all vCPUs on pCPUs.", |it| it.run_ns()).of_linux(|it| it.sum(|vcpu| vcpu.run_ns)),
    ns(LOCK_CPU, "The part of it that went into acquiring and releasing locks.", |it| it.lock_cpu_ns()).better(Less),
    share(LOCK_CPU_SHARE, "Share of the vCPUs' time on pCPUs that went into acquiring and releasing locks.", |it| {
        Ok(it.lock_cpu_ns()? / it.run_ns()?.max(1.0))
    })
    .estimated(Less)
    .column("in locks", OfWork, ""),
    ns("start_up_ns", "From the start of the run to the first section entered.", |it| {
        Ok(nanoseconds(it.outcome.start_up))
    }),
    ns("all_started_ns", "From the start of the run until all vCPUs of all its guests had started.", |it| {
        it.found.started.clone().map(nanoseconds)
    }),
    ns("cpu_before_ns", "CPU time of the process from the start of the run to the opening of the window.", |it| {
        it.found.cpu_before.clone().map(nanoseconds)
    }),
    ns(WINDOW, "Length of the window as it was.", |it| Ok(nanoseconds(it.outcome.window))),
    other("until_end_ns", Unit::Nanoseconds, "From the first instruction of a Linux guest to its end.")
        .of_linux(|it| Ok(nanoseconds(it.outcome.run))),
    other("user_space_ns", Unit::Nanoseconds, "From its first instruction to the marker on the console.").of_linux(|it| {
        it.outcome.user_space.map(nanoseconds).ok_or_else(|| {
            "no line of the console had the marker in it: see --marker, and leave `quiet` off the command line".into()
        })
    }),
    row("tsc_khz", Unit::Number, "TSC frequency in kHz.", |it| Ok(it.outcome.tsc_khz as f64))
        .of_linux(|it| Ok(it.outcome.tsc_khz as f64)),
    count("tsc_steps_back", "Times that the TSC of a vCPU was seen to step back between two readings.", |it| {
        Ok(it.outcome.tsc_steps_back as f64)
    }),
    row(WORK_RATE, Unit::Number, "Iterations of the work loop per 2^20 ns, as calibrated.", |it| {
        Ok(it.outcome.work_rate as f64)
    }),
    share(WORK_SPEED, "How fast the work really went, over the promised speed: median over the vCPUs.", |it| {
        it.speeds().map(|speeds| median(&speeds))
    }),
    share("work_slowest_vcpu", "The least of the vCPUs' speeds, each the median of its last 30 timed pieces.", |it| {
        it.speeds().map(|speeds| speeds.into_iter().fold(f64::INFINITY, f64::min))
    }),
    share("work_fastest_vcpu", "The largest of the vCPUs' speeds.", |it| {
        it.speeds().map(|speeds| speeds.into_iter().fold(0.0, f64::max))
    }),
    count("work_pieces", "Pieces of work that were timed: one in 61.", |it| {
        Ok(it.outcome.work.iter().flatten().map(|speed| f64::from(speed.pieces)).sum())
    }),
    // Costs without contention: cycles per pair of lock and unlock with a rest after it, the best of several short runs at boot, less
    // what the rests take alone.
    cycles(PAIRS[0], "A pair of lock and unlock without contention, at call sites that the VMM has rewritten.", |it| {
        cycles_of(it.outcome.pair_ticks.patched).ok_or_else(|| match &it.asked.run.engine {
            Engine::Qemu(_) => "QEMU starts the image as it is, without patching it".into(),
            _ if !it.asked.ours.patch => "patch is off".into(),
            _ => "no call site was patched".into(),
        })
    })
    .estimated(Less),
    cycles(PAIRS[1], "The same, called through a table.", |it| {
        cycles_of(it.outcome.pair_ticks.through_table).ok_or_else(unmeasured)
    })
    .estimated(Less),
    cycles(PAIRS[2], "The same, compiled into the caller.", |it| {
        cycles_of(it.outcome.pair_ticks.compiled_in).ok_or_else(unmeasured)
    })
    .estimated(Less),
    row(LOCK_BYTES, Unit::Bytes, "Memory of one lock.", |it| {
        it.outcome.calls.map(|calls| f64::from(calls.lock_bytes)).ok_or_else(unsaid)
    })
    .center(Median),
    row(CPU_BYTES, Unit::Bytes, "Memory that each vCPU needs for all locks of this kind.", |it| {
        it.outcome.calls.map(|calls| f64::from(calls.cpu_bytes)).ok_or_else(unsaid)
    })
    .center(Median),
    count("patched_sites", "Call sites that were rewritten.", |it| Ok(it.outcome.patched_sites as f64)),
    cycles("oracle_tsc_cycles", "Cost of the exclusion checker in a section.", |it| {
        let off = || if it.asked.ours.oracle { unmeasured() } else { "the oracle is off".into() };
        cycles_of(it.outcome.costs.oracle).ok_or_else(off)
    }),
    family(
        "instrument_*_tsc_cycles",
        Unit::TscCycles,
        "Measurement overhead without other vCPUs: reading the clock; reading it between fences; all that is around an empty section, \
         the lock left out; counting a section's times.",
        |it| {
            let Costs { stamp, ordered_stamp, section, counting, .. } = it.outcome.costs;
            let all =
                [("stamp", stamp), ("ordered_stamp", ordered_stamp), ("section", section), ("counting", counting)];
            Ok(all.map(|(name, ticks)| (name.into(), cycles_of(ticks).ok_or_else(unmeasured))).into())
        },
    ),
    // Memory, caches, and the oracle.
    row("memory_resident_bytes", Unit::Bytes, "Guest memory that something had touched when the run ended.", |it| {
        it.outcome.residence.as_ref().map(|it| it.resident_bytes as f64).map_err(Clone::clone)
    }),
    row("memory_huge_bytes", Unit::Bytes, "The part of it in huge pages (AnonHugePages).", |it| {
        let residence = it.outcome.residence.as_ref().map_err(Clone::clone)?;
        residence.huge_bytes.clone().map(|bytes| bytes as f64)
    }),
    family("memory_node_*_bytes", Unit::Bytes, "The part of it on a NUMA node.", |it| {
        let nodes = it.outcome.residence.clone()?.node_bytes?;
        Ok(nodes.into_iter().map(|(node, bytes)| (node.to_string(), Ok(bytes as f64))).collect())
    }),
    family("pmu_*", Unit::Count, "Cache events that the host's PMU counted in the guest, with --pmu on.", |it| {
        let events = it.found.pmu.clone()?;
        Ok(events.into_iter().map(|(name, count)| (name.into(), count.map(|it| it as f64))).collect())
    }),
    count("lost_updates", "Updates of the plain counter under the lock that were lost.", |it| {
        it.outcome.lost_updates.map(|lost| lost as f64).ok_or_else(|| match it.asked.ours.oracle {
            true => "without a lock, updates may be lost".into(),
            false => "not watched (--oracle off)".into(),
        })
    })
    .better(Less),
    // Figures of all guests of a run, which a summary puts together.
    other(OF_ALL_GUESTS[0], Unit::PerSecond, "Sections per second of all guests that ran at once.")
        .estimated(More)
        .column("all guests", OfAllGuests, "")
        .with_interval(),
    other(OF_ALL_GUESTS[1], Unit::PerSecond, "Sections per second of the slowest guest of each run.")
        .estimated(More)
        .column("slowest guest", OfAllGuests, ""),
    other(OF_ALL_GUESTS[2], Unit::PerSecond, "Sections per second of the slowest vCPU of each run.")
        .estimated(More)
        .column("slowest vCPU", OfAllGuests, ""),
    other(OF_ALL_GUESTS[3], Unit::Nanoseconds, "99th percentile of the waits in the guest of each run where it is longest.")
        .estimated(Less)
        .needs_lock()
        .column("p99", OfAllGuests, ""),
];

fn unmeasured() -> Unknown {
    "the guest image does not measure it".into()
}

fn unsaid() -> Unknown {
    "the guest image does not say".into()
}

fn unlooked() -> Unknown {
    "this workload does not look: use --workload hint-check".into()
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_nanos() as f64
}

/// Cycles of one of 1024.
fn cycles_of(ticks: Option<u64>) -> Option<f64> {
    ticks.map(|ticks| ticks as f64 / 1024.0)
}

fn keyed<const N: usize>(counts: [(&str, u64); N]) -> Members {
    Ok(counts.map(|(key, count)| (key.into(), Ok(count as f64))).into())
}

fn parts(ByActivity { holder, head, waiter, halted, other }: ByActivity) -> [(&'static str, u64); 5] {
    [("holder", holder), ("head", head), ("waiter", waiter), ("halted", halted), ("other", other)]
}

fn total(by: ByActivity) -> f64 {
    parts(by).iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count)) as f64
}

/// Members of a family by what a vCPU was doing; null where that is not known.
fn by_activity(values: Known<ByActivity>) -> Members {
    let each = parts(values.clone().unwrap_or_default());
    Ok(each.map(|(key, value)| (key.into(), values.clone().map(|_| value as f64))).into())
}
