//! The parent: starts a child, counts what it says, kills it now and then, and starts the next.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::case::{Kind, PATIENCE};
use crate::dice::Dice;
use crate::life::{Line, Report};
use crate::plant::{PLANTS, Plant};
use crate::resources::RESOURCES;
use crate::table;
use crate::tally::Tally;

/// The work to do.
pub(crate) struct Job {
    pub(crate) kind: Kind,
    pub(crate) until: Until,
    /// File of the counts.
    pub(crate) state: PathBuf,
    /// A fault that is to be found.
    pub(crate) plant: Option<&'static Plant>,
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// Time that this call has taken.
    Time(Duration),
    /// Runs made so far, by earlier calls too.
    Runs(u64),
    /// Something was wrong, or this call has taken this time.
    Wrong(Duration),
}

/// Silence after which a child hangs. A run that a guest keeps from its end has three phases, and ends at the latest ten seconds
/// and four times its patience after each began.
const SILENCE: Duration = Duration::from_secs(3 * (10 + 4 * PATIENCE.as_secs()) + 30);
/// The silence where a fault was put in, with less patience.
const SILENCE_PLANTED: Duration = Duration::from_secs(20);
/// No run is killed that has taken longer: it might be one that hangs, and its own watchdog is to say so.
const MOST_USUAL: Duration = Duration::from_secs(5);
/// That time where a fault was put in.
const MOST_USUAL_PLANTED: Duration = Duration::from_secs(1);
/// Runs after which a process has all the memory and descriptors that it keeps.
const WARM: usize = 10;
/// Number of runs whose shares are judged together: a single one is short, and hosts are busy.
const TOGETHER: u64 = 20;
/// Least share of its half of the CPU time that an honest guest must have in these runs, in thousandths.
const LEAST_SHARE_PERMILLE: u64 = 950;
/// How often the running count is told.
const TELL_EVERY: Duration = Duration::from_secs(20);

/// Does the job; what was wrong is told, and counts.
pub(crate) fn run(job: Job) -> ExitCode {
    match count(&job) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(wrong) => {
            eprintln!("soak: {wrong} runs were wrong: see {}", wrongs(&job.state).display());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("soak: {}: {error}", job.state.display());
            ExitCode::FAILURE
        }
    }
}

/// File that lists errors.
fn wrongs(state: &Path) -> PathBuf {
    state.with_extension("wrong")
}

