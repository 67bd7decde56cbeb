//! `haltkick run --kernel`: a Linux guest. Its console goes to stderr as it comes, its record to stdout at the end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use haltkick_vmm::{
    Image, LinuxEnd, LinuxGuest, LinuxOutcome, LinuxVcpu, RunConfig, Sched, Target, run_linux,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::{Format, RunArgs};
use crate::commands::interrupt;
use crate::host::cpulist;
use crate::host::identity::Host;
use crate::host::noise::{NO_STEAL, Watch};
use crate::measure::run;
use crate::record::failure::printable;
use crate::record::{Activities, Context, Distribution, Fairness, LockCost, Noise, Origin, Totals, Warning};
use crate::settings::deschedule::Policy;
use crate::settings::{DescheduleChoice, EngineChoice, Settings, Supply, Switch};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;
use crate::text::quantity::{count, significant, time_ns};

/// Enough for a distribution's kernel and a small initramfs.
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;
/// What kernels say before they start the first program, unless they are told to be quiet.
const DEFAULT_MARKER: &str = "Run /";
/// Why a field is null that tells of the inside of our own guest.
const UNKNOWN_INSIDE: &str = "nothing inside a Linux guest is known to the VMM";

/// A run of a Linux guest. The output of `haltkick run --kernel --format json`. Fields of other records whose content
/// a Linux guest does not tell are there, and null.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub(crate) struct LinuxRecord {
    /// "haltkick.linux".
    schema: &'static str,
    /// 1.
    schema_version: u32,
    /// Unique among all runs.
    run_id: String,
    /// When the run began, RFC 3339.
    started: String,
    /// What was asked.
    config: Config,
    /// Where it ran, in short.
    host: Host,
    /// "power-off", "reset", "panic", "time-limit" or "failed".
    end: &'static str,
    /// Whether the guest switched itself off.
    clean: bool,
    /// Why it failed; null if it did not.
    failure: Option<String>,
    /// How the run went.
    timing: Timing,
    /// The lock's uncontended cost: null.
    lock_cost: Option<LockCost>,
    /// Sections completed: null.
    totals: Option<Totals>,
    /// How evenly they fell on the vCPUs: null.
    fairness: Option<Fairness>,
    /// From asking for a lock to having it: null.
    wait_ns: Option<Distribution>,
    /// From having it to having released it: null.
    hold_ns: Option<Distribution>,
    /// Lock events: null. `perf lock` or lock statistics inside the guest tell of them.
    lock_events: Option<BTreeMap<String, u64>>,
    /// Exits of all vCPUs that the VMM saw, by reason.
    vm_exits: BTreeMap<String, u64>,
    /// What KVM counted for all vCPUs, under its names.
    kvm_stats: Option<BTreeMap<String, u64>>,
    /// By what the vCPU was doing: null. `per_vcpu` counts how often.
    preemptions: Option<Activities>,
    /// The same in time: null.
    preempted_ns: Option<Activities>,
    /// What the others lost by it: null.
    lost_ns: Option<Activities>,
    /// Times that a vCPU was taken off on purpose; null where nobody was to be.
    injected: Option<u64>,
    /// Each vCPU, in order, from outside.
    per_vcpu: Vec<PerVcpu>,
    /// What else ran on the pCPUs meanwhile.
    noise: Noise,
    /// False: finished, but read `warnings` before believing a figure.
    trusted: bool,
    /// What speaks against this run.
    warnings: Vec<Warning>,
    /// Why a field is null, by the field's path.
    why: BTreeMap<String, String>,
}

