//! Whether a command ended as it should.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use serde_json::Value;

use crate::launcher::{Fault, Launched};

/// Done; a fault of the system below; an output that cannot be written; the host lacks something; figures not valid.
const DOCUMENTED: [i32; 5] = [0, 1, 2, 4, 7];
/// Came to its end.
const FINISHED: [i32; 2] = [0, 7];
/// How a Rust program ends that gets no memory.
const ABORTED: i32 = libc::SIGABRT;

type Judged = Result<(), String>;

fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Judged {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// Without a fault it comes to its end, or nothing that is said of faults means anything.
pub(crate) fn undisturbed(launched: &Launched, directory: &Path, writes: bool) -> Judged {
    let code = launched.code();
    check(code.is_some_and(|code| FINISHED.contains(&code)), || {
        format!("ended with {:?} without a fault: {}", launched.status, launched.stderr)
    })?;
    files(launched, directory, writes)
}

/// With a fault.
pub(crate) fn disturbed(launched: &Launched, directory: &Path, writes: bool, fault: Fault) -> Judged {
    let Some(status) = launched.status else { return Err(format!("hung; it said: {}", launched.stderr)) };
    if !writes || launched.struck > 0 {
        files(launched, directory, writes)?;
    }
    let stderr = &launched.stderr;
    // It also ends so if there is no memory for the stack on which a thread would take a stack overflow.
    let of_runtime = ["memory allocation of", "alternative stack"];
    if status.signal() == Some(ABORTED) && of_runtime.iter().any(|words| stderr.contains(words)) {
        return Ok(());
    }
    check(!stderr.contains("panicked at"), || format!("panicked: {stderr}"))?;
    check(!stderr.contains("Unknown error"), || format!("the error has no name: {stderr}"))?;
    let Some(code) = status.code() else { return Err(format!("{status}: {stderr}")) };
    check(DOCUMENTED.contains(&code), || format!("exit code {code}: {stderr}"))?;
    if FINISHED.contains(&code) || fault.call.is_talk() {
        return Ok(());
    }
    let lines: Vec<_> = stderr.lines().filter(|line| line.starts_with("haltkick: ")).collect();
    check(lines.len() == 1, || {
        format!("exit code {code} with {} lines of the command: {stderr:?}", lines.len())
    })
}

/// Checks that written files are whole.
fn files(launched: &Launched, directory: &Path, writes: bool) -> Judged {
    if !writes {
        let finished = launched.code().is_some_and(|code| FINISHED.contains(&code));
        let record = serde_json::from_str::<Value>(&launched.stdout);
        return check(!finished || record.is_ok(), || format!("no record: {:?}", launched.stdout));
    }
    let Ok(entries) = fs::read_dir(directory.join("results")) else { return Ok(()) };
    for path in entries.flatten().map(|entry| entry.path()) {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let whole = match path.extension().and_then(|extension| extension.to_str()) {
            Some("jsonl") => {
                (text.is_empty() || text.ends_with('\n'))
                    && text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok())
            }
            Some("json") => serde_json::from_str::<Value>(&text).is_ok(),
            Some("svg") => text.trim_end().ends_with("</svg>"),
            Some("html") => text.trim_end().ends_with("</html>"),
            Some("csv") => text.ends_with('\n'),
            _ => false,
        };
        check(whole, || format!("{name} is half written: it ends with {:?}", tail(&text)))?;
    }
    Ok(())
}

fn tail(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    characters[characters.len().saturating_sub(40)..].iter().collect()
}
