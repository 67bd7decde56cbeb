//! Faults that were put into locks on purpose: `haltkick check` finds each, and none in the locks without them.

use std::path::Path;
use std::process::Command;

use crate::objects::object_of;
use crate::support::{
    Check, Failed, apply, command, end_of, ends, finished, haltkick, kvm_trial, scratch, skip, trial,
};

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
fn planted(directory: &str, source: &str, defines: &[&str]) -> Result<String, Failed> {
    let defines: Vec<&str> = defines.iter().copied().filter(|define| !define.is_empty()).collect();
    let text = format!("{}/tests/command/planted/{source}.c", env!("CARGO_MANIFEST_DIR"));
    object_of(&text, format!("{directory}/{source}{}.o", defines.join("-")), &defines)
}

#[apply(kvm_trial)]
fn check_finds_the_faults_that_were_planted() -> Check {
    let directory = scratch("planted");
    let mut missed = Vec::new();
    for (source, lock, fault) in FAULTS {
        let object = planted(&directory, source, &[lock, fault])?;
        let checked = haltkick(&format!("check {object} --time 60s --watchdog 3s"));
        match checked.code {
            5 | 6 => _ = checked.says(&["--repeat", "--watchdog 3s"]),
            _ => missed.push(format!("{fault}: {checked}")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    Ok(())
}

#[apply(kvm_trial)]
fn check_finds_nothing_in_the_locks_without_faults() -> Check {
    let directory = scratch("planted-not");
    let mut locks: Vec<(&str, &str)> = FAULTS.iter().map(|(source, lock, _)| (*source, *lock)).collect();
    locks.dedup();
    for (source, lock) in locks {
        ends(0, &format!("check {} --time 3s", planted(&directory, source, &[lock])?));
    }
    Ok(())
}

#[apply(kvm_trial)]
fn the_recipe_of_deleted_instructions_tells_killed_from_survived() -> Check {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/mutants_objects.py");
    let mut python = Command::new("python3");
    python.arg(script).args(["--self-test", "--time", "3s", "--check-options", "--watchdog 3s"]);
    match python.args(["--binary", env!("CARGO_BIN_EXE_haltkick")]).output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => return skip(format_args!("python3: {error}")),
    }
    Ok(())
}

#[apply(trial)]
fn judge_makes_one_directory_of_all_that_is_said_of_a_lock() -> Check {
    // Names with spaces stay single words of every part.
    let directory = scratch("planted judge");
    let object = planted(&directory, "words", &["TICKET"])?;
    let how = "--quick --simulated --time 2s --machine nehalem-2s";
    finished(&format!("judge '{object}' {how} --output '{directory}/judged'")).prints(&[
        "no fault found",
        "words",
        "/ qspinlock",
        "worst-native",
    ]);
    for file in ["summary.txt", "check.txt", "simulated/report.html", "worst-native/worst.json"] {
        assert!(Path::new(&directory).join("judged").join(file).exists(), "{file}");
    }
    Ok(())
}

/// Only the new file says something about a commit: all else ends the bisection.
#[apply(trial)]
fn bisect_ends_with_the_codes_that_git_reads() -> Check {
    let directory = scratch("planted-bisect");
    let object = planted(&directory, "words", &["TICKET"])?;
    let good = std::fs::read(&object)?;
    std::fs::write(format!("{directory}/good.o"), &good)?;
    std::fs::write(format!("{directory}/cut,short.o"), &good[..good.len() / 2])?;
    for (vary, blocks, expected, words) in [
        ("lock=ticket,tas", "8", 0, ""),
        ("lock=tas,ticket", "8", 1, ""),
        ("lock=tas,tas-that-is-none", "8", 129, ""),
        ("lock=tas,mcs,clh", "8", 129, ""),
        ("lock=tas,mcs", "none", 129, ""),
        ("lock=file:good.o;file:cut,short.o", "6", 125, "lock object cut,short.o"),
        ("lock=file:cut,short.o;file:good.o", "6", 129, "lock object cut,short.o"),
        ("lock=file:good.o,file:missing.o", "6", 125, "lock object missing.o"),
        ("lock=file:missing.o,file:good.o", "6", 129, "lock object missing.o"),
        ("lock=file:good.o,tas-that-is-none", "6", 129, "unknown lock"),
        ("lock=file:good.o,file:cut,short.o", "6", 129, "semicolons between all values"),
    ] {
        let machine = "--engine sim --machine nehalem-2s --cpus 0-3 --ratio 2";
        let short = format!("--window 5ms --warmup 1ms --slice 100us --blocks {blocks}");
        let mut bisect = command(&format!("bisect {vary} {machine} {short}"));
        let judged = end_of(bisect.current_dir(&directory)).with(&[expected]);
        assert!(judged.out.contains(words) || judged.err.contains(words), "{judged}");
    }
    let left = std::fs::read_dir(format!("{directory}/experiments-out"))?;
    assert_eq!(left.count(), 2, "nothing is left of those that could not begin");
    Ok(())
}