/// What was asked.
#[derive(Clone, Debug, JsonSchema, Serialize)]
struct Config {
    /// The kernel's file.
    kernel: String,
    /// The initial RAM disk's file; null: none.
    initrd: Option<String>,
    /// The kernel's command line, our own words first.
    command_line: String,
    /// Memory of the guest.
    memory_bytes: u64,
    /// Number of vCPUs.
    vcpus: u32,
    /// Host CPUs that they share.
    cpus: Vec<u32>,
    /// vCPUs per pCPU.
    ratio: f64,
    /// "vmm" or "host".
    sched: &'static str,
    /// Length of a slice; null where the host decides.
    slice_ns: Option<u64>,
    /// Whether CPUID offers what Linux's paravirtual spin locks need.
    pv: bool,
    /// KVM's features that CPUID offered.
    pv_features: Vec<&'static str>,
    /// Whom to take off on purpose, how often and for how long; null: nobody.
    deschedule: Option<String>,
    /// How long KVM polls before it lets a halted vCPU sleep; null: as the host is set up, or not at all under the VMM's scheduler.
    halt_poll_ns: Option<u64>,
    /// Whether spin loops may end in exits.
    pause_exits: bool,
    /// What a line of the console has in it when user space is there.
    marker: String,
    /// How long the guest may take until it has powered off; null: as long as it likes.
    limit_ns: Option<u64>,
    /// Seed of everything random.
    seed: u64,
}

/// How the run went.
#[derive(Clone, Debug, JsonSchema, Serialize)]
struct Timing {
    /// From the first instruction to the end.
    run_ns: u64,
    /// From the first instruction to the marker on the console; null if it was not seen.
    user_space_ns: Option<u64>,
    /// CPU time of the whole process meanwhile.
    cpu_ns: u64,
    /// TSC frequency.
    tsc_khz: u64,
}

/// One vCPU, whole run.
#[derive(Clone, Debug, JsonSchema, Serialize)]
struct PerVcpu {
    /// Time on a pCPU; under the host's scheduler, CPU time of its thread.
    run_ns: Option<u64>,
    /// Time runnable without a pCPU, or held back on purpose.
    descheduled_ns: Option<u64>,
    /// Time halted; null under the host's scheduler.
    halted_ns: Option<u64>,
    /// Times that it lost its pCPU while it could have gone on.
    descheduled: u64,
    /// Times that it was taken off on purpose; under the VMM's scheduler part of `descheduled`.
    injected: u64,
    /// Halts; null where nobody counts them.
    halts: Option<u64>,
}

/// Boots the kernel of `args`, runs it to its end, prints its record.
pub(crate) fn run(args: &RunArgs, kernel: &Path) -> Result<Exit> {
    refuse_what_is_for_our_own_guest(args)?;
    let image = Image::embedded();
    let allowed = cpulist::allowed()?;
    let config = args
        .settings
        .resolve(Supply { image: &image, allowed: &allowed })
        .map_err(|wrong| Failure::usage(format!("--{}: {}", wrong.key, wrong.message)))?;
    // Unlike a lock's, these are there unless somebody hides them.
    let config = RunConfig { pv: args.settings.pv != Some(Switch::Off), ..config };
    let linux = LinuxGuest {
        kernel: kernel.into(),
        initrd: args.initrd.clone(),
        append: args.append.clone().unwrap_or_default(),
        memory_bytes: args.settings.memory.map_or(DEFAULT_MEMORY_BYTES, |memory| memory.bytes),
        marker: args.marker.clone().unwrap_or_else(|| DEFAULT_MARKER.into()),
        limit: args.settings.window.map(|span| span.0),
    };
    let stop = interrupt::catch()?;
    let (started, watch) = (SystemTime::now(), Watch::start(&config.cpus));
    let console = Box::new(|line: &str| output::talk(&printable(line)));
    let warn = |obstacle: &str| {
        output::talk(&format!(
            "haltkick: {obstacle}: a kernel, which lives there, may take hours to boot or not run at all; use a host with VMX or SVM"
        ));
    };
    let outcome = run_linux(&config, &linux, console, warn, &stop)?;
    let origin = Origin::new(started, Host::probe(), watch.finish());
    let mut record = LinuxRecord::new(&config, &linux, &outcome, origin.context(None, Err(String::new())));
    let spoilers = run::spoilers(&record.noise, origin.tick_resolution(), outcome.pinning_lost.as_deref());
    record.warnings.extend(spoilers);
    if let Some(obstacle) = &outcome.obstacle {
        let message = format!("{obstacle}: its figures say nothing about hardware");
        record.warnings.push(Warning { code: "interpreted".into(), message });
    }
    record.trusted = record.warnings.is_empty();
    conclude(&record, outcome.end, args.format)
}

