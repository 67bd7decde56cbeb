//! Linux guests: the files that a plan boots, a run from its kernel to its end, and its record.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Once};

use haltkick_vmm::{
    Accelerator, AnyOutcome, Complaint, ConsoleSink, Engine, Found, Image, Instruments, LinuxConsole,
    LinuxEnd, LinuxOutcome, MAX_LINUX_MEMORY, Needs, Run, RunError, Sched, input, printable,
};

use super::ahead::lock;
use super::console::{Heard, RunResult, Told, is_ours};
use super::fill::{Origin, explain_vcpus};
use super::judge::judge_host;
use crate::analysis::rate::Rate;
use crate::experiment::plan::{Cell, Plan};
use crate::host::probe;
use crate::record::figures::{FIGURES, LOCK_EVENT, OfLinux};
use crate::record::place::Place;
use crate::record::settings::Settings;
use crate::record::{PerVcpu, Record, Warning, Why};
use crate::results::manifest::KernelFiles;
use crate::settings::row::ns;
use crate::settings::table::boots;
use crate::text::exit::{self, Exit, Failure};
use crate::text::output;
use crate::text::quantity::time_ns;

/// Lines of the console that are told of a guest that failed.
const LAST_LINES: usize = 40;

/// Characters of a kernel's complaint that are told.
const LONGEST_COMPLAINT: usize = 200;

/// Kernels and initial RAM disks that a plan boots.
fn paths(plan: &Plan) -> Vec<PathBuf> {
    Needs::of(plan.cells().map(|cell| &cell.run)).reads
}

/// Which file a path names, and when it changed last: device, inode, seconds and nanoseconds.
type Version = (u64, u64, i64, i64);

/// Files that a plan boots, as they were when their digests were made.
pub(crate) type Versions = BTreeMap<PathBuf, Version>;

/// The files of `plan` as they are now: before their digests are made.
pub(crate) fn versions(plan: &Plan) -> exit::Result<Versions> {
    paths(plan).into_iter().map(|path| version(&path).map(|version| (path, version))).collect()
}

fn version(path: &Path) -> exit::Result<Version> {
    let file = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    Ok((file.dev(), file.ino(), file.ctime(), file.ctime_nsec()))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("{}: {error}: make it readable", path.display()))
}

/// Refuses a guest whose files are others than when their digests were made. It may have booted those.
pub(super) fn check_unchanged(run: &Run, versions: &Versions) -> exit::Result<()> {
    let mut files = run.linux().into_iter().flat_map(|(_, linux)| linux.files());
    let is_changed = |path: &&Path| version(path).ok().as_ref() != versions.get(*path);
    match files.find(is_changed) {
        None => Ok(()),
        Some(path) => Err(Failure::usage(format!(
            "{}: it has changed since the experiment began: restore it, and go on with `haltkick bench --resume`",
            path.display()
        ))),
    }
}

/// The files that each arm of a plan boots, in the order of the arms, and of what varies; none where guests are our own.
pub(crate) fn files(plan: &Plan) -> exit::Result<Vec<KernelFiles>> {
    let hash = |path: PathBuf| {
        // A file has at most as many bytes as a guest's memory may have.
        let bytes = input::read(&path, MAX_LINUX_MEMORY).map_err(|error| unreadable(&path, &error))?;
        Ok((path, probe::hash(bytes)))
    };
    let hashes = paths(plan).into_iter().map(hash).collect::<exit::Result<BTreeMap<PathBuf, String>>>()?;
    let of_cell = |cell: &Cell| {
        let (_, guest) = cell.run.linux()?;
        let varying = cell.setting.iter().filter(|(key, _)| boots(key));
        Some(KernelFiles {
            arm: cell.arm.clone(),
            setting: varying.map(|(key, value)| (key.clone(), value.clone())).collect(),
            kernel: guest.kernel.display().to_string(),
            kernel_sha256: hashes[&guest.kernel].clone(),
            initrd: guest.initrd.as_ref().map(|disk| disk.path().display().to_string()),
            initrd_sha256: guest.initrd.as_ref().map(|disk| hashes[disk.path()].clone()),
            command_line: guest.append.clone(),
        })
    };
    let mut files: Vec<KernelFiles> = vec![];
    for arm in &plan.outline.arms {
        for of_cell in plan.cells().filter(|cell| cell.arm == *arm).filter_map(of_cell) {
            if !files.iter().any(|known| known.name() == of_cell.name()) {
                files.push(of_cell);
            }
        }
    }
    Ok(files)
}

