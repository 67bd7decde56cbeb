//! Defaults of a user instead of the program's: in the environment, and in a file.

use std::fs;
use std::process::Output;

use serde_json::Value;

use crate::support::{
    FINISHED, SIMULATED, assert_valid, code, command, json, scratch, stderr, stdout, trials,
};
use crate::tiny::tiny;

trials![
    the_environment_goes_before_the_file_and_a_flag_before_both,
    an_experiment_overrides_defaults_whose_source_its_manifest_names,
    an_experiment_is_completed_with_the_defaults_that_it_was_begun_with,
    defaults_that_cannot_be_are_refused_with_their_place,
];

/// A run that needs no KVM.
const RUN: [&str; 12] = [
    "run",
    "--engine",
    "threads",
    "--vcpus",
    "2",
    "--duration",
    "10ms",
    "--no-ideal",
    "--format",
    "json",
    "--warmup",
    "1ms",
];

/// The command with variables of a user.
fn with(variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    command(arguments).envs(variables.iter().copied()).output().expect("haltkick can be started")
}

/// A directory of configuration with this file of defaults in it.
fn configuration(name: &str, settings: &str) -> String {
    let base = scratch(name);
    fs::create_dir_all(base.join("haltkick")).unwrap();
    fs::write(base.join("haltkick/defaults.toml"), format!("format = 1\n[settings]\n{settings}")).unwrap();
    base.display().to_string()
}

fn config(output: &Output) -> Value {
    assert!(FINISHED.contains(&code(output)), "{}", stderr(output));
    serde_json::from_str::<Value>(&stdout(output)).expect("a record")["config"].clone()
}

fn the_environment_goes_before_the_file_and_a_flag_before_both() {
    let base = configuration("defaults", "hold = \"2us\"\nthink = \"7us\"\nratio = 4\n");
    let of_file = ("XDG_CONFIG_HOME", base.as_str());
    let output = with(&[of_file, ("HALTKICK_HOLD", "3us"), ("HALTKICK_SPIN_THRESHOLD", "9us")], &RUN);
    let found = config(&output);
    let of = |key: &str| found[key].as_u64();
    assert_eq!(
        (of("hold_ns"), of("think_ns"), of("spin_threshold_ns")),
        (Some(3_000), Some(7_000), Some(9_000))
    );
    assert_eq!(of("vcpus"), Some(2), "--vcpus goes before a ratio");
    let told =
        ["hold=3us (HALTKICK_HOLD)".into(), format!("think=7us ({base}/haltkick/defaults.toml, line 4)")];
    let said = stderr(&output);
    assert!(said.starts_with("defaults: ") && told.iter().all(|one: &String| said.contains(one)), "{said}");
    let flag = config(&with(&[of_file, ("HALTKICK_HOLD", "3us")], &[&RUN[..], &["--hold", "5us"]].concat()));
    assert_eq!(flag["hold_ns"], 5_000);
    let elsewhere = scratch("defaults-elsewhere").join("mine.toml");
    fs::write(&elsewhere, "format = 1\n[settings]\nhold = \"8us\"\n").unwrap();
    let named = ("HALTKICK_DEFAULTS", elsewhere.to_str().unwrap());
    assert_eq!(config(&with(&[of_file, named], &RUN))["hold_ns"], 8_000);
    assert_eq!(config(&with(&[of_file, ("HALTKICK_DEFAULTS", "")], &RUN))["hold_ns"], 1_000, "none");
}

fn an_experiment_overrides_defaults_whose_source_its_manifest_names() {
    let (_, path) = tiny("defaults-bench");
    let results = path.join("results");
    let sweep =
        ["sweep", "--vary", "lock=ticket,tas", "--blocks", "1", "--output", results.to_str().unwrap()];
    let variables = [("HALTKICK_HOLD", "3us"), ("HALTKICK_WINDOW", "5ms"), ("HALTKICK_RATIO", "2")];
    // Without its last two, which set `think`: that is to have the program's default.
    let output = with(&variables, &[&sweep[..], &SIMULATED[..10]].concat());
    assert!(FINISHED.contains(&code(&output)), "{}", stderr(&output));
    let manifest = json(&results.join("manifest.json"));
    assert_valid("manifest", &manifest);
    let origin = |key: &str| manifest["origins"][key].as_str().unwrap_or_default().to_owned();
    assert_eq!(origin("hold"), "default of HALTKICK_HOLD");
    assert!(origin("window").starts_with("line "), "{}", origin("window"));
    assert_eq!(origin("think"), "default");
    assert_eq!(manifest["defaults"].as_array().unwrap().len(), 3);
    let record = &crate::tiny::records(&results)[0];
    assert_eq!(
        (record["config"]["hold_ns"].as_u64(), record["config"]["vcpus"].as_u64()),
        (Some(3_000), Some(4))
    );
    assert_eq!(record["config"]["window_ns"], 1_000_000);
}

fn an_experiment_is_completed_with_the_defaults_that_it_was_begun_with() {
    let (experiment, path) = tiny("defaults-resume");
    let results = path.join("results");
    fs::write(&experiment, fs::read_to_string(&experiment).unwrap() + "[quick]\nblocks = 1\n").unwrap();
    let threads = ["--set", "engine=threads", "--quick", "--output", results.to_str().unwrap()];
    let begun = with(&[("HALTKICK_HOLD", "3us")], &[&["bench", &experiment], &threads[..]].concat());
    assert!(FINISHED.contains(&code(&begun)), "{}", stderr(&begun));
    let file = results.join("runs.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.lines().take(3).collect::<Vec<_>>().join("\n") + "\n").unwrap();
    let resumed = with(&[("HALTKICK_HOLD", "9us")], &["bench", "--resume", results.to_str().unwrap()]);
    assert!(FINISHED.contains(&code(&resumed)), "{}", stderr(&resumed));
    let records = crate::tiny::records(&results);
    assert_eq!(crate::tiny::runs(&results).len(), crate::tiny::CELLS_PER_BLOCK);
    assert!(records.iter().all(|record| record["config"]["hold_ns"] == 3_000));
}

fn defaults_that_cannot_be_are_refused_with_their_place() {
    for (name, settings, expected) in [
        ("unknown", "hodl = \"1us\"\n", "defaults.toml:3:1: unknown key 'hodl': did you mean 'hold'?"),
        ("unreadable", "hold = \"1\"\n", "defaults.toml:3:8: hold: '1' has no unit"),
        ("guests", "vm = \"lock=tas\"\n", "defaults.toml:3:1: several guests are no default"),
    ] {
        let base = configuration(name, settings);
        let output = with(&[("XDG_CONFIG_HOME", &base)], &RUN);
        let message = stderr(&output);
        assert!(code(&output) == 3 && message.contains(expected), "{message}");
    }
    for (variable, value, expected) in [
        ("HALTKICK_HOLD", "1", "haltkick: HALTKICK_HOLD: hold: '1' has no unit"),
        ("HALTKICK_VM", "lock=tas", "haltkick: HALTKICK_VM: several guests are no default"),
        ("HALTKICK_DEFAULTS", "/does/not/exist", "haltkick: /does/not/exist: "),
    ] {
        let output = with(&[(variable, value)], &RUN);
        let message = stderr(&output);
        assert!(code(&output) == 2 && message.starts_with(expected), "{message}");
    }
    let output = with(&[("HALTKICK_LOCK", "tikcet")], &RUN);
    assert!(
        stderr(&output).contains("did you mean 'ticket'? (a default of HALTKICK_LOCK)"),
        "{}",
        stderr(&output)
    );
}
