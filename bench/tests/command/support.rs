//! Common beginning of all these tests.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, fs};

pub(crate) use ::support::{Check, Failed, apply, skip};
pub(crate) use rustix::process::Signal;
use serde_json::Value;

/// The program under test.
pub(crate) const HALTKICK: &str = env!("CARGO_BIN_EXE_haltkick");

/// A command that has ended, with what it printed as text.
pub(crate) struct Ended {
    line: String,
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, code, out, err } = self;
        write!(to, "`{line}` ended with {code}, printed:\n{out}\nand said:\n{err}")
    }
}

impl Ended {
    pub(crate) fn new(line: &str, output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("output is text");
        let code = output.status.code().expect("it ends by itself");
        Self { line: line.to_owned(), code, out: text(output.stdout), err: text(output.stderr) }
    }

    /// Requires one of these exit codes.
    #[track_caller]
    pub(crate) fn with(self, codes: &[i32]) -> Self {
        assert!(codes.contains(&self.code), "not {codes:?}: {self}");
        self
    }

    /// Requires all of `parts` on standard output.
    #[track_caller]
    pub(crate) fn prints(self, parts: &[&str]) -> Self {
        parts.iter().for_each(|part| assert!(self.out.contains(part), "'{part}' is not printed: {self}"));
        self
    }

    /// Requires all of `parts` on standard error.
    #[track_caller]
    pub(crate) fn says(self, parts: &[&str]) -> Self {
        parts.iter().for_each(|part| assert!(self.err.contains(part), "'{part}' is not said: {self}"));
        self
    }

    /// The only JSON value on standard output.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// Values on standard output, one a line.
    #[track_caller]
    pub(crate) fn jsons(&self) -> Vec<Value> {
        jsons(&self.out)
    }
}

/// The words of a command line, as a shell takes it apart.
pub(crate) fn words(line: &str) -> Vec<String> {
    shlex::split(line).unwrap_or_else(|| panic!("quotes without an end: {line}"))
}

/// Makes the command.
pub(crate) fn command(line: &str) -> Command {
    let mut command = Command::new(HALTKICK);
    command.args(words(line));
    command
}

/// Runs a program to its end. A test that lacks the program is skipped.
pub(crate) fn end_if_there(command: &mut Command) -> Result<Ended, Failed> {
    let output =
        command.output().or_else(|error| skip(format_args!("{:?}: {error}", command.get_program())))?;
    let words = command.get_args().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    Ok(Ended::new(&words, output))
}

/// Runs a program that is there to its end.
pub(crate) fn end_of(command: &mut Command) -> Ended {
    end_if_there(command).unwrap_or_else(|failed| panic!("{failed:?}"))
}

/// Runs the command to its end.
pub(crate) fn haltkick(line: &str) -> Ended {
    end_of(&mut command(line))
}

/// Runs the command, which ends with `code`.
#[track_caller]
pub(crate) fn ends(code: i32, line: &str) -> Ended {
    haltkick(line).with(&[code])
}

/// Exit codes of a run that came to its end; 7 because the machine that runs tests need not be quiet.
pub(crate) const FINISHED: &[i32] = &[0, 7];

/// Runs the command to an end that is good or at least an end.
#[track_caller]
pub(crate) fn finished(line: &str) -> Ended {
    haltkick(line).with(FINISHED)
}

/// Returns the one line on stderr with which a command refuses, exit code 2. Only the parser of command lines adds its usage.
#[track_caller]
pub(crate) fn refusal(command: &mut Command) -> String {
    let ended = end_of(command).with(&[2]);
    let is_one_line = ended.err.lines().count() == 1 || ended.err.starts_with("error: ");
    assert!(ended.out.is_empty() && is_one_line, "{ended}");
    ended.err
}

/// Requires that the command refuses `line` in one line that contains `part`.
#[track_caller]
pub(crate) fn refuses(line: &str, part: &str) {
    let said = refusal(&mut command(line));
    assert!(said.contains(part), "{line}: '{part}' is not in: {said}");
}