fn conclude(record: &LinuxRecord, end: LinuxEnd, format: Format) -> Result<Exit> {
    match format {
        Format::Json => output::data(&format!("{}\n", output::to_json(record)?)),
        Format::Table => output::data(&record.table()),
    }?;
    for warning in &record.warnings {
        output::talk(&format!("haltkick: not to be trusted: {}", warning.message));
    }
    let after = time_ns(record.timing.run_ns as f64);
    let failure = |exit: Exit, message: String| Err(Failure { exit, message });
    match end {
        LinuxEnd::PowerOff if record.trusted => Ok(Exit::Done),
        LinuxEnd::PowerOff => Ok(Exit::Untrusted),
        LinuxEnd::Reset => failure(
            Exit::GuestFailed,
            format!("the guest asked for a reset after {after}, and not to be switched off"),
        ),
        LinuxEnd::Panic => failure(
            Exit::GuestFailed,
            format!("the guest's kernel panicked after {after}: its console says why"),
        ),
        LinuxEnd::TimeLimit => failure(
            Exit::NoProgress,
            format!(
                "the guest had not powered off after {after}: let it run `poweroff -f`, or give it more with --duration"
            ),
        ),
        LinuxEnd::Failed(error) => Err(error.into()),
    }
}

/// Every setting is either used for Linux guests too, or refused.
fn refuse_what_is_for_our_own_guest(args: &RunArgs) -> Result<()> {
    let Settings {
        engine,
        accel,
        vcpus: _,
        ratio: _,
        cpus: _,
        ring,
        sched: _,
        slice: _,
        deschedule,
        grace,
        slice_margin,
        kick_yield,
        attribution,
        pmu,
        lock,
        layout,
        pv: _,
        patch,
        preempted_hint,
        pv_backend,
        halt_poll: _,
        pause_exits: _,
        hlt_exits,
        preempted_by,
        spin_threshold,
        workload,
        hold,
        think,
        locks,
        memory: _,
        work,
        after_work,
        long_hold,
        long_one_in,
        nested_one_in,
        shape,
        window: _,
        min_turns,
        min_sections,
        warmup,
        watchdog,
        seed: _,
        work_rate,
        vm,
        share,
    } = &args.settings;
    let given = [
        ("engine", engine.is_some_and(|engine| engine != EngineChoice::Kvm)),
        ("accel", accel.is_some()),
        ("ring", ring.is_some()),
        ("grace", grace.is_some()),
        ("slice-margin", slice_margin.is_some()),
        ("kick-yield", kick_yield.is_some()),
        ("attribution", attribution.is_some()),
        ("pmu", pmu.is_some()),
        ("lock", lock.is_some()),
        ("layout", layout.is_some()),
        ("patch", patch.is_some()),
        ("preempted-hint", preempted_hint.is_some()),
        ("pv-backend", pv_backend.is_some()),
        ("hlt-exits", hlt_exits.is_some()),
        ("preempted-by", preempted_by.is_some()),
        ("spin-threshold", spin_threshold.is_some()),
        ("workload", workload.is_some()),
        ("hold", hold.is_some()),
        ("think", think.is_some()),
        ("locks", locks.is_some()),
        ("work", work.is_some()),
        ("after-work", after_work.is_some()),
        ("long-hold", long_hold.is_some()),
        ("long-one-in", long_one_in.is_some()),
        ("nested-one-in", nested_one_in.is_some()),
        (shape.given().unwrap_or_default(), shape.given().is_some()),
        ("min-turns", min_turns.is_some()),
        ("min-sections", min_sections.is_some()),
        ("warmup", warmup.is_some()),
        ("watchdog", watchdog.is_some()),
        ("work-rate", work_rate.is_some()),
        ("vm", !vm.is_empty()),
        ("share", share.is_some()),
        ("guest-set", args.guest_set.is_some()),
        ("guest", args.guest.is_some()),
        ("no-ideal", args.no_ideal),
        ("profile", args.profile.is_some()),
        ("trace", args.trace.is_some()),
        ("perf-map", args.perf_map),
    ];
    if let Some((key, _)) = given.into_iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!(
            "--{key} is for our own guest on /dev/kvm: leave it out with --kernel"
        )));
    }
    match deschedule {
        Some(DescheduleChoice(Some(Policy(policy))))
            if policy.target != Target::Random || policy.at.is_some() =>
        {
            Err(Failure::usage(
                "--deschedule: nobody knows what a vCPU of a Linux guest is doing: use random, without at=",
            ))
        }
        _ => Ok(()),
    }
}

