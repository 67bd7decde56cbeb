//! `haltkick run --kernel`: a Linux guest. Its console goes to stderr as it comes, its record to stdout at the end.

use std::path::Path;
use std::time::SystemTime;

use haltkick_vmm::{Image, LinuxEnd, LinuxGuest, RunConfig, Target, run_linux};

use crate::cli::{Format, RunArgs};
use crate::commands::interrupt;
use crate::host::cpulist;
use crate::host::identity::Host;
use crate::host::noise::Watch;
use crate::measure::{self, fill::Origin, judge};
use crate::record::Warning;
use crate::record::linux::LinuxRecord;
use crate::settings::deschedule::Policy;
use crate::settings::{DescheduleChoice, EngineChoice, Settings, Supply, Switch};
use crate::show;
use crate::show::failure::printable;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;
use crate::text::quantity::time_ns;

/// Enough for a distribution's kernel and a small initramfs.
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;
/// What kernels say before they start the first program, unless they are told to be quiet.
const DEFAULT_MARKER: &str = "Run /";

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
    let mut record =
        measure::linux::record(&config, &linux, &outcome, origin.context(None, Err(String::new())));
    let spoilers = judge::spoilers(&record.noise, origin.tick_resolution(), outcome.pinning_lost.as_deref());
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
        Format::Table => output::data(&show::linux::record(record)),
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