/// Runs a shell's script, in which `{HALTKICK}` is the command, to its end.
pub(crate) fn shell(script: &str) -> Ended {
    end_of(Command::new("sh").args(["-c", script]))
}

/// Starts a command whose output is kept.
pub(crate) fn started(command: &mut Command) -> Running {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    Running(Some(child.unwrap_or_else(|error| panic!("{command:?}: {error}"))))
}

/// A process that is ended if its test is.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it runs")
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(self.child());
        rustix::process::kill_process(pid, signal).expect("the child is ours");
    }

    /// Waits for its end.
    pub(crate) fn ended(mut self) -> Ended {
        let child = self.0.take().expect("it runs");
        Ended::new("the command that was started", child.wait_with_output().expect("the child is ours"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

/// Two vCPUs on each of two simulated CPUs, for a millisecond: needs no KVM.
pub(crate) const SIMULATED: &str =
    "--engine sim --machine cascadelake-2s --cpus 0-1 --window 1ms --warmup 1ms --think 1us";

/// A directory of this test's own, empty.
pub(crate) fn scratch(name: &str) -> String {
    let path = format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a scratch directory");
    path
}

/// Writes a file; its path.
pub(crate) fn written(path: String, text: impl AsRef<[u8]>) -> String {
    fs::write(&path, text).unwrap_or_else(|error| panic!("{path}: {error}"));
    path
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Ends a test of guests where there is no KVM.
pub(crate) fn kvm() -> Check {
    match fs::OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        Ok(_) => Ok(()),
        Err(error) => skip(format_args!("/dev/kvm: {error}")),
    }
}

/// Ends a test that lacks a program.
pub(crate) fn has(program: &str) -> Check {
    let asked = Command::new(program).arg("--version").output();
    asked.map(drop).or_else(|error| skip(format_args!("{program}: {error}")))
}

/// Registers a test. A test that may be skipped gets its `Ok(())` here.
macro_rules! trial {
    ($(#[$attribute:meta])* fn $name:ident() -> Check $body:block) => {
        ::support::trial! { $(#[$attribute])* fn $name() -> Check { $body Ok(()) } }
    };
    ($($test:tt)*) => { ::support::trial! { $($test)* } };
}
pub(crate) use trial;

/// Registers a test of guests: a [`trial`] that begins with [`kvm`].
macro_rules! kvm_trial {
    ($(#[$attribute:meta])* fn $name:ident() $body:block) => {
        $crate::support::kvm_trial! { $(#[$attribute])* fn $name() -> $crate::support::Check $body }
    };
    ($(#[$attribute:meta])* fn $name:ident() -> $check:ty $body:block) => {
        ::support::trial! { $(#[$attribute])* fn $name() -> $check { $crate::support::kvm()?; $body Ok(()) } }
    };
}
pub(crate) use kvm_trial;

/// Returns the first result of `look` in ever longer windows: on a busy host little happens in a short one.
pub(crate) fn in_some_window<T>(what: &str, mut look: impl FnMut(&str) -> Option<T>) -> T {
    let windows = ["300ms", "1s", "3s", "10s"];
    windows.into_iter().find_map(&mut look).unwrap_or_else(|| panic!("{what}: not in windows of {windows:?}"))
}

/// Returns the result of `look` within a minute.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn assert_valid(of: &str, value: &Value) {
    let schema = ends(0, &format!("schema {of}")).json();
    let validator = jsonschema::validator_for(&schema).expect("a schema is a schema");
    let errors: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{of}: {errors:#?}");
}

/// Requires a record that keeps to its schema and has a reason for each null.
pub(crate) fn assert_complete(record: &Value) {
    assert_valid("run", record);
    assert_eq!(nulls_without_reason(record), [""; 0], "{}", record["why"]);
}

/// Whether a record has a warning with this code.
pub(crate) fn is_warned(record: &Value, code: &str) -> bool {
    record["warnings"].as_array().expect("warnings").iter().any(|warning| warning["code"] == code)
}

pub(crate) fn json(path: impl AsRef<Path>) -> Value {
    serde_json::from_str(&read(path)).expect("the file is JSON")
}

/// Paths of nulls for which `why` has nothing, neither for them nor for what they are part of.
fn nulls_without_reason(record: &Value) -> Vec<String> {
    fn nulls(value: &Value, path: &str) -> Vec<String> {
        match value {
            Value::Null => vec![path.to_owned()],
            Value::Array(items) => items.iter().flat_map(|item| nulls(item, path)).collect(),
            Value::Object(fields) => {
                let path = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
                fields.iter().flat_map(|(key, value)| nulls(value, &path(key))).collect()
            }
            _ => vec![],
        }
    }
    let is_told = |path: &str, name: &str| {
        let figure = path.strip_prefix("figures.");
        // A reason of a group is one of all that is in it. That of a family of figures stands under its name, which has a `*` for the
        // key of each.
        match name.split_once('*') {
            Some((before, behind)) => figure.is_some_and(|it| it.starts_with(before) && it.ends_with(behind)),
            None => figure == Some(name) || path == name || path.starts_with(&format!("{name}.")),
        }
    };
    let why = record["why"].as_object().expect("reasons");
    let explains = |path: &str| why.iter().any(|(name, reason)| reason != "" && is_told(path, name));
    nulls(record, "").into_iter().filter(|path| path != "place" && !explains(path)).collect()
}

/// The first CPU that the tests may use.
pub(crate) fn an_allowed_cpu() -> String {
    haltkick_vmm::allowed_cpus()[0].to_string()
}

/// An experiment that takes a second.
pub(crate) const TINY: &str = r#"
format = 1
name = "tiny"
title = "A tiny experiment"
blocks = 3
[settings]
slice = "500us"
window = "10ms"
warmup = "1ms"
watchdog = "20s"
[grid]
ratio = [1, 2]
[[arm]]
name = "tas"
lock = "tas"
[[arm]]
name = "pv"
lock = "qspinlock"
pv = "on"
[[compare]]
name = "pv/tas"
arm = "pv"
baseline = "tas"
[control]
arm = "pv"
ratio = 2
"#;

/// Cells of one block: at each ratio a lock-free one and two arms, and the second half of the A/A pair.
pub(crate) const CELLS_PER_BLOCK: usize = 7;

/// The tiny experiment on two simulated CPUs, which needs no KVM.
pub(crate) fn simulated() -> String {
    let machine = "engine = \"sim\"\nmachine = \"cascadelake-2s\"\ncpus = \"0-1\"\nwindow = \"1ms\"";
    TINY.replace("window = \"10ms\"", machine)
}

/// A directory of this test's own with an experiment in it: its file, and a place for results.
pub(crate) fn placed(name: &str, text: &str) -> (String, String) {
    let path = scratch(name);
    (written(format!("{path}/experiment.toml"), text), format!("{path}/results"))
}

/// The tiny experiment in such a directory.
pub(crate) fn tiny(name: &str) -> (String, String) {
    placed(name, TINY)
}

pub(crate) fn records(results: &str) -> Vec<Value> {
    jsons(&read(format!("{results}/runs.jsonl")))
}

fn jsons(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// Leaves the first `records` of a directory, as if nothing had been recorded after them.
pub(crate) fn cut(results: &str, records: usize) {
    let text = read(format!("{results}/runs.jsonl"));
    assert!(text.lines().count() > records, "there is something to leave out");
    written(format!("{results}/runs.jsonl"), text.split_inclusive('\n').take(records).collect::<String>());
}

/// Cell and block of each record, as often as they occur.
pub(crate) fn runs(results: &str) -> BTreeMap<(String, u64), usize> {
    let mut runs = BTreeMap::new();
    for record in records(results) {
        let place = &record["place"];
        let cell = place["cell_id"].as_str().unwrap().to_owned();
        *runs.entry((cell, place["block"].as_u64().unwrap())).or_default() += 1;
    }
    runs
}