impl LinuxRecord {
    fn new(config: &RunConfig, linux: &LinuxGuest, outcome: &LinuxOutcome, context: Context) -> Self {
        let mut why = BTreeMap::new();
        for inside in [
            "lock_cost",
            "totals",
            "fairness",
            "wait_ns",
            "hold_ns",
            "lock_events",
            "preemptions",
            "preempted_ns",
            "lost_ns",
        ] {
            why.insert(inside.to_owned(), UNKNOWN_INSIDE.to_owned());
        }
        let mut explain = |key: &str, reason: &str| _ = why.insert(key.into(), reason.into());
        let noise = context.noise.unwrap_or_else(|reason| {
            explain("noise.others_share", &reason);
            explain("noise.steal_share", &reason);
            Noise::default()
        });
        if noise.others_share.is_some() && noise.steal_share.is_none() {
            explain("noise.steal_share", NO_STEAL);
        }
        explain("noise.run_delay_share", "runs of Linux do not look");
        for (name, reason) in context.host.why() {
            explain(&format!("host.{name}"), &reason);
        }
        if outcome.user_space.is_none() {
            explain(
                "timing.user_space_ns",
                "no line of the console had the marker in it: see --marker, and leave `quiet` off the command line",
            );
        }
        if let Err(reason) = &outcome.kvm_stats {
            explain("kvm_stats", reason);
        }
        if config.deschedule.is_none() {
            explain("injected", "nobody was to be descheduled on purpose");
        }
        if config.sched == Sched::Host {
            explain("config.slice_ns", "the host's scheduler decides");
            explain("per_vcpu.halted_ns", "the host's scheduler does not tell sleeping from being held back");
        }
        let (end, failure) = match &outcome.end {
            LinuxEnd::PowerOff => ("power-off", None),
            LinuxEnd::Reset => ("reset", None),
            LinuxEnd::Panic => ("panic", None),
            LinuxEnd::TimeLimit => ("time-limit", None),
            LinuxEnd::Failed(error) => ("failed", Some(error.to_string())),
        };
        Self {
            schema: "haltkick.linux",
            schema_version: 1,
            run_id: context.run_id,
            started: context.started,
            config: echo(config, linux, outcome),
            host: context.host,
            end,
            clean: matches!(outcome.end, LinuxEnd::PowerOff),
            failure,
            timing: Timing {
                run_ns: nanoseconds(outcome.run),
                user_space_ns: outcome.user_space.map(nanoseconds),
                cpu_ns: nanoseconds(outcome.cpu_time),
                tsc_khz: outcome.tsc_khz,
            },
            lock_cost: None,
            totals: None,
            fairness: None,
            wait_ns: None,
            hold_ns: None,
            lock_events: None,
            vm_exits: outcome
                .vm_exits
                .iter()
                .filter(|(_, times)| *times > 0)
                .map(|(name, times)| ((*name).to_owned(), *times))
                .collect(),
            kvm_stats: outcome.kvm_stats.as_ref().ok().map(|stats| stats.iter().cloned().collect()),
            preemptions: None,
            preempted_ns: None,
            lost_ns: None,
            injected: config
                .deschedule
                .is_some()
                .then(|| outcome.vcpus.iter().map(|vcpu| vcpu.injected).sum()),
            per_vcpu: outcome.vcpus.iter().map(per_vcpu).collect(),
            noise,
            trusted: true,
            warnings: vec![],
            why,
        }
    }

