//! `haltkick predict`: simulated runs next to real ones. The real ones are threads here, which need no `/dev/kvm`.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::support::{
    an_allowed_cpu, apply, assert_valid, code, finished, haltkick, refusal, scratch, stderr, stdout, trial,
};

fn experiment(name: &str, engine: &str) -> String {
    format!(
        r#"
format = 1
name = "{name}"
title = "Two locks"
blocks = 2
[settings]
{engine}
ratio = 1
hold = "1us"
think = "2us"
window = "5ms"
warmup = "1ms"
[[arm]]
name = "tas"
lock = "tas"
[[arm]]
name = "mcs"
lock = "mcs"
[[compare]]
name = "mcs/tas"
arm = "mcs"
baseline = "tas"
"#
    )
}

/// Runs it into a directory.
fn bench(scratch: &str, name: &str, engine: &str) -> PathBuf {
    let path = self::scratch(scratch);
    let file = path.join("experiment.toml");
    fs::write(&file, experiment(name, engine)).expect("a file");
    let results = path.join("results");
    let output = finished(&["bench", file.to_str().unwrap(), "--output", results.to_str().unwrap()]);
    assert!([0, 7].contains(&code(&output)), "{}", stderr(&output));
    results
}

fn real(scratch: &str) -> PathBuf {
    bench(scratch, "two", &format!("engine = \"threads\"\ncpus = \"{}\"", an_allowed_cpu()))
}

const SIMULATED: &str = "engine = \"sim\"\nmachine = \"nehalem-2s\"\ncpus = \"0\"";

#[apply(trial)]
fn simulated_runs_stand_beside_the_real_ones_that_they_foretell() {
    let simulated = bench("predict-simulated", "two", SIMULATED);
    // If a busy host disturbs all runs of threads in a cell, that has no figure: then they are made again.
    let mut tries = (0..8).filter_map(|n| {
        let real = real(&format!("predict-real-{n}"));
        let sides = [real, simulated.clone()].map(|side| side.to_str().expect("UTF-8").to_owned());
        let output = haltkick(&["predict", &sides[0], &sides[1], "--format", "json"]);
        let prediction: Value = serde_json::from_str(&stdout(&output)).ok()?;
        (prediction["cells"].as_array()?.len() == 2).then_some((output, prediction, sides))
    });
    let (output, prediction, sides) = tries.next().expect("a host that is quiet for 5 ms now and then");
    let sides = sides.each_ref().map(String::as_str);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_valid("prediction", &prediction);
    let cells = prediction["cells"].as_array().expect("cells");
    for cell in cells {
        let figure = |name: &str| cell[name].as_f64().expect("a figure");
        let measured = cell["measured"]["hodges_lehmann"].as_f64().expect("a figure");
        assert!((figure("factor") - figure("predicted") / measured).abs() < 1e-9, "{cell}");
        assert_eq!(cell["is_near"], (figure("factor") - 1.0).abs() <= 0.25, "{cell}");
    }
    let off = |cell: &Value| cell["factor"].as_f64().expect("a figure").ln().abs();
    assert!(off(&cells[0]) >= off(&cells[1]), "{prediction}");
    assert_eq!(prediction["orders"][0]["arms"], 2);
    let names: Vec<_> = prediction["predictors"]
        .as_array()
        .expect("predictors")
        .iter()
        .map(|it| it["name"].clone())
        .collect();
    assert_eq!(names, [sides[1], "all arms equal", "the ratio alone"]);
    // A machine in which lines of other cores cost nothing is a null, and alone it predicts nothing.
    let no_lines = scratch("predict-no-lines").join("machine.toml");
    let preset = include_str!("../../../vmm/sim/machines/nehalem-2s.toml");
    fs::write(&no_lines, preset.replace("socket-ns = { value = 31", "socket-ns = { value = 0"))
        .expect("a file");
    let engine = SIMULATED.replace("nehalem-2s", no_lines.to_str().unwrap());
    let null = bench("predict-null", "two", &engine);
    let null = null.to_str().unwrap();
    let message = refusal(&["predict", sides[0], null]);
    assert!(message.contains("all simulated machines have socket-ns 0"), "{message}");
    let table = stdout(&haltkick(&["predict", sides[0], null, sides[1], "--all"]));
    assert!(
        table.contains(&format!("null: {null}")) && !table.contains(&format!("null: {}", sides[1])),
        "{table}"
    );
    for text in ["tas", "mcs", "predicted/measured", "of 2 cells", "Kendall", "null: all arms equal"] {
        assert!(table.contains(text), "{table}");
    }
}

#[apply(trial)]
fn sides_that_are_mixed_up_are_refused() {
    let (real, simulated) = (real("mixed-real"), bench("mixed-simulated", "two", SIMULATED));
    let other = bench("mixed-other", "another", SIMULATED);
    let [real, simulated, other] = [&real, &simulated, &other].map(|path| path.to_str().unwrap());
    let message = refusal(&["predict", simulated, real]);
    assert!(message.contains("real runs belong there (haltkick predict REAL SIMULATED)"), "{message}");
    let message = refusal(&["predict", real, real]);
    assert!(message.contains("simulated runs belong there"), "{message}");
    let message = refusal(&["predict", real, other]);
    assert!(message.contains("simulate the experiment that was measured"), "{message}");
}
