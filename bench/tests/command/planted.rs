//! Faults that were put into locks on purpose: `haltkick check` finds each, and none in the locks without them.

use std::path::Path;
use std::process::Command;

use crate::support::{Check, Failed, apply, code, haltkick, kvm, scratch, skip, stderr, stdout, trial};

/// Source, the define that chooses the lock, and the fault.
const FAULTS: &[(&str, &str, &str)] = &[
    ("paravirtual", "", "DROP_KICKS"),
    ("paravirtual", "", "SLOW_FIRST"),
    ("paravirtual", "", "NO_BARRIER"),
    ("paravirtual", "", "NEVER_SLEEP"),
    ("flags", "", "NO_FENCE"),
    ("queue", "", "FEW_NODES"),
    ("queue", "", "ONE_NODE"),
    ("queue", "", "ONE_WORD"),
    ("queue", "", "LATE_LINK"),
    ("clh", "", "KEEP_NODE"),
    ("levels", "", "COUNT_LATE"),
    ("levels", "", "FORGET"),
    ("levels", "", "KEEP_NO_REGISTER"),
    ("levels", "", "NEVER_TAKE"),
    ("levels", "", "TAKE_AND_DENY"),
    ("shared", "", "SKIP_LAST"),
    ("shared", "", "NO_LAST_LOOK"),
    ("words", "TICKET", "TICKETS_OF_A_BYTE"),
    ("words", "TICKET", "NEVER_LOAD"),
    ("words", "TICKET", "NEVER_TEST"),
    ("words", "TICKET", "TAKE_A_RESULT"),
    ("words", "TICKET", "WAIT_FOR_RUBBISH"),
    ("words", "PENDING", "WIPE_NEXT"),
    ("words", "READERS", "NO_SECOND_LOOK"),
    ("words", "READERS", "SIX_BITS"),
    ("words", "FUTEX", "FORGET_SLEEPERS"),
    ("words", "FUTEX", "SHARE_BITS"),
];

/// The object that gcc makes of a source here with these defines.
fn planted(directory: &Path, source: &str, defines: &[&str]) -> Result<String, Failed> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let object = directory.join(format!("{source}{}.o", defines.join("-")));
    let flags = "-O2 -g -ffreestanding -mgeneral-regs-only -mno-red-zone -fno-pic -c";
    let made = Command::new("gcc")
        .args(flags.split(' '))
        .args(defines.iter().filter(|define| !define.is_empty()).map(|define| format!("-D{define}")))
        .arg(root.join(format!("tests/command/planted/{source}.c")))
        .arg("-I")
        .arg(root.join("../include"))
        .arg("-o")
        .arg(&object)
        .status();
    match made {
        Ok(status) if status.success() => Ok(object.to_string_lossy().into_owned()),
        Ok(status) => panic!("gcc: {status}"),
        Err(error) => skip(format_args!("gcc: {error}")),
    }
}

