//! Faults that were put into locks on purpose: `haltkick check` finds each, and none in the locks without them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::support::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command/planted");

/// Several locks, of which a define chooses one.
const WORDS: &str = include_str!("planted/words.c");

/// Source, the define that chooses the lock, and the fault: what the sources ask the preprocessor for. The outer words of that with
/// several locks choose one.
fn faults() -> BTreeSet<(String, String, String)> {
    let mut faults = BTreeSet::new();
    for file in std::fs::read_dir(FOLDER).expect("sources") {
        let path = file.expect("a source").path();
        let source = path.file_stem().expect("a name").display().to_string();
        let (mut lock, mut depth) = (String::new(), 0);
        for line in read(&path).lines() {
            match line.split([' ', '(', ')']).collect::<Vec<_>>()[..] {
                ["#ifdef", name, ..] if source == "words" && depth == 0 => lock = name.to_owned(),
                ["#ifdef" | "#ifndef", name, ..] | ["#elif", _, name, ..] => {
                    faults.insert((source.clone(), lock.clone(), name.to_owned()));
                }
                _ => {}
            }
            depth += i32::from(line.starts_with("#if")) - i32::from(line.starts_with("#endif"));
        }
    }
    assert_eq!(faults.len(), 27, "{faults:?}");
    faults
}

/// Runs the command on a source here, `{LOCK}`, that is compiled with these defines.
fn planted(line: &str, source: &str, defines: &[&str]) -> Ended {
    let path = format!("{FOLDER}/{source}.c");
    let defines = defines.iter().filter(|it| !it.is_empty()).map(|it| format!("-D{it} "));
    end_of(command(&line.replace("{LOCK}", &path)).env("CFLAGS", defines.collect::<String>()))
}

#[apply(kvm_trial)]
fn check_finds_the_faults_that_were_planted() {
    let mut missed = Vec::new();
    for (source, lock, fault) in faults() {
        let checked = planted("check {LOCK} --time 60s --watchdog 3s", &source, &[&lock, &fault]);
        match checked.code {
            5 | 6 => _ = checked.says(&["--repeat", "--watchdog 3s"]),
            _ => missed.push(format!("{fault}: {checked}")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[apply(kvm_trial)]
fn check_finds_nothing_in_the_locks_without_faults() {
    let locks: BTreeSet<_> = faults().into_iter().map(|(source, lock, _)| (source, lock)).collect();
    for (source, lock) in locks {
        planted("check {LOCK} --time 3s", &source, &[&lock]).with(&[0]);
    }
}

#[apply(kvm_trial)]
fn the_recipe_of_deleted_instructions_tells_killed_from_survived() -> Check {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/mutants_objects.py");
    let mut python = Command::new("python3");
    python.arg(script).args(["--self-test", "--time", "3s", "--check-options", "--watchdog 3s"]);
    end_if_there(python.args(["--binary", HALTKICK]))?.with(&[0]);
}

#[apply(trial)]
fn judge_makes_one_directory_of_all_that_is_said_of_a_lock() {
    // Names with spaces stay single words of every part.
    let directory = scratch("planted judge");
    let lock = written(format!("{directory}/words.c"), WORDS);
    let how = "--quick --simulated --time 2s --machine nehalem-2s";
    planted(&format!("judge '{lock}' {how} --output '{directory}/judged'"), "", &["TICKET"])
        .with(FINISHED)
        .prints(&["no fault found", "words", "/ qspinlock", "worst-native"]);
    for file in ["summary.txt", "check.txt", "simulated/report.html", "worst-native/worst.json"] {
        assert!(Path::new(&directory).join("judged").join(file).exists(), "{file}");
    }
}

/// Only the new file says something about a commit: all else ends the bisection.
#[apply(trial)]
fn bisect_ends_with_the_codes_that_git_reads() {
    let directory = scratch("planted-bisect");
    written(format!("{directory}/good.c"), WORDS);
    written(format!("{directory}/cut,short.c"), &WORDS[..WORDS.len() / 2]);
    for (vary, blocks, expected, words) in [
        ("lock=ticket,tas", "8", 0, ""),
        ("lock=tas,ticket", "8", 1, ""),
        ("lock=tas,tas-that-is-none", "8", 129, ""),
        ("lock=tas,mcs,clh", "8", 129, ""),
        ("lock=tas,mcs", "none", 129, ""),
        ("lock=file:good.c;file:cut,short.c", "6", 125, "lock object cut,short.c"),
        ("lock=file:cut,short.c;file:good.c", "6", 129, "lock object cut,short.c"),
        ("lock=file:good.c,file:missing.o", "6", 125, "lock object missing.o"),
        ("lock=file:missing.o,file:good.c", "6", 129, "lock object missing.o"),
        ("lock=file:good.c,tas-that-is-none", "6", 129, "unknown lock"),
        ("lock=file:good.c,file:cut,short.c", "6", 129, "semicolons between all values"),
    ] {
        let machine = "--engine sim --machine nehalem-2s --cpus 0-3 --ratio 2";
        let short = format!("--window 5ms --warmup 1ms --slice 100us --blocks {blocks}");
        let mut bisect = command(&format!("bisect {vary} {machine} {short}"));
        let judged = end_of(bisect.current_dir(&directory).env("CFLAGS", "-DTICKET")).with(&[expected]);
        assert!(judged.out.contains(words) || judged.err.contains(words), "{judged}");
    }
    let left = std::fs::read_dir(format!("{directory}/experiments-out")).expect("a directory");
    assert_eq!(left.count(), 2, "nothing is left of those that could not begin");
}
