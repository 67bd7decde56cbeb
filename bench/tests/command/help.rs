//! Output of the command about itself and the host: help, completions, pages, its version, and the formats that users parse.

use std::process::{Child, Stdio};

use sha2::{Digest as _, Sha256};

use crate::support::*;

#[apply(trial)]
fn help_is_a_command_too_and_documents_every_exit_code() {
    let help = haltkick("--help").prints(&["0  done", "1  internal error", "2  usage", "3  bad experiment"]);
    let help = help.prints(&["4  the host", "5  the guest", "6  no progress", "7  figures not valid"]);
    assert_eq!(ends(0, "help").out, help.prints(&["8  a regression", "130  interrupted"]).out);
    assert_eq!(ends(0, "help run").out, haltkick("run --help").out);
}

#[apply(trial)]
fn every_line_of_help_fits_100_columns() {
    let fits = |line: &str| {
        let help = haltkick(line).prints(&["Usage: "]).out;
        let long = help.lines().find(|line| line.chars().count() > 100);
        assert_eq!(long, None, "in the help of {line}");
        help
    };
    let help = fits("--help");
    let commands =
        help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap_or_default();
    let commands: Vec<_> = commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"run") && commands.contains(&"bench"), "{commands:?}");
    // The description of `help` itself is on the first page.
    for command in commands.into_iter().filter(|command| *command != "help") {
        fits(&format!("{command} --help"));
    }
}

#[apply(trial)]
fn the_first_screen_of_run_has_fifteen_flags_with_examples() {
    let help = ends(0, "run -h").out;
    let of_flags =
        help.lines().skip_while(|line| *line != "Machine:").take_while(|line| *line != "Examples:");
    let text = of_flags.collect::<Vec<_>>().join(" ");
    // `--hold <TIME[/SHARE]>  Work inside a critical section: --hold 500ns`
    let each: Vec<&str> = text.split("      --").skip(1).collect();
    assert_eq!(each.len(), 15, "{help}");
    for flag in each {
        let name = flag.split_whitespace().next().unwrap();
        // The example may stand in the middle of the line, and break over two.
        let words: Vec<&str> = flag.split_whitespace().skip(1).collect();
        assert!(words.contains(&&*format!("--{name}")), "no example: {flag}");
    }
    assert!(help.lines().count() <= 50, "it is no screen:\n{help}");
}

#[apply(trial)]
fn completions_and_man_pages_come_from_the_same_definitions() {
    for shell in ["bash", "zsh", "fish"] {
        haltkick(&format!("completions {shell}")).prints(&["preempted-hint"]);
    }
    let directory = scratch("man");
    ends(0, &format!("man --dir {directory}"));
    let page = read(format!("{directory}/haltkick-run.1"));
    assert!(page.contains("spin\\-threshold"), "{page}");
}

#[apply(trial)]
fn a_reader_that_goes_away_is_no_error() {
    for line in ["completions bash", "list locks", "schema", "bench overcommit --print"] {
        // Gone before the first byte: what is written could still fit into the pipe otherwise.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let child = command(line).stdout(writer).stderr(Stdio::piped()).spawn();
        let output = child.and_then(Child::wait_with_output).expect("haltkick can be started");
        let ended = Ended::new(line, output).with(&[0]);
        assert_eq!(ended.err, "", "{line}");
    }
}

#[apply(trial)]
fn the_doctor_answers_in_json_that_keeps_to_its_schema() {
    let value = haltkick("doctor --format json").json();
    assert_valid("doctor", &value);
    let findings = value["findings"].as_array().unwrap();
    assert!(findings.len() >= 15, "{} findings", findings.len());
    assert!(findings.iter().any(|finding| finding["name"] == "sandbox"), "nothing is said of the walls");
    for finding in findings {
        assert!(!finding["why"].as_str().unwrap().is_empty(), "{finding}");
        assert!(finding["value"].is_string() || finding["level"] == "unknown", "{finding}");
    }
}

#[apply(trial)]
fn the_version_is_told_by_the_command_the_changelog_and_the_citation() {
    let (abi, fingerprint) = (haltkick_vmm::ABI_VERSION, haltkick_vmm::ABI_FINGERPRINT);
    let (told, version) = (ends(0, "--version").out, env!("CARGO_PKG_VERSION"));
    let end = format!("; guest ABI {abi}, fingerprint {fingerprint:016x})\n");
    assert!(told.starts_with(&format!("haltkick {version} (commit ")) && told.ends_with(&end), "{told}");
    for (name, line) in
        [("CHANGELOG.md", format!("## {version}")), ("CITATION.cff", format!("version: {version}"))]
    {
        let text = read(format!("{}/../{name}", env!("CARGO_MANIFEST_DIR")));
        assert!(text.lines().any(|other| other == line), "{name} has no line '{line}'");
    }
}

/// Formats of `haltkick schema`, in its order, and the beginning of the SHA-256 of what it prints.
const KEPT: &str = "\
experiment e70f5fff47fd5965
run 80dcaece17b03465
failure b10cf321033b0491
manifest 42629ec4de97977b
summary 351d387573665c6c
comparison a215b1b6c7f3116d
worst c1da60707070a0ea
reproduction 99de8bbc76c8f153
top fa770415a2bc8d68
doctor b0895859d5843702
list 244a78a6ff3d847f
";

#[apply(trial)]
fn every_schema_is_as_it_was_last_changed_on_purpose() {
    let help = haltkick("schema --help").out;
    let listed = help.lines().filter_map(|line| line.trim().strip_prefix("- ")?.split_once(':'));
    let row = |(format, _): (&str, &str)| {
        let hash = Sha256::digest(ends(0, &format!("schema {format}")).out);
        let start: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{format} {start}\n")
    };
    let printed: String = listed.map(row).collect();
    let changed: Vec<&str> = printed.lines().filter(|row| !KEPT.lines().any(|kept| kept == *row)).collect();
    assert!(
        printed == KEPT,
        "`haltkick schema` prints something else than is kept: {changed:?}\n\
         Somebody parses this: compare what it prints with what the last commit's binary prints. Fields may come in, optional where \
         old files are read. One that goes, or gets another name, unit or meaning, makes another `schema_version` than that of the \
         last release. Either is a line in CHANGELOG.md. If the change is meant, KEPT in {} is:\n{printed}",
        file!(),
    );
}