#[apply(trial)]
fn check_finds_the_faults_that_were_planted() -> Check {
    kvm()?;
    let directory = scratch("planted");
    let mut missed = Vec::new();
    for (source, lock, fault) in FAULTS {
        let object = planted(&directory, source, &[lock, fault])?;
        let checked = haltkick(&["check", &object, "--time", "60s", "--watchdog", "3s"]);
        if !matches!(code(&checked), 5 | 6) {
            missed.push(format!("{fault}: {}{}", stdout(&checked), stderr(&checked)));
        } else {
            let said = stderr(&checked);
            assert!(said.contains("--repeat") && said.contains("--watchdog 3s"), "{fault}: {said}");
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    Ok(())
}

#[apply(trial)]
fn check_finds_nothing_in_the_locks_without_faults() -> Check {
    kvm()?;
    let directory = scratch("planted-not");
    let mut locks: Vec<(&str, &str)> = FAULTS.iter().map(|(source, lock, _)| (*source, *lock)).collect();
    locks.dedup();
    for (source, lock) in locks {
        let object = planted(&directory, source, &[lock])?;
        let checked = haltkick(&["check", &object, "--time", "3s"]);
        assert_eq!(code(&checked), 0, "{source} {lock}: {}{}", stdout(&checked), stderr(&checked));
    }
    Ok(())
}

#[apply(trial)]
fn the_recipe_of_deleted_instructions_tells_killed_from_survived() -> Check {
    kvm()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/mutants_objects.py");
    let mut python = Command::new("python3");
    python.arg(script).args(["--self-test", "--time", "3s", "--check-options", "--watchdog 3s"]);
    match python.args(["--binary", env!("CARGO_BIN_EXE_haltkick")]).output() {
        Ok(output) => assert!(output.status.success(), "{}", stderr(&output)),
        Err(error) => return skip(format_args!("python3: {error}")),
    }
    Ok(())
}

#[apply(trial)]
fn check_speaks_ktap_and_junit() -> Check {
    let directory = scratch("planted-formats");
    let (broken, sound) =
        (planted(&directory, "queue", &["LATE_LINK"])?, planted(&directory, "queue", &[""])?);
    let quickly =
        ["--engine", "threads", "--trust-image", "--window", "1ms", "--warmup", "1ms", "--time", "1ms"];
    let checked = |object: &str, format: &str| {
        haltkick(&[&["check", object, "--format", format], &quickly[..]].concat())
    };
    let ktap = checked(&sound, "ktap");
    let text = stdout(&ktap);
    assert_eq!(code(&ktap), 0, "{text}{}", stderr(&ktap));
    assert!(text.starts_with("KTAP version 1\n1..") && text.contains("\nok 1 "), "{text}");
    assert!(!text.contains("not ok") && text.contains("# SKIP not reached"), "{text}");
    let junit = checked(&sound, "junit");
    assert!(
        stdout(&junit).starts_with("<?xml") && stdout(&junit).contains("failures=\"0\""),
        "{}",
        stdout(&junit)
    );
    let slowly =
        ["--engine", "threads", "--trust-image", "--time", "1m", "--watchdog", "2s", "--format", "ktap"];
    let broken = haltkick(&[&["check", &broken], &slowly[..]].concat());
    assert!(matches!(code(&broken), 5 | 6), "{}{}", stdout(&broken), stderr(&broken));
    assert!(stdout(&broken).contains("\nnot ok "), "{}", stdout(&broken));
    Ok(())
}

#[apply(trial)]
fn judge_makes_one_directory_of_all_that_is_said_of_a_lock() -> Check {
    let directory = scratch("planted-judge");
    let object = planted(&directory, "words", &["TICKET"])?;
    let output = directory.join("judged").to_string_lossy().into_owned();
    let judged = haltkick(&[
        "judge",
        &object,
        "--quick",
        "--simulated",
        "--time",
        "2s",
        "--machine",
        "nehalem-2s",
        "--output",
        &output,
    ]);
    let text = stdout(&judged);
    assert!(matches!(code(&judged), 0 | 7), "{text}{}", stderr(&judged));
    for part in ["no fault found", "words", "/ qspinlock", "worst-native"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for file in ["summary.txt", "check.txt", "simulated/report.html", "worst-native/worst.json"] {
        assert!(Path::new(&output).join(file).exists(), "{file}");
    }
    Ok(())
}

#[apply(trial)]
fn bisect_ends_with_the_codes_that_git_reads() -> Check {
    let directory = scratch("planted-bisect");
    let judged = |vary: &str, blocks: &str| {
        let machine = ["--engine", "sim", "--machine", "nehalem-2s", "--cpus", "0-3", "--ratio", "2"];
        let short = ["--window", "5ms", "--warmup", "1ms", "--slice", "100us", "--blocks", blocks];
        let arguments = [&["bisect", vary], &machine[..], &short].concat();
        let output = crate::support::command(&arguments).current_dir(&directory).output().expect("it starts");
        (code(&output), format!("{}{}", stdout(&output), stderr(&output)))
    };
    let (good, said) = judged("lock=ticket,tas", "8");
    assert_eq!(good, 0, "{said}");
    let (bad, said) = judged("lock=tas,ticket", "8");
    assert_eq!(bad, 1, "{said}");
    let (unknown, said) = judged("lock=tas,tas-that-is-none", "8");
    assert_eq!(unknown, 129, "{said}");
    let (three, said) = judged("lock=tas,mcs,clh", "8");
    assert_eq!(three, 129, "{said}");
    let (missing, said) = judged("lock=tas,mcs", "none");
    assert_eq!(missing, 129, "{said}");
    bisect_skips_files_of_which_no_guest_is_made(&directory, judged)
}

/// Only the new file says something about a commit: all else ends the bisection.
fn bisect_skips_files_of_which_no_guest_is_made(
    directory: &Path,
    judged: impl Fn(&str, &str) -> (i32, String),
) -> Check {
    let object = planted(directory, "words", &["TICKET"])?;
    let good = std::fs::read(&object).expect("it was compiled");
    std::fs::write(directory.join("good.o"), &good).expect("the scratch directory can be written");
    std::fs::write(directory.join("cut,short.o"), &good[..good.len() / 2]).expect("as above");
    for (vary, expected, words) in [
        ("lock=file:good.o;file:cut,short.o", 125, "lock object cut,short.o"),
        ("lock=file:cut,short.o;file:good.o", 129, "lock object cut,short.o"),
        ("lock=file:good.o,file:missing.o", 125, "lock object missing.o"),
        ("lock=file:missing.o,file:good.o", 129, "lock object missing.o"),
        ("lock=file:good.o,tas-that-is-none", 129, "unknown lock"),
        ("lock=file:good.o,file:cut,short.o", 129, "semicolons between all values"),
    ] {
        let (code, said) = judged(vary, "6");
        assert!(code == expected && said.contains(words), "{vary}: {code}: {said}");
    }
    let left = std::fs::read_dir(directory.join("experiments-out")).expect("two bisections were made");
    assert_eq!(left.count(), 2, "nothing is left of those that could not begin");
    Ok(())
}
