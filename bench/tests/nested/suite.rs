//! Which tests go into which machine, and what is made of how it ended. Machines die and hang: what they told before counts,
//! the test that one died in is to blame for it, and all others go into the next. A machine is `nested.sh run` with a test
//! program in it, which tells a line of JSON for each event.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::group::{Group, Programs};

/// A test that failed, or during which a machine died, has this many machines in all.
const RUNS: usize = 3;

/// Runs tests in a machine, as [`Launcher::run`] does; by a script in this program's own tests.
pub(crate) type Machine<'a> = &'a (dyn Fn(&Group, &[String], &mut dyn FnMut(Event)) -> End + Sync);

/// A test, and the reports of all machines about it.
#[derive(Debug, Default)]
pub(crate) struct Test {
    /// Its place among the groups.
    group: usize,
    pub(crate) name: String,
    pub(crate) passed: bool,
    /// Skipped there, which is no pass.
    pub(crate) ignored: bool,
    /// Output of each failure.
    pub(crate) failures: Vec<String>,
    /// Why machines died during it.
    pub(crate) deaths: Vec<String>,
}

impl Test {
    /// Whether no further machine could change the outcome, or none is worth it.
    fn is_settled(&self) -> bool {
        self.passed || self.ignored || self.failures.len().max(self.deaths.len()) >= RUNS
    }
}

#[derive(Default)]
pub(crate) struct Results {
    pub(crate) tests: Vec<Test>,
    pub(crate) machines: usize,
    /// Why some of them died.
    pub(crate) deaths: Vec<String>,
    /// Why tests that are not settled went into no further machine.
    pub(crate) given_up: Option<String>,
    /// Tests that no machine of this round has yet.
    waiting: VecDeque<Vec<usize>>,
}

struct Suite<'a> {
    groups: &'a [Group],
    machine: Machine<'a>,
    machines_die_at_most: usize,
    until: Instant,
    say: &'a (dyn Fn(String) + Sync),
    state: Mutex<Results>,
}