fn outcome_of(found: &Found) -> &LinuxOutcome {
    match &found.guests[0].result {
        Ok(AnyOutcome::Linux(outcome)) => outcome,
        Ok(AnyOutcome::Ours(_)) | Err(_) => panic!("a Linux guest has an outcome, whatever its end"),
    }
}

/// Boots the guest of `run`. Tells the end of the console of a guest that fails.
pub(super) fn boot_and_tell(run: &Run, image: &Image, stop: &AtomicBool) -> Result<RunResult, RunError> {
    let last = Arc::new(Mutex::new(VecDeque::new()));
    let keeps = Arc::clone(&last);
    let shows = Arc::new(move |line: &str| {
        let mut last = lock(&keeps);
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(printable(line));
    });
    let seen = boot(run, image, shows, stop)?;
    if ending(&seen).1.is_some() {
        lock(&last).iter().for_each(|line| output::talk(line));
    }
    Ok(seen)
}

/// Boots the guest of `run` and runs it to its end, whatever that is.
pub(crate) fn boot(
    run: &Run,
    image: &Image,
    shows: ConsoleSink,
    stop: &AtomicBool,
) -> Result<RunResult, RunError> {
    // For all runs of an experiment.
    static WARNED: Once = Once::new();
    let heard = Arc::new(Mutex::new((Heard::default(), Told::default())));
    let hears = Arc::clone(&heard);
    let has_inside = run.linux().is_some_and(|(_, linux)| linux.program().is_some());
    let hears = Arc::new(move |line: &str| match &mut *lock(&hears) {
        (_, told) if has_inside => told.hear(line),
        (heard, _) => heard.hear(line),
    });
    let shows = Arc::new(move |line: &str| {
        if !(has_inside && is_ours(line)) {
            shows(line)
        }
    });
    let warns = Arc::new(|obstacle: &str| {
        WARNED.call_once(|| {
            output::talk(&format!(
                "haltkick: {obstacle}: a kernel, which lives there, may take hours to boot or not run at all; use a host with VMX or SVM, \
                 or --engine qemu-tcg with --workload-inside, which boots in seconds but measures nothing"
            ));
        });
    });
    let instruments =
        Instruments { linux: Some(LinuxConsole { hears, shows, warns }), ..Instruments::default() };
    let found = haltkick_vmm::run(run, image, &instruments, stop)?;
    let (heard, told) = lock(&heard).clone();
    let inside = has_inside.then(|| told.end().map(Box::new));
    Ok(RunResult { found, heard, inside })
}

/// The end of a run, as records name it, and the failure that it is; none if the guest did its work and switched itself off.
pub(crate) fn ending(seen: &RunResult) -> (&'static str, Option<Failure>) {
    let outcome = outcome_of(&seen.found);
    let after = time_ns(ns(outcome.run) as f64);
    let failed = |exit, message| Some(Failure { exit, message });
    match &outcome.end {
        LinuxEnd::PowerOff => {
            let reason = seen.inside.as_ref().and_then(|inside| inside.as_ref().err());
            let told = |reason| failed(Exit::GuestFailed, format!("the workload inside failed: {reason}"));
            ("power-off", reason.and_then(told))
        }
        LinuxEnd::Reset => {
            let message = format!("the guest asked for a reset after {after}, and not to be switched off");
            ("reset", failed(Exit::GuestFailed, message))
        }
        LinuxEnd::Panic => {
            let message = format!(
                "the guest's kernel panicked after {after}: its console says why (for want of an /init: --initrd FILE, or \
                 --workload-inside WORDS, which brings its own)"
            );
            ("panic", failed(Exit::GuestFailed, message))
        }
        LinuxEnd::TimeLimit => {
            let message = format!(
                "the guest had not powered off after {after}: let it run `poweroff -f`, or give it more with --duration"
            );
            ("time-limit", failed(Exit::NoProgress, message))
        }
        LinuxEnd::Failed(error) => ("failed", Some(error.into())),
    }
}