/// Puts in one fault after the other, each into a count of its own, and looks whether it is reported; then none.
pub(crate) fn plants(directory: &Path) -> ExitCode {
    if let Err(error) = std::fs::create_dir_all(directory) {
        eprintln!("soak: {}: {error}", directory.display());
        return ExitCode::FAILURE;
    }
    let mut missed = 0;
    for plant in &PLANTS {
        let state = directory.join(plant.name);
        _ = std::fs::remove_file(&state);
        _ = std::fs::remove_file(wrongs(&state));
        let until = Until::Wrong(Duration::from_secs(180));
        let job = Job { kind: plant.kind, until, state, plant: Some(plant) };
        let said = match count(&job) {
            Ok(_) => std::fs::read_to_string(wrongs(&job.state)).unwrap_or_default(),
            Err(error) => error.to_string(),
        };
        let found = said.contains(plant.says);
        missed += u32::from(!found);
        println!("{} {}: {}", if found { "found " } else { "MISSED" }, plant.name, said.trim_end());
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn count(job: &Job) -> std::io::Result<u64> {
    let (began, mut tally) = (Instant::now(), Tally::load(&job.state)?);
    let is_over = |tally: &Tally| match job.until {
        Until::Time(length) => began.elapsed() >= length,
        Until::Runs(runs) => tally.get("runs") >= runs,
        Until::Wrong(length) => tally.get("wrong") > 0 || began.elapsed() >= length,
    };
    while !is_over(&tally) {
        Life::begin(job, &mut tally)?.watch(job, &mut tally, is_over)?;
        tally.save()?;
    }
    eprintln!("soak: {}", table::running(&tally));
    if job.kind == Kind::Attack && job.plant.is_none() {
        print!("{}", table::attacks(&tally));
    }
    Ok(tally.get("wrong"))
}

/// One child.
struct Life {
    child: Child,
    lines: Receiver<String>,
    /// When it is to be killed: not before its first run has ended, which may have been cut off in the life before.
    until: Instant,
    /// The run that it makes, and since when.
    running: Option<(u64, Instant)>,
    /// Most of each resource that it held in its first runs.
    warm: [u64; RESOURCES.len()],
    runs: usize,
}

impl Life {
    fn begin(job: &Job, tally: &mut Tally) -> std::io::Result<Self> {
        let lives = tally.get("lives");
        tally.add("lives", 1);
        let mut child = Command::new(std::env::current_exe()?)
            .args(["life", &tally.get("next").to_string(), job.kind.name()])
            .args(job.plant.map(|plant| plant.name))
            // Stacks of threads that have ended are given back, instead of up to 40 MiB being kept: what is left is a leak.
            .env("GLIBC_TUNABLES", "glibc.pthread.stack_cache_size=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (sender, lines) = sync_channel(64);
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)).ok();
        });
        // Most are short, so that many end in the middle of something; some long, so that what leaks is seen.
        let mut dice = Dice::new(lives);
        let is_long = lives % 8 == 7 || job.plant.is_some_and(Plant::needs_a_long_life);
        let milliseconds = if is_long { 600_000 } else { 500 + dice.below(12_000) };
        let until = Instant::now() + Duration::from_millis(milliseconds);
        Ok(Self { child, lines, until, running: None, warm: [0; RESOURCES.len()], runs: 0 })
    }

    /// Counts until it is time to kill the child, or it has ended by itself, which is wrong.
    fn watch(
        mut self,
        job: &Job,
        tally: &mut Tally,
        is_over: impl Fn(&Tally) -> bool,
    ) -> std::io::Result<()> {
        let silence = if job.plant.is_some() { SILENCE_PLANTED } else { SILENCE };
        let (mut heard, mut told) = (Instant::now(), Instant::now());
        let wrong = loop {
            if self.may_be_killed(job) && (Instant::now() >= self.until || is_over(tally)) {
                tally.add("kills", 1);
                break None;
            }
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => {
                    heard = Instant::now();
                    match Line::read(&line) {
                        Some(Line::Begins(number)) => self.running = Some((number, heard)),
                        Some(Line::Ran(report)) => self.enter(job, tally, &report)?,
                        None => {}
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break Some("ended by itself"),
                Err(RecvTimeoutError::Timeout) if heard.elapsed() > silence => break Some("hung"),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if told.elapsed() > TELL_EVERY {
                told = Instant::now();
                tally.save()?;
                eprintln!("soak: {}", table::running(tally));
            }
        };
        // It may have ended meanwhile.
        _ = self.child.kill();
        let status = self.child.wait()?;
        if let Some(what) = wrong {
            let next = tally.get("next");
            tell_wrong(job, tally, next, &format!("the process {what} ({status})"))?;
            // It would end the next process, too.
            tally.set("next", next + 1);
        }
        // A run that was cut off is the first one of the next life, which is not killed before it has ended.
        Ok(())
    }

    /// Whether a run is under way that has not taken long, and some run has ended before.
    fn may_be_killed(&self, job: &Job) -> bool {
        let usual = if job.plant.is_some() { MOST_USUAL_PLANTED } else { MOST_USUAL };
        self.runs > 0 && self.running.is_none_or(|(_, since)| since.elapsed() < usual)
    }

    fn enter(&mut self, job: &Job, tally: &mut Tally, report: &Report) -> std::io::Result<()> {
        let group = |what: &str| format!("group/{}/{what}", report.group);
        self.running = None;
        tally.set("next", report.number + 1);
        tally.add("runs", 1);
        tally.add("acquisitions", report.acquisitions);
        tally.add("starved", report.starved);
        tally.add(&group("runs"), 1);
        tally.add(&group("acquisitions"), report.acquisitions);
        if !report.beside.is_empty() {
            tally.add(&group(&format!("beside/{}", report.beside)), 1);
        }
        if let Some(share) = report.share_permille {
            self.enter_share(job, tally, report, share)?;
        }
        if !report.wrong.is_empty() {
            tally.add(&group("wrong"), 1);
            tell_wrong(job, tally, report.number, &format!("{}: {}", report.group, report.wrong))?;
        }
        self.runs += 1;
        self.check_gains(job, tally, report)
    }

    /// Adds a share to those of its group, and closes twenty of them.
    fn enter_share(&self, job: &Job, tally: &mut Tally, report: &Report, share: u64) -> std::io::Result<()> {
        let name = |what: &str| format!("group/{}/{what}", report.group);
        tally.add(&name("shares"), 1);
        tally.add(&name("share-permille"), share);
        let (open, sum) = (name("share-of-20-open"), name("share-of-20-sum"));
        tally.add(&open, 1);
        tally.add(&sum, share);
        if tally.get(&open) < TOGETHER {
            return Ok(());
        }
        let mean = tally.get(&sum) / TOGETHER;
        tally.least(&name("share-of-20-least"), mean);
        tally.set(&open, 0);
        tally.set(&sum, 0);
        if mean >= LEAST_SHARE_PERMILLE {
            return Ok(());
        }
        let group = &report.group;
        let what = format!("{group}: {mean} thousandths of its share in {TOGETHER} runs together");
        tell_wrong(job, tally, report.number, &what)
    }

    /// Reports resources of which the process holds more than when it was warm.
    fn check_gains(&mut self, job: &Job, tally: &mut Tally, report: &Report) -> std::io::Result<()> {
        for (at, resource) in RESOURCES.iter().enumerate() {
            let (warm, held) = (&mut self.warm[at], report.held[at]);
            if self.runs <= WARM {
                *warm = held.max(*warm);
                continue;
            }
            let gained = held.saturating_sub(*warm);
            tally.most(&format!("gained/{}", resource.name), gained);
            if gained > resource.slack {
                // Told once, not of every run that comes.
                *warm = held;
                let what = format!("{gained} {} more than when it was warm", resource.name);
                tell_wrong(job, tally, report.number, &what)?;
            }
        }
        Ok(())
    }
}

fn tell_wrong(job: &Job, tally: &mut Tally, number: u64, what: &str) -> std::io::Result<()> {
    tally.add("wrong", 1);
    let one = if job.kind == Kind::Soak { "case" } else { "attack" };
    let line = format!("{what} (soak {one} {number})");
    eprintln!("soak: wrong: {line}");
    let file = std::fs::OpenOptions::new().create(true).append(true).open(wrongs(&job.state));
    writeln!(file?, "{line}")
}
