//! A disk that fills up costs what did not fit, and nothing else.

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{Check, Failed, apply, assert_valid, code, haltkick, kvm, skip, stderr, stdout, trial};
use crate::tiny::tiny;

/// Runs `haltkick bench` into a file system with so much room; at the end its standard output lists what is there.
fn bench_with_room(name: &str, room: &str) -> Result<Output, Failed> {
    match Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]).output() {
        Ok(mounted) if mounted.status.success() => {}
        Ok(mounted) => {
            return skip(format_args!(
                "no tmpfs can be mounted with unshare -rm: {}",
                stderr(&mounted).trim()
            ));
        }
        Err(error) => return skip(format_args!("unshare: {error}")),
    }
    let (experiment, path) = tiny(name);
    let script = format!(
        "mount -t tmpfs -o size={room} none {path} && {haltkick} bench {experiment} --output {path}/results; \
         code=$?; echo; ls {path}/results; wc -l {path}/results/runs.jsonl; exit $code",
        haltkick = env!("CARGO_BIN_EXE_haltkick"),
        path = path.join("disk").display(),
    );
    std::fs::create_dir(path.join("disk")).unwrap();
    Ok(Command::new("unshare").args(["-rm", "sh", "-c", &script]).output().expect("unshare can be started"))
}

#[apply(trial)]
fn an_experiment_on_a_full_disk_keeps_and_counts_its_records() -> Check {
    kvm()?;
    let output = bench_with_room("full-disk", "96k")?;
    let (data, talk) = (stdout(&output), stderr(&output));
    assert_eq!(code(&output), 1, "{talk}");
    let kept = data.lines().last().unwrap().split(' ').next().unwrap();
    assert!(kept.parse::<u32>().unwrap() >= 3, "{data}");
    let expected = format!("No space left on device (os error 28): {kept} records are kept; make room, then");
    assert!(talk.lines().last().unwrap().contains(&expected), "{talk}");
    assert!(!data.contains("partial"), "{data}");
    assert!(data.contains("A tiny experiment"), "the table of what is there: {data}");
    Ok(())
}

#[apply(trial)]
fn a_disk_without_room_for_the_manifest_is_left_as_it_was() -> Check {
    kvm()?;
    let output = bench_with_room("no-room", "8k")?;
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("manifest.json: No space left"), "{}", stderr(&output));
    assert!(!stdout(&output).contains("partial"), "{}", stdout(&output));
    Ok(())
}

#[apply(trial)]
fn a_trace_too_large_for_the_disk_leaves_the_record() -> Check {
    kvm()?;
    let output =
        haltkick(&["run", "--no-ideal", "--duration", "50ms", "--format", "json", "--trace", "/dev/full"]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let record: Value = serde_json::from_str(&stdout(&output)).expect("a record");
    assert_valid("run", &record);
    let expected = "--trace: /dev/full: No space left on device (os error 28): the record is complete";
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    assert!(std::path::Path::new("/dev/full").exists());
    Ok(())
}
