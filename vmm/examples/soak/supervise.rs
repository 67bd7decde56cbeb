//! The parent: starts a child, counts what it says, kills it now and then, and starts the next.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::case::Kind;
use crate::dice::Dice;
use crate::life::Report;
use crate::table;
use crate::tally::Tally;

/// What is to be done.
pub(crate) struct Job {
    pub(crate) kind: Kind,
    pub(crate) until: Until,
    /// Where the counts are kept.
    pub(crate) state: PathBuf,
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// This call has taken so long.
    Time(Duration),
    /// So many runs were made, by earlier calls too.
    Runs(u64),
}

/// A child that says nothing for so long hangs: no run takes that long.
const SILENCE: Duration = Duration::from_secs(400);
/// Runs after which a process has all the memory and descriptors that it keeps.
const WARM: usize = 10;
/// What memory may grow by after that, in a life: pages of stacks and of an allocator that come and go with the size of guests.
const MOST_GAINED_KIB: u64 = 64 << 10;
/// Shares are looked at in so many runs together: a single one is short, and hosts are busy.
const TOGETHER: u64 = 20;
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

/// Where what was wrong is written down.
fn wrongs(state: &Path) -> PathBuf {
    state.with_extension("wrong")
}

fn count(job: &Job) -> std::io::Result<u64> {
    let (began, mut tally) = (Instant::now(), Tally::load(&job.state)?);
    let is_over = |tally: &Tally| match job.until {
        Until::Time(length) => began.elapsed() >= length,
        Until::Runs(runs) => tally.get("runs") >= runs,
    };
    while !is_over(&tally) {
        Life::begin(job, &mut tally)?.watch(job, &mut tally, is_over)?;
        tally.save()?;
    }
    eprintln!("soak: {}", table::running(&tally));
    if job.kind == Kind::Attack {
        print!("{}", table::attacks(&tally));
    }
    Ok(tally.get("wrong"))
}

/// One child.
struct Life {
    child: Child,
    lines: Receiver<String>,
    /// When it is killed.
    until: Instant,
    /// Memory and descriptors of the first runs, at most.
    before: (u64, u64),
    runs: usize,
}

impl Life {
    fn begin(job: &Job, tally: &mut Tally) -> std::io::Result<Self> {
        let lives = tally.get("lives");
        tally.add("lives", 1);
        let mut child = Command::new(std::env::current_exe()?)
            .args(["life", &tally.get("next").to_string(), job.kind.name()])
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
        let milliseconds = if lives.is_multiple_of(4) { 60_000 } else { 500 + dice.below(12_000) };
        let until = Instant::now() + Duration::from_millis(milliseconds);
        Ok(Self { child, lines, until, before: (0, 0), runs: 0 })
    }

    /// Counts until it is time to kill the child, or it has ended by itself, which is wrong.
    fn watch(
        mut self,
        job: &Job,
        tally: &mut Tally,
        is_over: impl Fn(&Tally) -> bool,
    ) -> std::io::Result<()> {
        let (mut heard, mut told) = (Instant::now(), Instant::now());
        let wrong = loop {
            if Instant::now() >= self.until || is_over(tally) {
                tally.add("kills", 1);
                break None;
            }
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => {
                    heard = Instant::now();
                    if let Some(report) = Report::read(&line) {
                        self.enter(job, tally, &report)?;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break Some("ended by itself"),
                Err(RecvTimeoutError::Timeout) if heard.elapsed() > SILENCE => break Some("hung"),
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
        let next = tally.get("next");
        if let Some(what) = wrong {
            tell_wrong(job, tally, next, &format!("the process {what} ({status})"))?;
        }
        // The run that was cut off is not made again: it would be cut off at the same place, or not at all.
        tally.set("next", next + 1);
        Ok(())
    }

    fn enter(&mut self, job: &Job, tally: &mut Tally, report: &Report) -> std::io::Result<()> {
        let group = |what: &str| format!("group/{}/{what}", report.group);
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
            self.enter_share(tally, &group(""), share);
        }
        if !report.wrong.is_empty() {
            tally.add(&group("wrong"), 1);
            tell_wrong(job, tally, report.number, &format!("{}: {}", report.group, report.wrong))?;
        }
        self.runs += 1;
        self.check_gains(job, tally, report)
    }

    /// Adds a share to those of its group, and closes twenty of them.
    fn enter_share(&self, tally: &mut Tally, group: &str, share: u64) {
        tally.add(&format!("{group}shares"), 1);
        tally.add(&format!("{group}share-permille"), share);
        let (open, sum) = (format!("{group}share-of-20-open"), format!("{group}share-of-20-sum"));
        tally.add(&open, 1);
        tally.add(&sum, share);
        if tally.get(&open) == TOGETHER {
            tally.least(&format!("{group}share-of-20-least"), tally.get(&sum) / TOGETHER);
            tally.set(&open, 0);
            tally.set(&sum, 0);
        }
    }

    /// Memory and descriptors stay what they were when the process was warm.
    fn check_gains(&mut self, job: &Job, tally: &mut Tally, report: &Report) -> std::io::Result<()> {
        if self.runs <= WARM {
            self.before = (self.before.0.max(report.rss_kib), self.before.1.max(report.descriptors));
            return Ok(());
        }
        let gained_kib = report.rss_kib.saturating_sub(self.before.0);
        let descriptors = report.descriptors.saturating_sub(self.before.1);
        tally.most("rss-gained-kib-most", gained_kib);
        tally.most("descriptors-gained-most", descriptors);
        if gained_kib > MOST_GAINED_KIB || descriptors > 0 {
            let what = format!("{gained_kib} KiB and {descriptors} descriptors more than when it was warm");
            tell_wrong(job, tally, report.number, &what)?;
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