    /// The record as people read it.
    fn table(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| _ = writeln!(text, "{name:<14} {value}");
        let Config { vcpus, sched, pv, .. } = &self.config;
        let pcpus = self.config.cpus.len();
        line(
            "guest",
            format!(
                "Linux, {vcpus} vCPUs on {pcpus} pCPUs, sched {sched}, pv {}",
                if *pv { "on" } else { "off" }
            ),
        );
        line("offered", self.config.pv_features.join(", "));
        let end = self.failure.as_ref().map_or(self.end.to_owned(), |failure| format!("failed: {failure}"));
        line("end", format!("{end}, after {}", time_ns(self.timing.run_ns as f64)));
        let unseen = || format!("unknown: {}", self.why["timing.user_space_ns"]);
        line("user space", self.timing.user_space_ns.map_or_else(unseen, |ns| time_ns(ns as f64)));
        let sum = |of: fn(&PerVcpu) -> Option<u64>| self.per_vcpu.iter().map(of).sum::<Option<u64>>();
        let time = |ns: Option<u64>| ns.map_or_else(|| "unknown".to_owned(), |ns| time_ns(ns as f64));
        line(
            "vCPUs",
            format!(
                "running {}, descheduled {}, halted {}",
                time(sum(|vcpu| vcpu.run_ns)),
                time(sum(|vcpu| vcpu.descheduled_ns)),
                time(sum(|vcpu| vcpu.halted_ns))
            ),
        );
        let descheduled = sum(|vcpu| Some(vcpu.descheduled)).unwrap_or_default();
        let halts = sum(|vcpu| vcpu.halts).map_or_else(|| "unknown".to_owned(), count);
        line("times", format!("descheduled {}, halted {halts}", count(descheduled)));
        if let (Some(injected), Some(policy)) = (self.injected, &self.config.deschedule) {
            line("injected", format!("{} ({policy})", count(injected)));
        }
        if let Some(share) = self.noise.others_share {
            line("others", format!("{} % of the pCPUs", significant(share * 100.0)));
        }
        text
    }
}

fn echo(config: &RunConfig, linux: &LinuxGuest, outcome: &LinuxOutcome) -> Config {
    let path = |path: &Path| path.display().to_string();
    Config {
        kernel: path(&linux.kernel),
        initrd: linux.initrd.as_deref().map(path),
        command_line: outcome.command_line.clone(),
        memory_bytes: linux.memory_bytes,
        vcpus: config.vcpus,
        cpus: config.cpus.clone(),
        ratio: f64::from(config.vcpus) / config.cpus.len() as f64,
        sched: match config.sched {
            Sched::Vmm => "vmm",
            Sched::Host => "host",
        },
        slice_ns: (config.sched == Sched::Vmm).then(|| nanoseconds(config.slice)),
        pv: config.pv,
        pv_features: outcome.pv_features.clone(),
        deschedule: config.deschedule.clone().map(|policy| Policy(policy).to_string()),
        halt_poll_ns: config.halt_poll.map(nanoseconds),
        pause_exits: config.pause_exits,
        marker: linux.marker.clone(),
        limit_ns: linux.limit.map(nanoseconds),
        seed: config.seed,
    }
}

fn per_vcpu(vcpu: &LinuxVcpu) -> PerVcpu {
    PerVcpu {
        run_ns: vcpu.run_ns,
        descheduled_ns: vcpu.descheduled_ns,
        halted_ns: vcpu.halted_ns,
        descheduled: vcpu.descheduled,
        injected: vcpu.injected,
        halts: vcpu.halts,
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
