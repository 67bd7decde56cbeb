//! Machines: `nested.sh run` with a test program in it, which tells a line of JSON for each event.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::group::{Group, Programs};

/// Exit codes of `nested.sh run` if the programs in the machine did not come to their end.
const NO_END: [i32; 2] = [124, 125];
/// It says no more of a machine than this many lines.
const LINES: usize = 70;
/// How often a quiet machine is looked at.
const TICK: Duration = Duration::from_millis(500);
/// For a machine with all its tests, however much it says.
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
                terminate(&machine);
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

/// Asks the script to end, which ends the machine.
fn terminate(machine: &Child) {
    let id = i32::try_from(machine.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(id) = id {
        // It may have ended by itself.
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
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
