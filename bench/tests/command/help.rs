//! Output of the command about itself and the host: help, lists, completions, pages.

use std::process::{Child, Stdio};

use serde_json::Value;

use crate::support::{apply, assert_valid, code, command, haltkick, scratch, stderr, stdout, trial};

#[apply(trial)]
fn lists_name_what_there_is() {
    let locks = stdout(&haltkick(&["list", "locks"]));
    for lock in ["none", "tas", "ticket", "mcs", "qspinlock"] {
        let is_it = |line: &str| line.split_whitespace().next() == Some(lock);
        assert!(locks.lines().any(is_it), "{lock} is not in:\n{locks}");
    }
    let layouts: Vec<_> = locks.lines().filter(|line| line.starts_with("mutex")).collect();
    assert_eq!(layouts.len(), 1, "a lock in several layouts is listed once:\n{locks}");
    assert!(layouts[0].ends_with("--layout packed, split, cached, prev-cpu"), "{layouts:?}");
    assert!(stdout(&haltkick(&["list", "workloads"])).contains("critical-section"));
    assert!(stdout(&haltkick(&["list", "experiments"])).starts_with("overcommit"));
}

#[apply(trial)]
fn help_documents_every_exit_code() {
    let help = stdout(&haltkick(&["--help"]));
    for code in [
        "0  done",
        "1  internal error",
        "2  usage",
        "3  bad experiment",
        "4  the host",
        "5  the guest",
        "6  no progress",
        "7  figures not valid",
        "8  a regression",
        "130  interrupted",
    ] {
        assert!(help.contains(code), "{code} is not in:\n{help}");
    }
}

#[apply(trial)]
fn help_is_a_command_too() {
    for (command, option) in [(&["help"][..], &["--help"][..]), (&["help", "run"], &["run", "--help"])] {
        let output = haltkick(command);
        assert_eq!((code(&output), stdout(&output)), (0, stdout(&haltkick(option))), "{command:?}");
    }
}

#[apply(trial)]
fn every_line_of_help_fits_100_columns() {
    let fits = |arguments: &[&str]| {
        let help = stdout(&haltkick(arguments));
        let long = help.lines().find(|line| line.chars().count() > 100);
        assert!(help.contains("Usage: ") && long.is_none(), "in the help of {arguments:?}: {long:?}");
        help
    };
    let help = fits(&["--help"]);
    let commands =
        help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap_or_default();
    let commands: Vec<_> = commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"run") && commands.contains(&"bench"), "{commands:?}");
    // The description of `help` itself is on the first page.
    for command in commands.into_iter().filter(|command| *command != "help") {
        fits(&[command, "--help"]);
    }
}

#[apply(trial)]
fn completions_and_man_pages_come_from_the_same_definitions() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(&haltkick(&["completions", shell])).contains("preempted-hint"), "{shell}");
    }
    let directory = scratch("man");
    assert_eq!(code(&haltkick(&["man", "--dir", directory.to_str().unwrap()])), 0);
    let page = std::fs::read_to_string(directory.join("haltkick-run.1")).unwrap();
    assert!(page.contains("spin\\-threshold"), "{page}");
}

#[apply(trial)]
fn a_reader_that_goes_away_is_no_error() {
    for arguments in
        [&["completions", "bash"][..], &["list", "locks"], &["schema"], &["bench", "overcommit", "--print"]]
    {
        // Gone before the first byte: what is written could still fit into the pipe otherwise.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let child = command(arguments).stdout(writer).stderr(Stdio::piped()).spawn();
        let output = child.and_then(Child::wait_with_output).expect("haltkick can be started");
        assert_eq!((code(&output), stderr(&output)), (0, String::new()), "{arguments:?}");
    }
}

#[apply(trial)]
fn the_doctor_answers_in_json_that_keeps_to_its_schema() {
    let output = haltkick(&["doctor", "--json"]);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_valid("doctor", &value);
    let findings = value["findings"].as_array().unwrap();
    assert!(findings.len() >= 15, "{} findings", findings.len());
    assert!(findings.iter().any(|finding| finding["name"] == "sandbox"), "nothing is said of the walls");
    for finding in findings {
        assert!(!finding["why"].as_str().unwrap().is_empty(), "{finding}");
        assert!(finding["value"].is_string() || finding["level"] == "unknown", "{finding}");
    }
}
