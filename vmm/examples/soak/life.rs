//! The child: makes runs one after the other, and says of each what came of it.

use std::fs;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use haltkick_vmm::{Ended, Found, Image, Instruments, Outcome, RunConfig, RunError, Sched};

use crate::case::{Case, Kind};

/// What a run says, in a line of the child.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Report {
    pub(crate) number: u64,
    pub(crate) group: String,
    /// What is wrong with the honest guest; empty: nothing.
    pub(crate) wrong: String,
    /// How the other one ended.
    pub(crate) beside: String,
    pub(crate) acquisitions: u64,
    /// Of the CPU time, in thousandths of its half; none where the host decides.
    pub(crate) share_permille: Option<u64>,
    pub(crate) rss_kib: u64,
    pub(crate) descriptors: u64,
    /// How often it was made before, when the host had no time for it.
    pub(crate) starved: u64,
}

const MARK: &str = "run";

impl Report {
    fn line(&self) -> String {
        let share = self.share_permille.map_or(String::new(), |share| share.to_string());
        let one_line = |text: &str| text.replace(['\t', '\n'], " ");
        let Self { number, group, acquisitions, rss_kib, descriptors, starved, .. } = self;
        let (wrong, beside) = (one_line(&self.wrong), one_line(&self.beside));
        format!(
            "{MARK}\t{number}\t{group}\t{wrong}\t{beside}\t{acquisitions}\t{share}\t{rss_kib}\t{descriptors}\t{starved}"
        )
    }

    /// What a line says, if it is one.
    pub(crate) fn read(line: &str) -> Option<Self> {
        let [mark, number, group, wrong, beside, acquisitions, share, rss_kib, descriptors, starved] =
            line.split('\t').collect::<Vec<_>>().try_into().ok()?;
        (mark == MARK).then_some(())?;
        Some(Self {
            number: number.parse().ok()?,
            group: group.into(),
            wrong: wrong.into(),
            beside: beside.into(),
            acquisitions: acquisitions.parse().ok()?,
            share_permille: share.parse().ok(),
            rss_kib: rss_kib.parse().ok()?,
            descriptors: descriptors.parse().ok()?,
            starved: starved.parse().ok()?,
        })
    }
}

/// Runs from `first` on, until somebody kills this process.
pub(crate) fn live(kind: Kind, first: u64) -> ExitCode {
    let image = Image::embedded();
    for number in first.. {
        let report = run(number, &Case::new(kind, number, &image), &image, |_| ());
        if writeln!(std::io::stdout(), "{}", report.line()).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

/// One run, for a look at it.
pub(crate) fn one(kind: Kind, number: u64) -> ExitCode {
    let image = Image::embedded();
    let case = Case::new(kind, number, &image);
    println!("{:#?}", case.config);
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
        let (report, had_time) = attempt(number, case, image, &see);
        if had_time || starved == MOST_STARVED {
            return Report { starved, ..report };
        }
        starved += 1;
    }
}

/// What came of one run, and whether the honest guest had CPU time.
fn attempt(number: u64, case: &Case, image: &Image, see: &impl Fn(&[Ended])) -> (Report, bool) {
    let mut had_time = true;
    let mut report = Report { number, group: case.group.clone(), ..Report::default() };
    match haltkick_vmm::run(&case.config, image, &Instruments::default(), &AtomicBool::new(false)) {
        Err(error) => report.wrong = format!("no run: {error}"),
        Ok(found) => {
            see(&found.guests);
            had_time = !case.is_always_busy || has_had_time(&case.config, &found);
            look(&case.config, found.guests, &mut report);
        }
    }
    (report.rss_kib, report.descriptors) = (rss_kib(), descriptors());
    (report, had_time)
}

/// Whether the host gave this process a quarter of the window on its pCPUs at least: with next to nothing an honest guest may
/// well complete no section. A guest that failed is taken as one that had time.
fn has_had_time(config: &RunConfig, found: &Found) -> bool {
    let Some(Ok(outcome)) = found.guests.first().map(|honest| &honest.result) else { return true };
    found.cpu_time >= outcome.window * config.cpus.len() as u32 / 4
}

fn look(config: &RunConfig, ended: Vec<Ended>, report: &mut Report) {
    let mut ended = ended.into_iter();
    match ended.next().map(|honest| honest.result) {
        None => report.wrong = "no guest ended".into(),
        Some(Err(error)) => report.wrong = error.to_string(),
        Some(Ok(outcome)) => {
            report.wrong = wrong_with(&outcome);
            report.acquisitions = outcome.acquisitions();
            report.share_permille = share_permille(config, &outcome);
        }
    }
    report.beside = ended.next().map(|other| how_it_ended(&other.result)).unwrap_or_default();
    if report.beside.starts_with("host:") && report.wrong.is_empty() {
        report.wrong = format!("a guest has brought about: {}", report.beside);
    }
}

/// The oracle, and that it moved at all.
fn wrong_with(outcome: &Outcome) -> String {
    match (outcome.lost_updates, outcome.entered.iter().sum::<u64>()) {
        (Some(0), 1..) => String::new(),
        (lost, entered) => format!("lost updates: {lost:?} of {entered} sections"),
    }
}

/// Which part it had of its half of the window on all pCPUs.
fn share_permille(config: &RunConfig, outcome: &Outcome) -> Option<u64> {
    let half_ns = outcome.window.as_nanos() as u64 * config.cpus.len() as u64 / 2;
    let run_ns = outcome.vcpus.iter().map(|vcpu| vcpu.run_ns).sum::<Option<u64>>()?;
    let counts = config.sched == Sched::Vmm && !config.beside.is_empty() && half_ns > 0;
    counts.then(|| run_ns * 1000 / half_ns)
}

fn how_it_ended(result: &Result<Outcome, RunError>) -> String {
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

fn rss_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

fn descriptors() -> u64 {
    fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64)
}