/// The record of a run of Linux, with what speaks against it.
pub(crate) fn record(run: &Run, seen: &RunResult, origin: &Origin, place: Option<Place>) -> Record {
    let (outcome, heard) = (outcome_of(&seen.found), &seen.heard);
    let mut record = unjudged(run, seen, origin, place);
    judge_host(&mut record, origin.tick_resolution(), outcome.pinning_lost.as_deref());
    if let Some(obstacle) = &outcome.obstacle {
        let is_emulated = run.engine == Engine::Qemu(Accelerator::Tcg);
        let code = if is_emulated { "emulated" } else { "interpreted" };
        record.warn(code, format!("{obstacle}: its figures say nothing about hardware"));
    }
    for (kind, (times, first)) in &outcome.complaints {
        let (code, name) = complaint(*kind);
        let first = printable(&first.chars().take(LONGEST_COMPLAINT).collect::<String>());
        record.warn(code, format!("the guest's kernel reported {name} ({times} in all): {first}"));
    }
    if let ("power-off", Some(failure)) = ending(seen) {
        record.warn("inside-failed", failure.message);
    }
    if let Some(Ok(inside)) = &seen.inside {
        if !inside.trusted && inside.warnings.is_empty() {
            record.warn("inside-invalid", "inside: the run is not valid, and does not say why".into());
        }
        for Warning { code, message } in &inside.warnings {
            record.warn(code, format!("inside: {message}"));
        }
    }
    if heard.refused > 0 {
        let message = format!(
            "{} lines of the console began like figures and were none: {}",
            heard.refused,
            heard.reasons.join("; ")
        );
        record.warn("figures-refused", message);
    }
    record
}

fn unjudged(run: &Run, seen: &RunResult, origin: &Origin, place: Option<Place>) -> Record {
    let (outcome, heard) = (outcome_of(&seen.found), seen.heard.clone());
    let mut why = why(run, seen);
    let (end, failure) = ending(seen);
    // The names of other ends say enough.
    let failure = failure.filter(|_| ["power-off", "failed"].contains(&end)).map(|failure| failure.message);
    let settings = Settings::of_linux(run, outcome, &mut why);
    let per_vcpu = outcome.vcpus.iter().map(|vcpu| PerVcpu { acquisitions: None, ..PerVcpu::from(vcpu) });
    let per_vcpu: Vec<PerVcpu> = per_vcpu.collect();
    explain_vcpus(&per_vcpu, &mut why);
    let vm_exits = outcome.vm_exits.iter().filter(|(_, times)| *times > 0);
    let run_delay = Err("runs of Linux do not look".into());
    let mut record = Record {
        end: end.into(),
        failure,
        vm_exits: vm_exits.map(|(name, times)| ((*name).to_owned(), *times)).collect(),
        per_vcpu,
        ..origin.record(place, settings, run_delay, &outcome.kvm_stats, why)
    };
    match &seen.inside {
        // Figures of a workload inside are those of the run.
        Some(Ok(inside)) => {
            record.figures = inside.figures.clone();
            record.at_least = inside.at_least.clone();
            record.distributions = inside.distributions.clone();
            record.lock_events = inside.lock_events.clone();
            record.inside = Some(inside.clone());
        }
        _ => {
            for (name, (value, unit)) in heard.figures {
                if let Some(event) = name.strip_prefix(LOCK_EVENT) {
                    record.lock_events.set(event, value);
                    continue;
                }
                record.figures.set(name.clone(), value);
                record.units.insert(name, unit);
            }
        }
    }
    let of = OfLinux { outcome, found: &seen.found, is_injected: run.deschedule.is_some() };
    for row in FIGURES.iter().filter(|row| seen.inside.is_none() || row.is_of_linux_alone()) {
        let Some(value) = row.linux else { continue };
        let mut why = Why::default();
        record.figures.set(row.name, why.known(row.name, value(&of)));
        record.why.extend(why.0);
    }
    record
}

