//! Runs one after the other, and what came of each.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use haltkick_vmm::{Ended, Found, Image, Instruments, Needs, Outcome, Run, RunError, Sched};

use crate::case::{Attack, Case};
use crate::plant::Plant;
use crate::resources::Gains;

/// Report of a run, a line of text.
#[derive(Debug, Default)]
pub(crate) struct Report {
    number: u64,
    group: String,
    /// Errors of the honest guest; empty: none.
    wrong: String,
    /// How the other one ended.
    beside: String,
    acquisitions: u64,
    /// CPU time of the honest guest, in thousandths of its half; none where the host decides, or where the attack does not last.
    share_permille: Option<u64>,
    /// How often it was made before, when the host had no time for it.
    starved: u64,
}

impl Report {
    /// The fields that `soak.sh` reads.
    fn line(&self) -> String {
        let share = self.share_permille.map_or(String::new(), |share| share.to_string());
        let one_line = |text: &str| text.replace(['\t', '\n'], " ");
        let Self { number, group, acquisitions, starved, .. } = self;
        let (wrong, beside) = (one_line(self.wrong.trim()), one_line(&self.beside));
        format!("{number}\t{group}\t{acquisitions}\t{share}\t{starved}\t{beside}\t{wrong}\n")
    }
}

/// Runs from `first` on, behind the walls of the command, until this process is killed.
pub(crate) fn live(kind: &str, first: u64, plant: Option<&Plant>) -> ExitCode {
    // Its files under /proc stay its own, so that it can count what it holds.
    let needs = Needs { looked_into: true, switches: true, ..Needs::default() };
    if let Err(error) = haltkick_vmm::confine_process(&needs) {
        eprintln!("soak: {error}");
        return ExitCode::FAILURE;
    }
    let image = Image::embedded();
    let mut gains = Gains::default();
    for number in first.. {
        let mut case = Case::new(kind, number, &image);
        plant.iter().for_each(|plant| plant.change(&mut case, number));
        let mut report = run(number, &case, &image, |_| ());
        report.wrong += &gains.too_much();
        // In one write: a process that is killed leaves whole lines.
        if std::io::stdout().write_all(report.line().as_bytes()).is_err() {
            break;
        }
        plant.iter().for_each(|plant| plant.after(number - first));
    }
    ExitCode::SUCCESS
}

/// One run, for a look at it.
pub(crate) fn one(kind: &str, number: u64) -> ExitCode {
    let image = Image::embedded();
    let case = Case::new(kind, number, &image);
    println!("{:#?}", case.run);
    let report = run(number, &case, &image, |ended| {
        for guest in ended {
            println!("{}: {}", guest.name, how_it_ended(&guest.result));
            guest.explanation.iter().for_each(|explanation| println!("{explanation}"));
        }
    });
    println!("{report:#?}");
    if report.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How often a run for which the host has no time is made again.
const MOST_STARVED: u64 = 5;

/// One run; `see` sees how the guests ended. Where the host had no time for it, it is made again: it would say nothing.
fn run(number: u64, case: &Case, image: &Image, see: impl Fn(&[Ended])) -> Report {
    let mut starved = 0;
    loop {
        let mut report = Report { number, group: case.group.clone(), starved, ..Report::default() };
        let mut had_time = true;
        match haltkick_vmm::run(&case.run, image, &Instruments::default(), &AtomicBool::new(false)) {
            Err(error) => report.wrong = format!("no run: {error}"),
            Ok(found) => {
                see(&found.guests);
                had_time = !case.is_always_busy || has_had_time(&case.run, &found);
                look(case, found.guests, &mut report);
            }
        }
        if had_time || starved == MOST_STARVED {
            return report;
        }
        starved += 1;
    }
}

/// Whether the host gave this process half of the window on its pCPUs at least: with next to nothing an honest guest may
/// well complete no section. A guest that failed is taken as one that had time.
fn has_had_time(run: &Run, found: &Found) -> bool {
    if found.guests.first().is_some_and(|honest| honest.result.is_err()) {
        return true;
    }
    let Some(outcome) = found.outcomes().next() else { return true };
    found.cpu_time >= outcome.window * run.cpus.len() as u32 / 2
}

fn look(case: &Case, ended: Vec<Ended>, report: &mut Report) {
    let mut ended = ended.into_iter().map(|guest| guest.outcome());
    let (honest, other) = (ended.next(), ended.next());
    report.beside = other.as_ref().map(how_it_ended).unwrap_or_default();
    let early = case.attack.zip(other).and_then(|(attack, other)| has_ended_early(attack, &other));
    match honest {
        None => report.wrong = "no guest ended".into(),
        Some(Err(error)) => report.wrong = error.to_string(),
        Some(Ok(outcome)) => {
            // A lost update is an error of the run.
            let has_moved = outcome.entered.iter().any(|entered| *entered > 0);
            report.wrong = if has_moved { String::new() } else { "no section was entered".into() };
            report.acquisitions = outcome.acquisitions();
            let lasts = case.attack.is_some_and(|attack| attack.lasts);
            report.share_permille = lasts.then(|| share_permille(&case.run, &outcome)).flatten();
        }
    }
    if report.wrong.is_empty() {
        report.wrong = match early {
            _ if report.beside.starts_with("host:") => {
                format!("a guest has brought about: {}", report.beside)
            }
            Some(early) => format!("the attack {early}"),
            None => String::new(),
        };
    }
}

/// Why an attack that is to last was none, or ended before its window. A guest whose memory is nonsense may well have violated
/// its own oracle, which is looked at when the window has closed.
fn has_ended_early(attack: Attack, result: &Result<Outcome, RunError>) -> Option<String> {
    match result {
        _ if !attack.lasts => None,
        Err(RunError::ExclusionViolated(_)) => None,
        // One of its 65,536 acts rings a bell that does not exist, which ends its guest.
        Err(RunError::GuestFailed { .. }) if attack.workload == "selftest-harm" => None,
        Ok(outcome) => {
            let exits: u64 = outcome.vm_exits.iter().map(|(_, count)| count).sum();
            let did_nothing = exits == 0 && outcome.acquisitions() == 0;
            did_nothing.then(|| "did nothing".into())
        }
        Err(error) => Some(format!("ended early: {}: {error}", how_it_ended(result))),
    }
}

/// Which part it had of its half of the window on all pCPUs.
fn share_permille(run: &Run, outcome: &Outcome) -> Option<u64> {
    let half_ns = outcome.window.as_nanos() as u64 * run.cpus.len() as u64 / 2;
    let run_ns = outcome.vcpus.iter().map(|vcpu| vcpu.run_ns).sum::<Option<u64>>()?;
    let counts = run.rules.sched == Sched::Vmm && run.guests.len() > 1 && half_ns > 0;
    counts.then(|| run_ns * 1000 / half_ns)
}

fn how_it_ended<T>(result: &Result<T, RunError>) -> String {
    let kind = match result {
        Ok(_) => "outcome",
        Err(RunError::GuestPanic { .. }) => "panic",
        Err(RunError::GuestException { .. }) => "exception",
        Err(RunError::GuestFailed { .. }) => "failed",
        Err(RunError::ExclusionViolated(_)) => "its own oracle",
        Err(RunError::NoProgress(_)) => "no progress",
        Err(RunError::Usage(_) | RunError::Image { .. }) => "refused",
        Err(error @ (RunError::System { .. } | RunError::HostLacks(_))) => return format!("host: {error}"),
        Err(_) => "other",
    };
    kind.into()
}