/// Runs these tests, named with the place of their group, on this number of CPUs: first the groups whose machines take all of them. What
/// a round of machines leaves open goes into the next. No machine starts after `time`.
pub(crate) fn run(
    groups: &[Group],
    tests: Vec<(usize, String)>,
    machine: Machine<'_>,
    machines_die_at_most: usize,
    cpus: usize,
    time: Duration,
    say: &(dyn Fn(String) + Sync),
) -> Results {
    let tests = tests.into_iter().map(|(group, name)| Test { group, name, ..Test::default() }).collect();
    let state = Mutex::new(Results { tests, ..Results::default() });
    let suite = Suite { groups, machine, machines_die_at_most, until: Instant::now() + time, say, state };
    for threads in [2, 1] {
        let workers = (cpus / threads).max(1);
        while suite.plan(threads, workers) {
            std::thread::scope(|scope| (0..workers).for_each(|_| _ = scope.spawn(|| suite.work())));
        }
    }
    suite.state.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Suite<'_> {
    /// Takes batches until there are none left.
    fn work(&self) {
        while let Some((batch, number)) = self.next() {
            let state = self.state();
            let group = &self.groups[state.tests[batch[0]].group];
            let tests: Vec<_> = batch.iter().map(|&test| state.tests[test].name.clone()).collect();
            drop(state);
            (self.say)(format!("machine {number}: {} tests of {}", tests.len(), group.name));
            let mut running = None;
            let end = (self.machine)(group, &tests, &mut |event: Event| {
                if event.kind == Kind::Started {
                    let test = tests.iter().position(|test| *test == event.name).map(|at| batch[at]);
                    running = test.map(|test| (test, Instant::now()));
                } else if let Some((test, since)) = running.take() {
                    self.ended(number, test, event, since.elapsed());
                }
            });
            self.conclude(group, &batch, running.map(|(test, _)| test), number, end);
        }
    }

    /// The next batch, and the number of its machine.
    fn next(&self) -> Option<(Vec<usize>, usize)> {
        let mut state = self.state();
        if Instant::now() >= self.until {
            state.given_up.get_or_insert_with(|| "the time for the suite was up".into());
        }
        let batch = if state.given_up.is_none() { state.waiting.pop_front() } else { None };
        state.machines += usize::from(batch.is_some());
        batch.map(|batch| (batch, state.machines))
    }

    /// Divides among machines what is not settled of the groups with `threads` threads a machine, if there is any: large batches at first,
    /// since each costs the start of a machine; small ones at the end, so that all end together. Then each test that a machine died in
    /// alone, so that it takes no other along.
    fn plan(&self, threads: usize, workers: usize) -> bool {
        let mut state = self.state();
        state.waiting.clear();
        for (place, group) in self.groups.iter().enumerate().filter(|(_, group)| group.threads == threads) {
            let is_due = |test: &usize| state.tests[*test].group == place && !state.tests[*test].is_settled();
            let due = (0..state.tests.len()).filter(is_due);
            let (mut others, killers): (Vec<_>, Vec<_>) =
                due.partition(|&it| state.tests[it].deaths.is_empty());
            let (least, most) = group.batch;
            while !others.is_empty() {
                let size = others.len().div_ceil(2 * workers).clamp(least, most).min(others.len());
                state.waiting.push_back(others.drain(..size).collect());
            }
            state.waiting.extend(killers.into_iter().map(|killer| vec![killer]));
        }
        state.given_up.is_none() && !state.waiting.is_empty()
    }

    fn ended(&self, number: usize, test: usize, Event { kind, stdout, .. }: Event, took: Duration) {
        let mut state = self.state();
        let test = &mut state.tests[test];
        (test.passed, test.ignored) = (kind == Kind::Ok, kind == Kind::Ignored);
        let word = match &kind {
            Kind::Failed => format!("FAILED\n{stdout}"),
            word => format!("{word:?}").to_lowercase(),
        };
        if kind == Kind::Failed {
            test.failures.push(stdout);
        }
        (self.say)(format!("machine {number}: {} ... ({:.1} s) {word}", test.name, took.as_secs_f64()));
    }

    /// Puts down how a machine ended, during the test that was `running`.
    fn conclude(&self, group: &Group, batch: &[usize], running: Option<usize>, number: usize, end: End) {
        let mut state = self.state();
        let is_told_of = |test: &Test| test.is_settled() || !test.failures.is_empty();
        let died = match (end, running) {
            (End::Program(code), Some(test)) => {
                let why = format!("the test program ended with code {code} during it");
                state.tests[test].failures.push(why);
                None
            }
            (End::Program(_), None) if batch.iter().all(|&test| is_told_of(&state.tests[test])) => None,
            (End::Program(code), None) => {
                Some(format!("the test program ended with code {code} before its tests"))
            }
            (End::Died(why), _) => Some(why),
            (End::Stopped, _) => {
                state.given_up.get_or_insert_with(|| "the suite was stopped".into());
                None
            }
        };
        if let Some(why) = died {
            (self.say)(format!("machine {number}: {why}"));
            let during = running.map_or("no test", |test| &state.tests[test].name);
            let death = format!("{}, during {during}: {why}", group.name);
            state.deaths.push(death);
            if let Some(test) = running {
                state.tests[test].deaths.push(why);
            }
            if state.deaths.len() > self.machines_die_at_most {
                state.given_up.get_or_insert_with(|| "more machines have died than are borne".into());
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, Results> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exit codes of `nested.sh run` if the programs in the machine did not come to their end.
const NO_END: [i32; 2] = [124, 125];
/// Most lines of a machine's script that a report repeats: the last ones.
const LINES: usize = 70;
/// How often a quiet machine is looked at.
const TICK: Duration = Duration::from_millis(500);
/// Time limit of a machine with all its tests, however much it says.
const MOST_SECONDS: &str = "1800";

/// How a machine ended.
pub(crate) enum End {
    /// The test program ended with this code, and the machine after it.
    Program(i32),
    /// It died, hung, or never came up.
    Died(String),
    /// The suite was to end.
    Stopped,
}

/// An event of a test, as a line tells it: it has started, or the test that started last has ended.
#[derive(Deserialize)]
pub(crate) struct Event {
    #[serde(rename = "event")]
    pub(crate) kind: Kind,
    pub(crate) name: String,
    /// Output of a test that failed.
    #[serde(default)]
    pub(crate) stdout: String,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Started,
    Ok,
    Failed,
    /// Skipped there.
    Ignored,
}

/// Machines made by a script with the arguments of `nested.sh run`.
pub(crate) struct Launcher<'a> {
    pub(crate) script: PathBuf,
    pub(crate) root: &'a Path,
    pub(crate) programs: &'a Programs,
    /// The suite is to end.
    pub(crate) stop: &'a AtomicBool,
}

impl Launcher<'_> {
    /// Runs these tests of a group in a new machine, tells what happens there as it happens, and returns how it ended.
    pub(crate) fn run(&self, group: &Group, tests: &[String], tell: &mut dyn FnMut(Event)) -> End {
        let mut machine = match self.command(group, tests).spawn() {
            Ok(machine) => machine,
            Err(error) => return End::Died(format!("failed to start {}: {error}", self.script.display())),
        };
        let (Some(stdout), Some(mut stderr)) = (machine.stdout.take(), machine.stderr.take()) else {
            return End::Died("its output is not to be had".into());
        };
        std::thread::scope(|scope| {
            let (send, lines) = channel();
            scope.spawn(move || {
                for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                    // A machine that is being stopped has no listener.
                    let _ = send.send(String::from_utf8_lossy(&line).into_owned());
                }
            });
            let said = scope.spawn(move || {
                let mut said = vec![];
                let _ = stderr.read_to_end(&mut said);
                String::from_utf8_lossy(&said).into_owned()
            });
            let cut_short = self.listen(group, &lines, tell);
            if cut_short.is_some() {
                // The script ends the machine. It may have ended by itself.
                let script = rustix::process::Pid::from_child(&machine);
                _ = rustix::process::kill_process(script, rustix::process::Signal::TERM);
            }
            let status = machine.wait();
            // Its output between the last look and its end.
            lines.iter().filter_map(|line| event(&line)).for_each(tell);
            let said = said.join().unwrap_or_default();
            cut_short.unwrap_or_else(|| end(status, &said))
        })
    }

    fn command(&self, group: &Group, tests: &[String]) -> Command {
        let package = self.root.join(group.package);
        let mut command = Command::new(&self.script);
        command.args(["run", "--timeout", MOST_SECONDS]).args(&group.options).args(self.programs.of(group));
        command.args(["--format", "json", "--test-threads", "1"]);
        command.env("HALTKICK_TESTS", tests.join(",")).env("CARGO_MANIFEST_DIR", &package);
        command.env("CARGO_BIN_EXE_haltkick", &self.programs.haltkick);
        command.envs(group.variables.iter().map(|(name, value)| (name, value)));
        command.current_dir(package).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Tells events until the machine closes its output, or says nothing for too long, or the suite is to end.
    fn listen(&self, group: &Group, lines: &Receiver<String>, tell: &mut dyn FnMut(Event)) -> Option<End> {
        let mut heard = Instant::now();
        loop {
            match lines.recv_timeout(TICK) {
                Ok(line) => {
                    heard = Instant::now();
                    if let Some(event) = event(&line) {
                        tell(event);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if self.stop.load(Ordering::Relaxed) => {
                    return Some(End::Stopped);
                }
                Err(RecvTimeoutError::Timeout) if heard.elapsed() > group.silence => {
                    return Some(End::Died(format!("it hung: not a word for {} s", group.silence.as_secs())));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

fn end(status: std::io::Result<ExitStatus>, said: &str) -> End {
    let lines: Vec<_> = said.lines().collect();
    let said = lines[lines.len().saturating_sub(LINES)..].join("\n");
    match status.map(|status| status.code()) {
        Ok(Some(code)) if NO_END.contains(&code) => End::Died(format!("it died or hung\n{said}")),
        Ok(Some(code)) => End::Program(code),
        Ok(None) => End::Died(format!("somebody killed its script\n{said}")),
        Err(error) => End::Died(format!("no end of its script is known: {error}")),
    }
}

/// The event of a line, if it holds one of a test. A test that prints no line break at its end has its words before the event.
fn event(line: &str) -> Option<Event> {
    serde_json::from_str(&line[line.find("{ \"type\": \"test\"")?..]).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::group::guests;

    #[test]
    fn a_silent_machine_is_ended_and_its_script_may_clean_up() {
        let work = std::env::temp_dir().join(format!("haltkick-nested-test.{}", std::process::id()));
        std::fs::create_dir_all(&work).unwrap();
        let script = work.join("machine");
        let text = r#"#!/usr/bin/env bash
            [[ $* == "run --timeout "*" program --format json --test-threads 1" ]] || exit 2
            trap 'kill $!; echo "{ \"type\": \"test\", \"event\": \"ok\", \"name\": \"a\" }"; exit 143' TERM
            echo "half a line { \"type\": \"test\", \"event\": \"started\", \"name\": \"$HALTKICK_TESTS\" }"
            sleep 20 & wait"#;
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let stop = AtomicBool::new(false);
        let programs =
            Programs { tests: [("guests".into(), "program".into())].into(), haltkick: "/x".into() };
        let launcher = Launcher { script, root: &work, programs: &programs, stop: &stop };
        let group = Group { silence: Duration::from_secs(1), package: "", ..guests() };
        let mut told = vec![];
        let end = launcher.run(&group, &["a".into()], &mut |event| told.push(event));
        std::fs::remove_dir_all(&work).unwrap();
        assert!(matches!(end, End::Died(why) if why.contains("not a word for 1 s")));
        // Its last words count.
        let told: Vec<_> = told.iter().map(|event| (&event.kind, event.name.as_str())).collect();
        assert_eq!(told, [(&Kind::Started, "a"), (&Kind::Ok, "a")]);
    }
}
