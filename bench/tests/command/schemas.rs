//! The formats that users parse, as of their last intended change.

use sha2::{Digest as _, Sha256};

use crate::support::{apply, code, haltkick, stderr, stdout, trial};

/// Formats of `haltkick schema`, in its order, and the beginning of the SHA-256 of what it prints.
const KEPT: &[(&str, &str)] = &[
    ("experiment", "80b93a8179ec8585"),
    ("run", "7319eba1b5357789"),
    ("failure", "b903f1def27b0c58"),
    ("manifest", "42629ec4de97977b"),
    ("summary", "c432b14e4cc0e54b"),
    ("comparison", "a215b1b6c7f3116d"),
    ("worst", "c1da60707070a0ea"),
    ("reproduction", "99de8bbc76c8f153"),
    ("top", "fa770415a2bc8d68"),
    ("doctor", "b0895859d5843702"),
    ("list", "244a78a6ff3d847f"),
];

#[apply(trial)]
fn every_schema_is_as_it_was_last_changed_on_purpose() {
    let help = stdout(&haltkick(&["schema", "--help"]));
    let listed = help.lines().filter_map(|line| line.trim().strip_prefix("- ")?.split_once(':'));
    let printed: Vec<(String, String)> = listed
        .map(|(format, _)| {
            let output = haltkick(&["schema", format]);
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            let hash = Sha256::digest(&output.stdout);
            (format.to_owned(), hash[..8].iter().map(|byte| format!("{byte:02x}")).collect())
        })
        .collect();
    let kept = KEPT.iter().map(|&(format, hash)| (format.to_owned(), hash.to_owned()));
    let rows = |formats: &[(String, String)]| {
        formats.iter().map(|(format, hash)| format!("    (\"{format}\", \"{hash}\"),\n")).collect::<String>()
    };
    let changed: Vec<_> =
        printed.iter().filter(|row| !kept.clone().any(|kept| kept == **row)).cloned().collect();
    assert!(
        kept.eq(printed.iter().cloned()),
        "`haltkick schema` prints something else than is kept:\n{}\n\
         Somebody parses this: compare what it prints with what the last commit's binary prints. Fields may come in, optional where \
         old files are read. One that goes, or gets another name, unit or meaning, makes another `schema_version` than that of the \
         last release. Either is a line in CHANGELOG.md. If the change is meant, KEPT in {} is:\n{}",
        rows(&changed),
        file!(),
        rows(&printed)
    );
    assert!(KEPT.iter().any(|(format, _)| *format == "run"), "formats were found");
}
