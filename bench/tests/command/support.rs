//! Common beginning of all these tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

pub(crate) use ::support::{Check, Failed, apply, skip, trial};
use serde_json::Value;

/// Makes the command.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_haltkick"));
    command.args(arguments);
    command
}

/// The words of a command line without quotes.
pub(crate) fn words(text: &str) -> Vec<&str> {
    text.split_ascii_whitespace().collect()
}

pub(crate) fn haltkick(arguments: &[&str]) -> Output {
    command(arguments).output().expect("haltkick can be started")
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().expect("haltkick ends by itself")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("standard output is text")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("standard error is text")
}

/// Two vCPUs on each of two simulated CPUs, for a millisecond: needs no KVM.
pub(crate) const SIMULATED: [&str; 12] = [
    "--engine",
    "sim",
    "--machine",
    "cascadelake-2s",
    "--cpus",
    "0-1",
    "--window",
    "1ms",
    "--warmup",
    "1ms",
    "--think",
    "1us",
];

/// A directory of this test's own, empty.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a scratch directory");
    path
}

/// The one line on stderr with which the command refuses `arguments`, exit code 2.
pub(crate) fn refusal(arguments: &[&str]) -> String {
    let output = haltkick(arguments);
    assert_eq!(code(&output), 2, "{arguments:?}: {}", stderr(&output));
    assert_eq!(stdout(&output), "", "{arguments:?} wrote data");
    stderr(&output)
}

/// Tests of guests begin with this.
pub(crate) fn kvm() -> Check {
    match fs::OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        Ok(_) => Ok(()),
        Err(error) => skip(format_args!("/dev/kvm: {error}")),
    }
}

/// Exit codes of a run that came to its end; 7 because the machine that runs tests need not be quiet.
pub(crate) const FINISHED: [i32; 2] = [0, 7];

/// Runs `arguments` to the end, which is good or at least an end.
pub(crate) fn finished(arguments: &[&str]) -> Output {
    let output = haltkick(arguments);
    let code = output.status.code().expect("haltkick ends by itself");
    assert!(
        FINISHED.contains(&code),
        "{arguments:?} ended with {code}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Returns the first result of `look` in ever longer windows: on a busy host little happens in a short one.
pub(crate) fn in_some_window<T>(what: &str, mut look: impl FnMut(&str) -> Option<T>) -> T {
    let windows = ["300ms", "1s", "3s", "10s"];
    windows.into_iter().find_map(&mut look).unwrap_or_else(|| panic!("{what}: not in windows of {windows:?}"))
}

/// Returns the result of `look` within a minute.
pub(crate) fn eventually<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn schema(of: &str) -> Value {
    serde_json::from_slice(&haltkick(&["schema", of]).stdout).expect("a schema is JSON")
}

pub(crate) fn assert_valid(of: &str, value: &Value) {
    let validator = jsonschema::validator_for(&schema(of)).expect("a schema is a schema");
    let errors: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{of}: {errors:#?}");
}

pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("the file is there")).expect("the file is JSON")
}

/// Paths of nulls for which `why` has nothing, neither for them nor for what they are part of.
pub(crate) fn nulls_without_reason(record: &Value) -> Vec<String> {
    fn collect(value: &Value, path: &str, nulls: &mut BTreeSet<String>) {
        match value {
            Value::Null => {
                nulls.insert(path.to_owned());
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, path, nulls)),
            Value::Object(fields) => fields.iter().for_each(|(key, value)| {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect(value, &path, nulls);
            }),
            _ => {}
        }
    }
    let mut nulls = BTreeSet::new();
    collect(record, "", &mut nulls);
    let has_reason = |path: &str| record["why"].get(path).is_some_and(|why| why.as_str() != Some(""));
    // A reason of a group is one of all that is in it.
    let explained =
        |path: &String| has_reason(path) || path.match_indices('.').any(|(end, _)| has_reason(&path[..end]));
    // A reason of a family of figures stands under its name, which has a `*` for the key of each.
    let whys: Vec<_> = record["why"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(name, _)| name.split_once('*'))
        .collect();
    let of_family =
        |name: &str| whys.iter().any(|(before, behind)| name.starts_with(before) && name.ends_with(behind));
    let of_figure =
        |path: &String| path.strip_prefix("figures.").is_some_and(|name| has_reason(name) || of_family(name));
    nulls.into_iter().filter(|path| path != "place" && !explained(path) && !of_figure(path)).collect()
}

/// The first CPU that the tests may use.
pub(crate) fn an_allowed_cpu() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    list.trim().split([',', '-']).next().unwrap().to_owned()
}
