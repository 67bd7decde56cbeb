//! Machines: `nested.sh run` with a test program in it, which tells a line of JSON for each event.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
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
        let ended = self.ended(group, tests, tell);
        ended.unwrap_or_else(|error| End::Died(format!("failed to run {}: {error}", self.script.display())))
    }

    fn ended(&self, group: &Group, tests: &[String], tell: &mut dyn FnMut(Event)) -> std::io::Result<End> {
        // Lines of the script stand among those that the machine prints.
        let (output, input) = std::io::pipe()?;
        let mut machine = self.command(group, tests).stdout(input.try_clone()?).stderr(input).spawn()?;
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                // A machine that is being stopped has no listener.
                let _ = send.send(String::from_utf8_lossy(&line).into_owned());
            }
        });
        let mut said = vec![];
        let mut hear = |line: String| match event(&line) {
            Some(event) => tell(event),
            None => said.push(line),
        };
        let cut_short = self.listen(group, &lines, &mut hear);
        if cut_short.is_some() {
            // Asks the script to end, which ends the machine. It may have ended by itself.
            let _ = kill_process(Pid::from_child(&machine), Signal::TERM);
        }
        let status = machine.wait()?;
        // Its output between the last look and its end.
        lines.iter().for_each(hear);
        let said = said[said.len().saturating_sub(LINES)..].join("\n");
        Ok(cut_short.unwrap_or_else(|| match status.code() {
            Some(code) if NO_END.contains(&code) => End::Died(format!("it died or hung\n{said}")),
            Some(code) => End::Program(code),
            None => End::Died(format!("somebody killed its script\n{said}")),
        }))
    }

    fn command(&self, group: &Group, tests: &[String]) -> Command {
        let package = self.root.join(group.package);
        let mut command = Command::new(&self.script);
        command.args(["run", "--timeout", MOST_SECONDS]).args(&group.options).args(self.programs.of(group));
        command.args(["--format", "json", "--test-threads", "1"]);
        command.env("HALTKICK_TESTS", tests.join(",")).env("CARGO_MANIFEST_DIR", &package);
        command.env("CARGO_BIN_EXE_haltkick", &self.programs.haltkick);
        command.envs(group.variables.iter().map(|(name, value)| (name, value)));
        command.current_dir(package).stdin(Stdio::null());
        command
    }

    /// Hears lines until the machine closes its output, or says nothing for too long, or the suite is to end.
    fn listen(&self, group: &Group, lines: &Receiver<String>, hear: &mut dyn FnMut(String)) -> Option<End> {
        let mut heard = Instant::now();
        loop {
            match lines.recv_timeout(TICK) {
                Ok(line) => {
                    heard = Instant::now();
                    hear(line);
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