/// The code of a warning, and the name of what the guest's kernel complained of.
fn complaint(kind: Complaint) -> (&'static str, &'static str) {
    match kind {
        Complaint::Lockup => ("guest-lockup", "a lockup"),
        Complaint::Stall => ("guest-stall", "an RCU stall"),
        Complaint::HungTask => ("guest-hung-task", "a hung task"),
        Complaint::Oops => ("guest-oops", "an oops"),
        Complaint::Bug => ("guest-bug", "a bug"),
        Complaint::Warning => ("guest-warning", "a warning"),
    }
}

fn why(run: &Run, seen: &RunResult) -> Why {
    let mut why = Why::default();
    why.explain("timeline", "no scheduler notes it for Linux guests");
    if !seen.heard.figures.keys().any(|name| name.starts_with(LOCK_EVENT)) && seen.inside.is_none() {
        why.explain(
            "lock_events",
            "the guest printed none: see \"Figures of the guest\" in docs/linux-guest.md",
        );
    }
    if matches!(run.engine, Engine::Qemu(_)) {
        why.explain("per_vcpu", "the vCPUs' threads are QEMU's");
    }
    if run.rules.sched == Sched::Host {
        why.explain("per_vcpu.halted_ns", "the host's scheduler does not tell sleeping from being held back");
    }
    if let Some(Err(reason)) = &seen.inside {
        why.explain("inside", reason.clone());
    }
    why
}

/// The record of a run of a cell, unless its guest failed.
pub(super) fn record_of_cell(
    plan: &Plan,
    cell: &Cell,
    run: &Run,
    seen: &RunResult,
    origin: &Origin,
    place: &Place,
) -> exit::Result<Record> {
    let mut found = record(run, seen, origin, Some(place.clone()));
    if let Some(failure) = ending(seen).1 {
        return Err(failure);
    }
    warn_of_missing(&mut found, plan, &cell.arm);
    Ok(found)
}

