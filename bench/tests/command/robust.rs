//! Comparisons on a simulated machine and on machines like it, and the think time that loads an arm.

use serde_json::{Value, json};

use crate::support::{
    apply, assert_valid, code, finished, haltkick, refusal, scratch, stderr, stdout, trial,
};

const SWEEP: [&str; 14] = [
    "sweep",
    "--engine",
    "sim",
    "--machine",
    "nehalem-2s",
    "--cpus",
    "0-3",
    "--ratio",
    "1",
    "--duration",
    "1ms",
    "--warmup",
    "100us",
    "--oracle=off",
];

/// The output of a sweep into a directory of its own.
fn sweep(name: &str, more: &[&str]) -> (std::process::Output, std::path::PathBuf) {
    let output = scratch(name).join("results");
    let to = ["--output", output.to_str().unwrap()];
    (haltkick(&[&SWEEP[..], more, &to].concat()), output)
}

#[apply(trial)]
fn a_sweep_tells_what_its_comparisons_depend_on() {
    let vary = ["--vary", "hold=1us,4us", "--lock", "mcs", "--compare", "--think", "1us", "--blocks", "5"];
    let (done, directory) = sweep("robust", &[&vary[..], &["--robust=4", "--format", "json"]].concat());
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    let summary: Value = serde_json::from_str(&stdout(&done)).expect("JSON");
    assert_valid("summary", &summary);
    let compared = summary["comparisons"].as_array().expect("comparisons");
    assert_eq!(compared.len(), 1, "{compared:#?}");
    let expected = json!({ "robustness": "robust", "flips_at": null, "points": 4 });
    assert_eq!(compared[0]["sensitivity"], expected, "{compared:#?}");
    // From the records alone, in the terminal and in the report.
    let again = haltkick(&["report", directory.to_str().unwrap()]);
    assert!(stdout(&again).contains("robust (4 machines like it)"), "{}", stdout(&again));
    let report = std::fs::read_to_string(directory.join("report.html")).expect("a report");
    assert!(report.contains("slower, robust"), "the report says it, too");
    let (refused, _) = sweep("robust-few", &[&vary[..7], &["--blocks", "4", "--robust"]].concat());
    assert_eq!(code(&refused), 2);
    assert!(stderr(&refused).contains("4 blocks are too few seeds: at least 5"), "{}", stderr(&refused));
}

#[apply(trial)]
fn the_flag_of_bench_asks_the_same_and_is_resumed() {
    let path = scratch("robust-bench");
    let [file, results] = ["mine.toml", "results"].map(|name| path.join(name).to_str().unwrap().to_owned());
    let vary = ["--vary", "hold=1us,4us", "--lock", "mcs", "--compare", "--think", "1us", "--blocks", "5"];
    finished(&[&SWEEP[..], &vary, &["--save", &file, "--dry-run"]].concat());
    let asked = ["bench", &file, "--robust=4", "--format", "json", "--output", &results];
    let summary: Value = serde_json::from_str(&stdout(&finished(&asked))).expect("JSON");
    let expected = json!({ "robustness": "robust", "flips_at": null, "points": 4 });
    assert_eq!(summary["comparisons"][0]["sensitivity"], expected, "{summary:#}");

    // An experiment that began with the flag is completed with it.
    let records = path.join("results/runs.jsonl");
    let text = std::fs::read_to_string(&records).unwrap();
    let kept: Vec<&str> = text.lines().take(9).collect();
    std::fs::write(&records, kept.join("\n") + "\n").unwrap();
    let again = stdout(&finished(&["bench", "--resume", &results, "--format", "json"]));
    let again: Value = serde_json::from_str(&again).expect("JSON");
    assert_eq!(again["comparisons"], summary["comparisons"]);

    for (arguments, expected) in [
        (&["bench", "--resume", &results, "--robust"][..], "--resume takes everything from the directory"),
        (
            &["bench", "overcommit", "--robust"],
            "--robust: only simulated machines have guesses: --set engine=sim",
        ),
        (&["reproduce", "--robust"], "use `haltkick bench NAME --robust`"),
    ] {
        let refused = refusal(arguments);
        assert!(refused.contains(expected), "{refused}");
    }
}

#[apply(trial)]
fn arms_are_measured_at_the_think_time_that_loads_one() {
    let vary = ["--vary", "lock=ticket,mcs", "--compare", "--hold", "200ns", "--blocks", "2"];
    let load = ["--load-to", "lock-share=30%:ticket", "--format", "json"];
    let (done, directory) = sweep("load-to", &[&vary[..], &load].concat());
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    assert!(stderr(&done).contains("--load-to: all arms run at think "), "{}", stderr(&done));
    let records = std::fs::read_to_string(directory.join("runs.jsonl")).expect("records");
    let records: Vec<Value> =
        records.lines().map(|line| serde_json::from_str(line).expect("a record")).collect();
    let thinks: std::collections::BTreeSet<u64> =
        records.iter().map(|record| record["settings"]["think_ns"].as_u64().expect("a time")).collect();
    assert_eq!(thinks.len(), 1, "{thinks:?}");
    // A vCPU's time, less its sections and pauses, went into the ticket lock.
    let ticket = records.iter().find(|record| record["settings"]["lock"] == "ticket").expect("a record");
    let each_ns = 4e9 / ticket["figures"]["acquisitions_per_second"].as_f64().expect("a rate");
    let share = 1.0 - (200.0 + *thinks.first().unwrap() as f64) / each_ns;
    assert!((0.2..0.45).contains(&share), "{share} at {thinks:?}");
    for (load, more, expected) in [
        ("lock-share=30%:tikcet", &[][..], "there is no arm 'tikcet'"),
        ("lock-share=99.9%:ticket", &[], "does not spend 99.9 % of its time in locks"),
        ("lock-share=30%:ticket", &["--vary", "slice=1ms,2ms"], "is run at several settings"),
        ("lock-share=30%:ticket", &["--workload", "line-add"], "does not tell the time in locks"),
    ] {
        let (refused, _) = sweep("load-to-refused", &[&vary[..], &["--load-to", load], more].concat());
        assert_eq!(code(&refused), 2, "{load}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(expected), "{load}: {}", stderr(&refused));
    }
    let threads =
        ["sweep", "--vary", "lock=ticket,mcs", "--engine", "threads", "--load-to", "lock-share=30%:ticket"];
    let message = refusal(&threads);
    assert!(message.contains("--load-to: think is solved by simulated runs"), "{message}");
}
