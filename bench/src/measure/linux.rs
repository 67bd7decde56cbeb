//! One run of a Linux guest: from its kernel to its record.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use haltkick_vmm::{
    Accelerator, AnyOutcome, Complaint, ConsoleSink, Engine, Found, Image, Instruments, LinuxConsole,
    LinuxEnd, LinuxOutcome, Run, RunError, Sched, printable,
};

use super::console::{Heard, RunResult};
use super::fill::{Origin, explain_vcpus};
use super::inside::{Told, is_ours};
use super::judge::judge_host;
use crate::record::figures::{FIGURES, LOCK_EVENT, OfLinux};
use crate::record::place::Place;
use crate::record::settings::Settings;
use crate::record::{PerVcpu, Record, Warning, Why};
use crate::settings::row::ns;
use crate::text::exit::{Exit, Failure};
use crate::text::output;
use crate::text::quantity::time_ns;

/// Lines of the console that are told of a guest that failed.
const LAST_LINES: usize = 40;

/// Characters of a kernel's complaint that are told.
const LONGEST_COMPLAINT: usize = 200;

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
    if !matches!(outcome_of(&seen.found).end, LinuxEnd::PowerOff) || failed_inside(&seen).is_some() {
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

/// Locks a mutex, poisoned or not: what it holds stays good in a panic, since lines are added, or not.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a guest that switched itself off has no record of the workload that was to run inside.
fn failed_inside(seen: &RunResult) -> Option<String> {
    let LinuxEnd::PowerOff = outcome_of(&seen.found).end else { return None };
    let reason = seen.inside.as_ref()?.as_ref().err()?;
    Some(format!("the workload inside failed: {reason}"))
}

/// Why a guest did not do its work; `None` if it switched itself off.
pub(crate) fn failure(seen: RunResult) -> Option<Failure> {
    let after = time_ns(ns(outcome_of(&seen.found).run) as f64);
    let failed_inside = failed_inside(&seen);
    let Ok(AnyOutcome::Linux(outcome)) = seen.found.guests.into_iter().next()?.result else { return None };
    let (exit, message) = match outcome.end {
        LinuxEnd::PowerOff => (Exit::GuestFailed, failed_inside?),
        LinuxEnd::Reset => (
            Exit::GuestFailed,
            format!("the guest asked for a reset after {after}, and not to be switched off"),
        ),
        LinuxEnd::Panic => {
            let message = format!(
                "the guest's kernel panicked after {after}: its console says why (for want of an /init: --initrd FILE, or \
                 --workload-inside WORDS, which brings its own)"
            );
            (Exit::GuestFailed, message)
        }
        LinuxEnd::TimeLimit => (
            Exit::NoProgress,
            format!(
                "the guest had not powered off after {after}: let it run `poweroff -f`, or give it more with --duration"
            ),
        ),
        LinuxEnd::Failed(error) => return Some(Failure::from(error)),
    };
    Some(Failure { exit, message })
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
    if let Some(message) = failed_inside(seen) {
        record.warn("inside-failed", message);
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
    let (end, failure) = match &outcome.end {
        LinuxEnd::PowerOff => ("power-off", failed_inside(seen)),
        LinuxEnd::Reset => ("reset", None),
        LinuxEnd::Panic => ("panic", None),
        LinuxEnd::TimeLimit => ("time-limit", None),
        LinuxEnd::Failed(error) => ("failed", Some(error.to_string())),
    };
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use haltkick_vmm::{Complaints, Guest, Linux, System};

    use super::*;
    use crate::analysis::rate::{Rate, estimate};
    use crate::experiment::measure::Measure;
    use crate::host::identity::Host;
    use crate::host::noise::Noise;
    use crate::measure::fuzzed::{good, record_of};
    use crate::measure::synthetic;
    use crate::record::figures::{ACQUISITIONS, COMPLETION, THROUGHPUT, WINDOW};

    /// The record of a kernel that switched itself off, with this inside.
    fn with(inside: Result<Record, String>) -> Record {
        after(Some(inside), Complaints::new())
    }

    /// The record of a kernel that complained of this and switched itself off.
    fn after(inside: Option<Result<Record, String>>, complaints: Complaints) -> Record {
        let linux = Linux {
            kernel: "kernel".into(),
            initrd: None,
            append: String::new(),
            memory_bytes: 0,
            marker: String::new(),
            limit: None,
        };
        let guests = vec![Guest { system: System::Linux(linux), ..Guest::default() }];
        let run = Run { cpus: vec![0], guests, ..Run::default() };
        let mut seen = synthetic::seen(&run, LinuxEnd::PowerOff, &[]);
        seen.inside = inside.map(|inside| inside.map(Box::new));
        if let Ok(AnyOutcome::Linux(outcome)) = &mut seen.found.guests[0].result {
            outcome.complaints = complaints;
        }
        let origin = Origin::new(SystemTime::now(), Host::default(), Ok((Noise::default(), 0.01)));
        record(&run, &seen, &origin, None)
    }

    /// A record of this number of sections in a second.
    fn of(sections: u64) -> Record {
        let mut record = record_of(&good(), Ok(1e6));
        (record.trusted, record.warnings) = (true, vec![]);
        for (name, value) in [(WINDOW, Some(1e9)), (COMPLETION, None)] {
            record.figures.set(name, value);
        }
        for name in [ACQUISITIONS, THROUGHPUT] {
            record.figures.set(name, sections as f64);
        }
        record
    }

    #[test]
    fn a_throughput_inside_is_as_exact_as_its_count() {
        let rate = |sections| Rate::by(&Measure::Throughput, &with(Ok(of(sections)))).unwrap();
        let none = rate(0);
        assert!(none.is_floor && none.per_second == 0.5, "{none:?}");
        // One section more or less is no difference, one eighth of many is.
        for (fewer, more, overlap) in [(8, 9, true), (8000, 9000, false)] {
            let interval = |sections| estimate(&[rate(sections); 4]).unwrap().interval.unwrap();
            assert_eq!(interval(fewer).high > interval(more).low, overlap, "{fewer} {more}");
        }
        let mut no_window = of(0);
        no_window.figures.set(WINDOW, 0.0);
        assert_eq!(Rate::by(&Measure::Throughput, &with(Ok(no_window))), None);
        let waits = Measure::Figure("wait_p99_ns".into());
        assert_eq!(Rate::by(&waits, &with(Ok(of(8)))).map(|it| it.resolution), Some(0.0));
    }

    #[test]
    fn a_kernels_complaints_are_told_by_kind_and_make_the_run_invalid() {
        let stall = "rcu: INFO: rcu_preempt self-detected stall on CPU";
        let long = format!("WARNING: \u{1b}[2J{}", "x".repeat(4000));
        let complaints = [(Complaint::Stall, (3, stall.into())), (Complaint::Warning, (1, long))];
        let record = after(None, complaints.into());
        let [first, second] = &record.warnings[..] else { panic!("{:?}", record.warnings) };
        assert_eq!(first.code, "guest-stall");
        assert_eq!(first.message, format!("the guest's kernel reported an RCU stall (3 in all): {stall}"));
        assert_eq!(second.code, "guest-warning");
        assert!(second.message.len() < 300 && !second.message.contains('\u{1b}'), "{}", second.message);
        assert!(!record.trusted && after(None, Complaints::new()).trusted);
    }

    #[test]
    fn a_failure_or_doubt_inside_makes_the_run_invalid() {
        let codes = |record: &Record| -> Vec<String> {
            record.warnings.iter().map(|warning| warning.code.clone()).collect()
        };
        let failed = with(Err("it printed no record".into()));
        assert_eq!(failed.failure.as_deref(), Some("the workload inside failed: it printed no record"));
        assert!(!failed.trusted && codes(&failed) == ["inside-failed"], "{:?}", failed.warnings);
        let doubtful = with(Ok(Record { trusted: false, ..of(8) }));
        assert!(!doubtful.trusted && codes(&doubtful) == ["inside-invalid"], "{:?}", doubtful.warnings);
        let fine = with(Ok(of(8)));
        assert!(fine.trusted && fine.failure.is_none() && fine.warnings.is_empty(), "{:?}", fine.warnings);
    }
}