/// A run without a figure by which its arm is compared is not what was asked for.
fn warn_of_missing(record: &mut Record, plan: &Plan, arm: &str) {
    for compared in &plan.outline.comparisons {
        if [&compared.arm, &compared.baseline].contains(&&arm.to_owned())
            && let Some(figure) = compared.of.figure()
            && Rate::by(&compared.of, record).is_none()
        {
            let message = format!(
                "the guest printed no positive figure '{figure}', by which '{}' compares it: its pair is left out",
                compared.name
            );
            record.warn("figure-missing", message);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use haltkick_vmm::{Guest, Linux, System};

    use super::*;
    use crate::analysis::statistics::Verdict;
    use crate::analysis::summary::{CheckOutcome, Summary};
    use crate::experiment::measure::Measure;
    use crate::experiment::{Experiment, Source};
    use crate::host::identity::Host;
    use crate::host::noise::Noise;
    use crate::measure::fuzzed::{good, record_of};
    use crate::measure::session::Rule;
    use crate::measure::synthetic::{Scratch, World, assert_has, plain, planned, seen};
    use crate::results::directory::read_records;
    use crate::show::{csv, report, table};

    /// The record of a kernel that switched itself off, with this inside.
    fn with(inside: Result<Record, String>) -> Record {
        let linux = Linux { kernel: "kernel".into(), ..Linux::default() };
        let guests = vec![Guest { system: System::Linux(linux), ..Guest::default() }];
        let run = Run { cpus: vec![0], guests, ..Run::default() };
        let mut seen = seen(&run, LinuxEnd::PowerOff, &[]);
        seen.inside = Some(inside.map(Box::new));
        let origin = Origin::new(SystemTime::now(), Host::default(), Ok((Noise::default(), 0.01)));
        record(&run, &seen, &origin, None)
    }

    #[test]
    fn a_workload_inside_gives_the_run_its_figures_and_its_doubts() {
        let codes = |record: &Record| -> Vec<String> {
            record.warnings.iter().map(|warning| warning.code.clone()).collect()
        };
        let failed = with(Err("it printed no record".into()));
        assert_eq!(failed.failure.as_deref(), Some("the workload inside failed: it printed no record"));
        assert!(!failed.trusted && codes(&failed) == ["inside-failed"], "{:?}", failed.warnings);
        let inside = Record { trusted: true, warnings: vec![], ..record_of(&good(), Ok(1e6)) };
        let doubtful = with(Ok(Record { trusted: false, ..inside.clone() }));
        assert!(!doubtful.trusted && codes(&doubtful) == ["inside-invalid"], "{:?}", doubtful.warnings);
        let fine = with(Ok(inside.clone()));
        assert!(fine.trusted && fine.failure.is_none() && fine.warnings.is_empty(), "{:?}", fine.warnings);
        for of in [Measure::Throughput, Measure::Figure("wait_p99_ns".into())] {
            let [rate, rate_inside] = [&fine, &inside].map(|record| Rate::by(&of, record));
            assert!(rate.is_some() && rate == rate_inside, "{rate:?} {rate_inside:?}");
        }
    }

    const TEXT: &str = "format = 1\nname = 'k'\ntitle = 'Kernels'\nblocks = 8\n\
        [settings]\nkernel = 'kernel'\nratio = 2\n[grid]\nslice = ['1ms', '4ms']\n\
        [[arm]]\nname = 'pv'\n[[arm]]\nname = 'nopvspin'\nnopvspin = true\n\
        [[compare]]\nname = 'nopvspin/pv'\narm = 'nopvspin'\nbaseline = 'pv'\nof = 'figure:page-loop'\n\
        [[compare]]\nname = 'kicks'\narm = 'nopvspin'\nbaseline = 'pv'\nof = 'figure:lock_event.pv_kick_wake'\n\
        [control]\narm = 'pv'\nslice = '1ms'\n";

    fn plan_of(scratch: &Scratch, text: &str) -> Plan {
        let origin = scratch.path().join("k.toml").display().to_string();
        planned(&Experiment::parse(Source { origin, text: text.into() }).unwrap()).unwrap()
    }

    fn plan(scratch: &Scratch) -> Plan {
        scratch.put("kernel", "a kernel");
        plan_of(scratch, TEXT)
    }

    /// With `nopvspin` the loop is 20 % slower, but for what differs from run to run.
    fn console(run: &Run) -> Vec<String> {
        let (_, guest) = run.linux().unwrap();
        assert_eq!(run.guests[0].vcpus, 4);
        let is_slower = guest.append.contains("nopvspin");
        let scatter = 1.0 + (run.guests[0].seed % 5) as f64 / 500.0 * if is_slower { 1.0 } else { -1.0 };
        let pages = if is_slower { 8e4 } else { 1e5 } * scatter;
        let mut lines = vec!["user space is there".into(), format!("haltkick: page-loop={pages} pages/s")];
        if !is_slower {
            lines.push("haltkick: lock_event.pv_kick_wake=7 count".into());
        }
        lines
    }

    #[test]
    fn command_lines_are_compared_within_blocks_and_need_a_figure() {
        let scratch = Scratch::new("kernels-compared");
        let plan = plan(&scratch);
        let (world, engine) = (World::new(1), |run: &Run| Ok(seen(run, LinuxEnd::PowerOff, &console(run))));
        world
            .session(&plan, &engine, &world.watcher(), &scratch)
            .run(Rule { blocks: 8, ..Rule::default() })
            .unwrap();
        let records = read_records(scratch.path()).unwrap();
        assert_eq!(records.len(), 8 * (2 * 2 + 1), "two arms at two settings, and half of the A/A pair");
        let summary = Summary::new(&plan.outline, &records);
        let [first, second] = &summary.comparisons[..] else { panic!("{:?}", summary.comparisons) };
        for found in [first, second] {
            let seen = (found.per_block.len(), found.verdict, found.name.as_str());
            assert_eq!(seen, (8, Verdict::NotValid, "nopvspin/pv"));
            let interval = found.ratio.as_ref().and_then(|ratio| ratio.interval).unwrap();
            assert!(interval.low < 0.81 && interval.high > 0.79, "{interval:?}");
        }
        let control = summary.control.as_ref().unwrap();
        assert_eq!((control.per_block.len(), control.of.figure()), (8, Some("page-loop")));
        // The kernel that does not use them has no such event.
        let untold =
            |record: &&Record| record.warnings.iter().any(|warning| warning.code == "figure-missing");
        assert_eq!(records.iter().filter(untold).count(), 16);
        assert!(records.iter().filter(untold).all(|it| !it.trusted && it.placed().arm == "nopvspin"));
        assert!(summary.lost[0].contains("'nopvspin/pv' is not valid"));
        assert!(summary.checks.iter().any(|it| it.name == "runs" && it.outcome == CheckOutcome::Failed));

        let shown = plain(&table::summary(&summary, table::Detail::Verbose));
        let words = ["page-loop", "k pages/s", "lock_event.pv_kick_wake", "0.80", "nopvspin/pv", "lower"];
        assert_has(&shown, &words);
        let manifest = world.manifest(&plan);
        let page = report::page(&manifest, &summary, &records);
        let hash = &manifest.kernels[0].kernel_sha256;
        assert_has(&page, &["All that the kernels printed", hash, "nopvspin", "A/A pair"]);
        let long = csv::runs(&plan.outline, &records);
        assert_eq!(long.matches(",page-loop,").count(), records.len(), "{long}");
        assert!(csv::summary(&summary).contains(",page-loop,"));
    }

    #[test]
    fn only_varied_kernel_settings_have_files_of_their_own() {
        let scratch = Scratch::new("kernels-varying");
        for kernel in ["kernel", "other"] {
            scratch.put(kernel, kernel);
        }
        let varying = "[grid]\nkernel = ['kernel', 'other']\ncmdline = ['', 'x']\n";
        let text = TEXT.replace("kernel = 'kernel'\n", "").replace("[grid]\n", varying);
        let files = files(&plan_of(&scratch, &text)).unwrap();
        let names: Vec<String> = files.iter().map(KernelFiles::name).collect();
        assert_eq!(names.len(), 2 * 2 * 2, "slices are no other kernel: {names:?}");
        assert_eq!(names[..2], ["pv, cmdline , kernel kernel", "pv, cmdline x, kernel kernel"]);
        assert_ne!(files[0].kernel_sha256, files[2].kernel_sha256);
    }

    #[test]
    fn a_kernel_that_changes_meanwhile_ends_the_experiment() {
        let scratch = Scratch::new("kernels-changing");
        let plan = plan(&scratch);
        let kernel = scratch.path().join("kernel");
        let runs = std::cell::Cell::new(0);
        let engine = |run: &Run| {
            runs.set(runs.get() + 1);
            if runs.get() == 3 {
                // The file is another one, with the same words in it.
                std::fs::write(kernel.with_extension("new"), "a kernel").unwrap();
                std::fs::rename(kernel.with_extension("new"), &kernel).unwrap();
            }
            Ok(seen(run, LinuxEnd::PowerOff, &console(run)))
        };
        let world = World::new(1);
        let watcher = world.watcher();
        let mut session = world.session(&plan, &engine, &watcher, &scratch);
        let failure = session.run(Rule { blocks: 8, ..Rule::default() }).unwrap_err();
        assert!(failure.message.contains("kernel: it has changed since the experiment began"), "{failure}");
        assert_eq!((failure.exit, session.records.len()), (Exit::Usage, 2));
    }
}
